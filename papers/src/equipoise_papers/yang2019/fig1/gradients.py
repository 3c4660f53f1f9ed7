"""Fig. 1b: gradients of ReLU networks with batch norm grow exponentially towards the input."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
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
    agrees,
    deviation,
    fewer_networks,
    grouped,
    log_slopes,
    pooled,
    sample_mean,
    width_effect,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import FigureBase

Array = NDArray[np.float64]

_BATCH_SIZES = (8, 16, 32, 64, 128)
# Width, depth, networks per cell and cells per batch size.
_EFFORT = {"smoke": (128, 30, 4, 1), "small": (1000, 100, 5, 2), "paper": (1000, 100, 10, 20)}
# The first layers still carry the input's covariance.
_SETTLING = 2
# Above B ≈ 50 wide ReLU networks may leave BSB1 after some 50 layers; their gradients then grow
# by about 1 % less per layer (measured at B = 128: 0.8 to 1.2 % at widths 128, 400 and 1000). No
# tolerance hides that: it is a finding.
_BISTABLE_FROM = 56
# Standard errors by which chance alone is no explanation.
_CERTAIN = 5
# A line whose two halves differ by less is straight to the eye.
_STRAIGHT = 0.06


@dataclass(frozen=True, slots=True)
class Gradients:
    """Logarithms of squared gradient norms, ``[networks][depth]`` from input to output.

    Args:
        log_gradients: With respect to each layer's pre-activations.
        rate: Growth per layer from theory.
    """

    log_gradients: tuple[tuple[float, ...], ...]
    rate: Estimate


@dataclass(frozen=True, slots=True)
class GradientSample(Cell[Gradients]):
    """Some random networks at one batch size."""

    batch_size: int
    width: int
    depth: int
    networks: int
    seed: int

    def run(self) -> Gradients:
        """Simulate the networks."""
        generator = torch.Generator().manual_seed(self.seed)
        rows = []
        for _ in range(self.networks):  # one at a time: each holds depth × width² weights
            one = theory.simulate_networks(
                "relu",
                self.batch_size,
                width=self.width,
                depth=self.depth,
                networks=1,
                generator=generator,
            )
            rows.append(tuple(map(float, one.log_gradients[0])))
        return Gradients(tuple(rows), theory.explosion_rate("relu", self.batch_size))


def cells(scale: Scale) -> tuple[GradientSample, ...]:
    """All batch sizes; networks are split over several cells, so that a kill loses little."""
    width, depth, networks, blocks = _EFFORT[scale]
    return tuple(
        GradientSample(batch_size, width, depth, networks, seed=1000 * batch_size + block)
        for batch_size in _BATCH_SIZES
        for block in range(blocks)
    )


def draw(figure: FigureBase, results: Mapping[GradientSample, Gradients]) -> None:
    """Draw log gradients over layers, relative to the last layer, and how far slopes are off."""
    axes, off = figure.subplots(2, 1, height_ratios=(3, 1.2))
    _draw_slopes(off, results)
    for index, (batch_size, group) in enumerate(grouped(results, _batch_size).items()):
        growth = _growth(group)
        layers = np.arange(1, growth.shape[1] + 1)
        mean, spread = growth.mean(0), [deviation(column) for column in growth.T]
        colour = style.PALETTE[index]
        axes.plot(layers, mean, color=colour, alpha=0.5, linewidth=3, label=f"B = {batch_size}")
        axes.fill_between(layers, mean - spread, mean + spread, color=colour, alpha=0.2, lw=0)
        slope = math.log(group[0][1].rate.value)
        style.predicted(axes, layers, slope * (layers[-1] - layers), index)
    axes.plot(
        [], [], color=style.INK, linestyle=style.DASHES, label=r"theory, slope $-\ln\lambda_G$"
    )
    axes.set_xlabel("layer l, from input to output")
    axes.set_ylabel(r"$\ln(\|\partial E/\partial h^l\|^2\,/\,\|\partial E/\partial h^L\|^2)$")
    axes.set_title("Gradients explode towards the input (ReLU, ±1 sd)")
    axes.legend()


def _draw_slopes(axes: Axes, results: Mapping[GradientSample, Gradients]) -> None:
    """Slopes less ln λ_G with three standard errors, and what finite width may do."""
    for index, (batch_size, group) in enumerate(grouped(results, _batch_size).items()):
        slopes = sample_mean(-log_slopes(_growth(group)[:, _SETTLING:]))
        gap = slopes.value - math.log(group[0][1].rate.value)
        style.measured(axes, [batch_size], [gap], [3 * slopes.error], index, "")
    allowance = width_effect(next(iter(results)).width)
    axes.axhspan(-allowance, allowance, color=style.MUTED, alpha=0.2, linewidth=0)
    axes.axhline(0, color=style.INK, linestyle=style.DASHES, linewidth=1.0)
    axes.axvspan(_BISTABLE_FROM, 2 * _BATCH_SIZES[-1], color=style.PALETTE[5], alpha=0.15)
    axes.text(_BISTABLE_FROM * 1.04, allowance, "symmetry may break", fontsize=7, va="bottom")
    axes.set_xscale("log", base=2)
    axes.set_xlim(_BATCH_SIZES[0] / 1.3, _BATCH_SIZES[-1] * 1.3)
    axes.set_xticks(_BATCH_SIZES, list(map(str, _BATCH_SIZES)))
    axes.set_xlabel("batch size B; bars: 3 standard errors; grey: effect of finite width")
    axes.set_ylabel("slope\n" r"minus $\ln\lambda_G$")


def judge(results: Mapping[GradientSample, Gradients]) -> Verdict:
    """Check slope and straightness of every line, and the height of the steepest."""
    checks = []
    for batch_size, group in grouped(results, _batch_size).items():
        growth, rate = _growth(group), group[0][1].rate.value
        allowance = width_effect(group[0][0].width)
        slopes = sample_mean(-log_slopes(growth[:, _SETTLING:]))
        claim = f"B = {batch_size}: slope ln λ_G ="
        checks += [
            _slope(agrees(claim, slopes, math.log(rate), allowance), batch_size, slopes, rate),
            _straight(batch_size, growth, math.log(rate)),
        ]
        if batch_size == _BATCH_SIZES[0]:
            steps = growth.shape[1] - 1 - _SETTLING
            top, expected = sample_mean(growth[:, _SETTLING]), steps * math.log(rate)
            claim = f"B = {batch_size}: height of the line after {steps} layers ="
            checks.append(agrees(claim, top, expected, steps * allowance))
    return Verdict(tuple(checks), fewer_networks(results))


def _slope(check: Check, batch_size: int, slopes: Estimate, rate: float) -> Check:
    """Refute a slope that is off by many standard errors where the symmetry may break."""
    off = abs(slopes.value - math.log(rate)) / slopes.error
    if batch_size < _BISTABLE_FROM or off < _CERTAIN:
        return check
    words = f"{check.found}, {off:.0f} standard errors: the symmetry between samples breaks"
    return replace(check, found=words, holds=False)


def _straight(batch_size: int, growth: Array, slope: float) -> Check:
    settled = growth[:, _SETTLING:]
    middle = settled.shape[1] // 2
    halves = log_slopes(settled[:, middle:]) - log_slopes(settled[:, :middle])
    bend = sample_mean(halves)
    holds = abs(bend.value) <= 3 * bend.error + _STRAIGHT * slope
    text = f"they differ by {wording.number(abs(bend.value) / slope * 100, 2)} %"
    text += f" ± {wording.number(bend.error / slope * 100, 1)} %"
    claim = f"B = {batch_size}: straight, upper and lower half equally steep"
    return Check(f"{claim} (3 standard errors + {_STRAIGHT * 100:g} %)", text, holds)


def _growth(group: list[tuple[GradientSample, Gradients]]) -> Array:
    logs = pooled(record.log_gradients for _, record in group)
    return np.asarray(logs - logs[:, -1:])


def _batch_size(cell: GradientSample) -> int:
    return cell.batch_size


EXPERIMENT = Experiment(
    name="yang2019.fig1b",
    title="ReLU: gradient size per layer for five batch sizes",
    claim="Squared gradient norms lie on straight lines of slope ln λ_G on a log scale; the "
    "axis reaches 60, as 100 · ln 1.788 = 58 at B = 8.",
    choices=(
        "inputs are independent Gaussian samples, the gradient that enters at the top is Gaussian",
        "±1 standard deviation over networks; norms relative to the last layer's; the first "
        "layer is lower, as its white input has a larger variance",
        "finite width may shift ln λ_G by 4/width; from B = 52 on wide ReLU networks may leave "
        "the BSB1 state, and their gradients then grow by about 1 % less per layer: there what is "
        f"off by {_CERTAIN:g} standard errors or more counts as refuted, within that shift or not",
        "smoke: 4 networks, width 128, 30 layers; small: 10 networks, width 1000, 100 layers; "
        "paper: 200 networks",
    ),
    cells=cells,
    draw=draw,
    judge=judge,
)
