"""Fig. 1a: eigenvalues of the backward operator of ReLU networks over the batch size."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray

from equipoise import theory
from equipoise.records import Estimate
from equipoise.report import wording
from equipoise_papers.experiments import style
from equipoise_papers.experiments.experiment import Experiment, Scale
from equipoise_papers.experiments.verdict import Check, Verdict
from equipoise_papers.sweeps.cell import Cell
from equipoise_papers.yang2019.samples import (
    deviation,
    fewer_networks,
    grouped,
    pooled,
    sample_mean,
    width_effect,
)

if TYPE_CHECKING:
    from matplotlib.figure import FigureBase

Array = NDArray[np.float64]

_COARSE = (4, 8, 32, 100)
_MEDIUM = (4, 5, 6, 8, 12, 16, 24, 40, 64, 100)
_FINE = (4, 5, 6, 7, 8, 10, 12, 16, 20, 24, 32, 40, 50, 64, 80, 100)
# Batch sizes, width, depth, networks per cell and cells per batch size.
_EFFORT = {
    "smoke": (_COARSE, 200, 10, 6, 1),
    "small": (_MEDIUM, 1000, 20, 6, 2),
    "paper": (_FINE, 1000, 20, 10, 20),
}
_NAMES = ("G", "L", "M")
# E‖h‖⁻⁴ is infinite below: averages over neurons then have no standard error.
_SMALLEST_JUDGED = 6
_LIMIT = math.pi / (math.pi - 1)
_FIRST, _LAST = 8, 100
_LEVEL_OF_M, _TOLERANCE_OF_M = 0.73, 0.02


@dataclass(frozen=True, slots=True)
class Eigenvalues:
    """Eigenvalues along G, L and M.

    Args:
        measured: In the last layer of each network, ``[networks][3]``.
        predicted: From theory, ``[3]``.
    """

    measured: tuple[tuple[float, ...], ...]
    predicted: tuple[Estimate, ...]


@dataclass(frozen=True, slots=True)
class EigenvalueSample(Cell[Eigenvalues]):
    """Some random networks at one batch size."""

    batch_size: int
    width: int
    depth: int
    networks: int
    seed: int

    def run(self) -> Eigenvalues:
        """Measure the eigenvalues in the networks, and predict them."""
        spectra = theory.simulate_spectra(
            "relu",
            self.batch_size,
            width=self.width,
            depth=self.depth,
            networks=self.networks,
            generator=torch.Generator().manual_seed(self.seed),
        )
        expected = theory.backward_spectrum("relu", self.batch_size)
        measured = tuple(tuple(map(float, row)) for row in spectra.backward)
        return Eigenvalues(measured, (expected.G, expected.L, expected.M))


@dataclass(frozen=True, slots=True, eq=False)
class Column:
    """All samples at one batch size, ``[networks, 3]``, and theory, ``[3]``."""

    batch_size: int
    width: int
    samples: Array
    theory: tuple[float, ...]


def cells(scale: Scale) -> tuple[EigenvalueSample, ...]:
    """All batch sizes; networks are split over several cells, so that a kill loses little."""
    batch_sizes, width, depth, networks, blocks = _EFFORT[scale]
    return tuple(
        EigenvalueSample(batch_size, width, depth, networks, seed=1000 * batch_size + block)
        for batch_size in batch_sizes
        for block in range(blocks)
    )


def draw(figure: FigureBase, results: Mapping[EigenvalueSample, Eigenvalues]) -> None:
    """Draw three measured curves with theory on top."""
    axes = figure.subplots()
    columns = _columns(results)
    sizes = [column.batch_size for column in columns]
    for index, name in enumerate(_NAMES):
        samples = [column.samples[:, index] for column in columns]
        means, deviations = [s.mean() for s in samples], [deviation(s) for s in samples]
        style.measured(axes, sizes, means, deviations, index, rf"$\lambda_{name}$, networks")
        style.predicted(axes, sizes, [column.theory[index] for column in columns], index)
    axes.axhline(_LIMIT, color=style.MUTED, linestyle=":", label=r"limit $\pi/(\pi-1)$")
    axes.plot([], [], color=style.INK, linestyle=style.DASHES, label="theory")
    axes.set_xscale("log")
    axes.set_xticks(ticks := (4, 8, 16, 32, 64, 100), [str(tick) for tick in ticks])
    axes.minorticks_off()
    axes.set_xlabel("batch size B")
    axes.set_ylabel("eigenvalue, factor per layer")
    axes.set_title("Backward eigenvalues (ReLU, ±1 sd over networks)")
    axes.legend()


def judge(results: Mapping[EigenvalueSample, Eigenvalues]) -> Verdict:
    """Check agreement with theory, and how each eigenvalue changes with the batch size."""
    columns = [c for c in _columns(results) if c.batch_size >= _SMALLEST_JUDGED]
    by_size = {column.batch_size: column for column in columns}
    first, last = by_size[_FIRST], by_size[_LAST]
    checks = [_agreement(columns, index) for index in range(len(_NAMES))]
    checks += [_towards_limit(first, last), _below(columns), _same_limit(first, last)]
    return Verdict((*checks, _level_of_m(columns)), fewer_networks(results))


def _agreement(columns: list[Column], index: int) -> Check:
    """Compare one eigenvalue at all batch sizes, and report the worst."""
    excesses = []
    for column in columns:
        found, expected = sample_mean(column.samples[:, index]), column.theory[index]
        allowed = 3 * found.error + width_effect(column.width) * expected
        excesses.append(
            (abs(found.value - expected) / allowed, column.batch_size, found, expected)
        )
    worst, batch_size, found, expected = max(excesses, key=lambda excess: excess[0])
    share = wording.number(width_effect(columns[0].width) * 100, 2)
    return Check(
        f"λ_{_NAMES[index]} is as predicted at every B from {_SMALLEST_JUDGED} on (within 3 "
        f"standard errors + {share} %, for finite width)",
        f"worst at B = {batch_size}: {wording.spread(found)}, predicted "
        f"{wording.number(expected, 4)}",
        worst <= 1,
    )


def _towards_limit(first: Column, last: Column) -> Check:
    start, end = (sample_mean(column.samples[:, 0]) for column in (first, last))
    near = abs(end.value - _LIMIT) < 0.1 * abs(start.value - _LIMIT) + 3 * end.error
    begins = abs(start.value - 1.79) < 3 * start.error + width_effect(first.width) * start.value
    return Check(
        f"λ_G goes from 1.79 at B = {_FIRST} nine tenths of the way to "
        f"π/(π − 1) = {_LIMIT:.3f} at B = {_LAST}",
        f"from {wording.spread(start)} to {wording.spread(end)}",
        near and begins,
    )


def _below(columns: list[Column]) -> Check:
    gaps = {c.batch_size: sample_mean(c.samples[:, 0] - c.samples[:, 1]) for c in columns}
    smallest = min(gaps, key=lambda batch_size: gaps[batch_size].value)
    return Check(
        "λ_L lies below λ_G at every B (by 3 standard errors of the difference)",
        f"least at B = {smallest}: by {wording.spread(gaps[smallest])}",
        all(gap.value > 3 * gap.error for gap in gaps.values()),
    )


def _same_limit(first: Column, last: Column) -> Check:
    start, end = (sample_mean(c.samples[:, 0] - c.samples[:, 1]) for c in (first, last))
    return Check(
        f"λ_L has the same limit: the gap to λ_G shrinks to a tenth from B = {_FIRST} to {_LAST}",
        f"from {wording.spread(start)} to {wording.spread(end)}",
        end.value < 0.1 * start.value,
    )


def _level_of_m(columns: list[Column]) -> Check:
    means = {c.batch_size: sample_mean(c.samples[:, 2]) for c in columns}
    values = [mean.value for mean in means.values()]
    return Check(
        f"λ_M ≈ {_LEVEL_OF_M:g} from B = {_SMALLEST_JUDGED} on (±{_TOLERANCE_OF_M:g} and 3 "
        "standard errors)",
        f"between {wording.number(min(values))} and {wording.number(max(values))}",
        all(
            abs(mean.value - _LEVEL_OF_M) <= _TOLERANCE_OF_M + 3 * mean.error
            for mean in means.values()
        ),
    )


def _columns(results: Mapping[EigenvalueSample, Eigenvalues]) -> list[Column]:
    columns = []
    for batch_size, group in grouped(results, lambda cell: cell.batch_size).items():
        (cell, record), samples = group[0], pooled(record.measured for _, record in group)
        predicted = tuple(estimate.value for estimate in record.predicted)
        columns.append(Column(batch_size, cell.width, samples, predicted))
    return columns


EXPERIMENT = Experiment(
    name="yang2019.fig1a",
    title="ReLU: eigenvalues of the backward operator over the batch size",
    claim="λ_G falls from 1.79 at B = 8 towards π/(π − 1) = 1.467, λ_L lies below it with the "
    "same limit, λ_M ≈ 0.73; networks agree with theory.",
    choices=(
        "eigenvalues of one layer's operator, averaged over the neurons of a network's last "
        "layer; inputs are independent Gaussian samples",
        "drawn from B = 4 on and judged from B = 6 on: below, the average over neurons has "
        "infinite variance",
        "smoke: 6 networks, width 200, 10 layers; small: 12 networks, width 1000, 20 layers; "
        "paper: 200 networks",
    ),
    cells=cells,
    draw=draw,
    judge=judge,
)
