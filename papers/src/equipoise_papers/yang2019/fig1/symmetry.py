"""Fig. 1c: the symmetry between samples breaks as the power α of α-ReLU grows."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Literal

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
from equipoise_papers.yang2019.fig1.wide_networks import deep_covariances, entry_variances
from equipoise_papers.yang2019.samples import deviation, grouped, pooled

if TYPE_CHECKING:
    from matplotlib.figure import FigureBase

Array = NDArray[np.float64]
Method = Literal["infinite width", "networks"]

_BATCH_SIZE, _WIDTH = 10, 1000
# α = 1/2 itself is left out: there the slope has no second moment, and theory does not apply.
_COARSE = (0.6, 1.0, 1.3, 1.5, 2.0)
_MEDIUM = (0.55, 0.8, 1.0, 1.2, 1.3, 1.35, 1.4, 1.45, 1.5, 1.6, 1.8, 2.0)
_FINE = (0.55, *(round(0.6 + 0.05 * k, 2) for k in range(29)), 1.375, 1.425)
# Powers, layers, networks per cell, cells of networks, and starts of the map.
_EFFORT = {
    "smoke": (_COARSE, 60, 10, 1, 1),
    "small": (_MEDIUM, 200, 25, 2, 1),
    "paper": (_FINE, 200, 50, 4, 3),
}
_PERTURBATION = 0.3
# At this distance from the transition both phases are settled after the layers above.
_AWAY = 0.09
# Across the transition the exact map jumps from zero; networks from their noise of order 1/width.
_JUMP: dict[Method, float] = {"infinite width": 100.0, "networks": 10.0}
# Least variances of a broken state's diagonal and off-diagonal entries; BSB1's are below 1.
_BROKEN = (0.1, 0.001)
_ENTRIES = (r"$\Sigma_{aa}$", r"$\Sigma_{ab},\ a \neq b$")
_LOWEST_DRAWN = 1e-5


@dataclass(frozen=True, slots=True)
class Variances:
    """Variances of the entries of the deepest covariance, one per network.

    Args:
        diagonal: Over samples, of Σ_aa.
        off_diagonal: Over pairs of samples, of Σ_ab.
        transition: Where theory says that BSB1 becomes unstable.
    """

    diagonal: tuple[float, ...]
    off_diagonal: tuple[float, ...]
    transition: Estimate


@dataclass(frozen=True, slots=True)
class VarianceSample(Cell[Variances]):
    """Some networks, or one run of the exact map (``networks`` = 1), at one power."""

    method: Method
    alpha: float
    batch_size: int
    width: int
    depth: int
    networks: int
    seed: int

    def run(self) -> Variances:
        """Propagate the covariance to the last layer."""
        generator = torch.Generator().manual_seed(self.seed)
        activation = theory.as_activation(f"alpha_relu({self.alpha})")
        if self.method == "networks":
            covariances = deep_covariances(
                activation,
                self.batch_size,
                width=self.width,
                depth=self.depth,
                networks=self.networks,
                generator=generator,
            )
        else:
            trajectory = theory.iterate_map(
                activation,
                self.batch_size,
                steps=self.depth,
                perturbation=_PERTURBATION,
                generator=generator,
            )
            covariances = torch.from_numpy(trajectory.covariances[-1:])
        diagonal, off_diagonal = (tuple(v.tolist()) for v in entry_variances(covariances))
        return Variances(diagonal, off_diagonal, theory.alpha_transition(self.batch_size))


def cells(scale: Scale) -> tuple[VarianceSample, ...]:
    """Networks and the exact map at every power."""
    powers, depth, networks, blocks, starts = _EFFORT[scale]
    sized = [
        VarianceSample("networks", alpha, _BATCH_SIZE, _WIDTH, depth, networks, seed)
        for alpha in sorted(powers)
        for seed in range(blocks)
    ]
    infinite = [
        VarianceSample("infinite width", alpha, _BATCH_SIZE, 0, depth, 1, seed)
        for alpha in sorted(powers)
        for seed in range(starts)
    ]
    return (*sized, *infinite)


def draw(figure: FigureBase, results: Mapping[VarianceSample, Variances]) -> None:
    """Draw both variances on a log scale, measured and exact."""
    axes = figure.subplots()
    for method, curve in _curves(results).items():
        powers = list(curve)
        for index, entries in enumerate(_ENTRIES):
            means = [float(samples[:, index].mean()) for samples in curve.values()]
            if method == "infinite width":
                style.predicted(axes, powers, means, index)
                continue
            spreads = [deviation(samples[:, index]) for samples in curve.values()]
            # A bar that reaches zero would be infinitely long.
            down = [min(s, 0.9 * mean) for s, mean in zip(spreads, means, strict=True)]
            label = f"variance of {entries}, networks"
            style.measured(axes, powers, means, [down, spreads], index, label)
    axes.plot([], [], color=style.INK, linestyle=style.DASHES, label="infinite width")
    transition = _transition(results)
    style.marked(axes, transition, rf"predicted transition, $\alpha$ = {transition:.2f}")
    axes.set_yscale("log")
    axes.set_ylim(bottom=_LOWEST_DRAWN)
    axes.set_xlabel("power α of the α-ReLU")
    axes.set_ylabel("variance of the covariance's entries")
    axes.set_title(f"Symmetry breaking (B = {_BATCH_SIZE}, ±1 sd over networks)")
    axes.legend(loc="upper left")


def judge(results: Mapping[VarianceSample, Variances]) -> Verdict:
    """Check that both variances jump at the transition, in networks and in the exact map."""
    curves, transition = _curves(results), _transition(results)
    checks = [
        _jump(method, curve, transition, index)
        for method, curve in curves.items()
        for index in range(len(_ENTRIES))
    ]
    return Verdict((*checks, _steepest(curves["networks"], transition)))


def _jump(method: Method, curve: Mapping[float, Array], transition: float, index: int) -> Check:
    entries = ("diagonal", "off-diagonal")[index]
    means = {alpha: float(samples[:, index].mean()) for alpha, samples in curve.items()}
    below = max(mean for alpha, mean in means.items() if alpha <= transition - _AWAY)
    above = min(mean for alpha, mean in means.items() if alpha >= transition + _AWAY)
    return Check(
        f"{method}: the variance of {entries} entries jumps at α = {transition:.2f}, by a factor "
        f"of at least {_JUMP[method]:g} to at least {_BROKEN[index]:g}",
        f"at most {wording.number(below, 2)} below, at least {wording.number(above, 2)} above",
        above >= max(_JUMP[method] * below, _BROKEN[index]),
    )


def _steepest(curve: Mapping[float, Array], transition: float) -> Check:
    """Find the step of α in which the variance grows fastest."""
    logs = {alpha: math.log(samples[:, 0].mean()) for alpha, samples in curve.items()}
    low, high = max(pairwise(logs), key=lambda ab: (logs[ab[1]] - logs[ab[0]]) / (ab[1] - ab[0]))
    return Check(
        f"networks: the variance rises most steeply at α = {transition:.2f} (±0.1)",
        f"between α = {low:g} and {high:g}",
        low - 0.1 <= transition <= high + 0.1 and high - low <= 0.2 + 1e-9,
    )


def _curves(results: Mapping[VarianceSample, Variances]) -> dict[Method, dict[float, Array]]:
    """Samples ``[networks, 2]``, diagonal and off-diagonal, by method and power."""
    curves: dict[Method, dict[float, Array]] = {}
    for (method, alpha), group in grouped(results, lambda c: (c.method, c.alpha)).items():
        columns = (
            pooled(record.diagonal for _, record in group),
            pooled(record.off_diagonal for _, record in group),
        )
        curves.setdefault(method, {})[alpha] = np.stack(columns, axis=1)
    return curves


def _transition(results: Mapping[VarianceSample, Variances]) -> float:
    return next(iter(results.values())).transition.value


EXPERIMENT = Experiment(
    name="yang2019.fig1c",
    title="α-ReLU at B = 10: variances of the covariance's entries over α",
    claim="Var(Σ_aa) and Var(Σ_ab) jump at the transition from BSB1 to BSB2, at α ≈ 1.40.",
    choices=(
        "variances of the diagonal and of the off-diagonal entries, as the legend says; the "
        "caption speaks of eigenvalues",
        "α from 0.55, as slopes have no second moment at 1/2; grids of 5 (smoke), 12 (small) "
        "or 32 powers (paper)",
        "networks of width 1000 after 60 (smoke) or 200 layers, 10, 50 or 200 of them, fed "
        "with independent Gaussian samples; drawn from their exact law layer by layer",
        f"the exact map starts at BSB1 with samples perturbed by {_PERTURBATION:g}; from one "
        "start, or three at paper scale; several broken states coexist",
    ),
    cells=cells,
    draw=draw,
    judge=judge,
)
