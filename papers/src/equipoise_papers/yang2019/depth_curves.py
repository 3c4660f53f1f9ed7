"""Predicted maximum trainable depth along one of batch norm's parameters: Figs. 2 and 4."""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from typing import TYPE_CHECKING

from equipoise import theory
from equipoise.records.estimate import Estimate
from equipoise.report import wording
from equipoise_papers.reproduction import style
from equipoise_papers.reproduction.record import Check
from equipoise_papers.yang2019.pooling import grouped

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# Where the source's Fig. 4c, d have their phase transition.
_CLAIMED_EPS = 1.0


@dataclass(frozen=True, slots=True)
class Cell:
    """One point of a curve; ``parameter`` names the one that varies along it."""

    parameter: str
    activation: str
    batch_size: int
    eps: float = 0.0
    gamma: float = 1.0
    beta: float = 0.0

    @property
    def position(self) -> float:
        """Value of the parameter that varies."""
        return float(getattr(self, self.parameter))


@dataclass(frozen=True, slots=True)
class Point:
    r"""What theory predicts there.

    Args:
        rate: Growth of the squared gradient norm per layer.
        depth: :math:`16\,|\xi|`, the predicted maximum trainable depth.
        linear_depth: The same of a linear network at ε = 0, :math:`16/\ln\frac{B-2}{B-3}`.
        critical_eps: ε at which ξ diverges; ``None`` where it depends on the batch size.
    """

    rate: Estimate
    depth: float
    linear_depth: float
    critical_eps: float | None


@lru_cache(maxsize=64)
def growth(activation: str, batch_size: int, eps: float, gamma: float, beta: float) -> Estimate:
    """Predict the growth of the squared gradient norm per layer."""
    with warnings.catch_warnings():  # whether the state is stable is recorded with the rate
        warnings.simplefilter("ignore", theory.UnstableFixedPointWarning)
        return theory.explosion_rate(activation, batch_size, eps=eps, gamma=gamma, beta=beta)


def run(cell: Cell) -> Point:
    """Predict one point."""
    rate = growth(cell.activation, cell.batch_size, cell.eps, cell.gamma, cell.beta)
    kinked = cell.activation == "relu" and cell.beta == 0
    return Point(
        rate=rate,
        depth=theory.max_trainable_depth(rate),
        linear_depth=theory.max_trainable_depth(
            theory.explosion_rate("identity", cell.batch_size)
        ),
        critical_eps=None
        if kinked
        else theory.critical_eps(cell.activation, gamma=cell.gamma, beta=cell.beta),
    )


def curves(results: Mapping[Cell, Point]) -> dict[int, list[tuple[float, Point]]]:
    """Points by batch size, along the parameter."""
    return {
        batch_size: sorted(
            ((cell.position, point) for cell, point in group), key=lambda pair: pair[0]
        )
        for batch_size, group in grouped(results, lambda cell: cell.batch_size).items()
    }


def draw_curves(axes: Axes, results: Mapping[Cell, Point]) -> None:
    """Draw dashed lines per batch size on a log scale of depth."""
    for index, (batch_size, curve) in enumerate(curves(results).items()):
        # Growing and vanishing gradients are two branches: no line leads from one to the other.
        for grows, label in ((True, f"B = {batch_size}"), (False, None)):
            branch = [(at, point) for at, point in curve if (point.rate.value > 1) == grows]
            at, depths = [at for at, _ in branch], [point.depth for _, point in branch]
            style.predicted(axes, at, depths, index, label)
    axes.set_yscale("log")
    axes.set_ylabel("maximum trainable depth 16|ξ| (layers)")


def monotone(
    claim: str, results: Mapping[Cell, Point], *, rising: bool, outside: Sequence[float] = ()
) -> list[Check]:
    """Whether depth changes in one direction along each batch size's curve."""
    checks = []
    for batch_size, curve in curves(results).items():
        depths = [point.depth for at, point in curve if at not in outside]
        holds = all((b > a) == rising and a != b for a, b in pairwise(depths))
        text = f"from {wording.depth(depths[0])} to {wording.depth(depths[-1])} layers"
        checks.append(Check(f"B = {batch_size}: {claim}", text, holds))
    return checks


def divergence(results: Mapping[Cell, Point]) -> list[Check]:
    """Whether depth diverges at ε = 1, quadratically from below, and only there."""
    checks = []
    for batch_size, curve in curves(results).items():
        critical = curve[0][1].critical_eps or math.nan
        below = [(_CLAIMED_EPS - at, point) for at, point in curve if at < _CLAIMED_EPS]
        above = [point for at, point in curve if at > _CLAIMED_EPS]
        (far, first), (near, last) = below[-2:]
        power = math.log(last.depth / first.depth) / math.log(near / far)
        deepest = max(curve, key=lambda pair: pair[1].depth)[0]
        nearest = min(curve, key=lambda pair: abs(pair[0] - _CLAIMED_EPS))[0]
        prefix = f"B = {batch_size}:"
        checks += [
            Check(
                f"{prefix} deepest at the ε nearest to 1, the critical one",
                f"at ε = {deepest:g}; critical is {critical:g}",
                deepest == nearest and abs(critical - _CLAIMED_EPS) < 1e-9,
            ),
            Check(
                f"{prefix} ξ grows as (1 − ε)^−2 just below (−1.9 to −2.1)",
                f"power {wording.number(power)}",
                abs(power + 2) < 0.1,
            ),
            Check(
                f"{prefix} gradients explode below 1 and vanish above",
                f"λ_G from {wording.number(below[0][1].rate.value, 4)} to "
                f"{wording.number(above[-1].rate.value, 4)}",
                all(point.rate.value > 1 for _, point in below)
                and all(point.rate.value < 1 for point in above),
            ),
        ]
    return checks
