"""The lines of Figs. 2 and 4: predicted trainable depth along one of batch norm's parameters."""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise

from equipoise import theory
from equipoise.records import Estimate
from equipoise.report import wording
from equipoise_papers.experiments.verdict import Check, ours
from equipoise_papers.sweeps.cell import Cell
from equipoise_papers.yang2019.samples import grouped

# Where the source's Fig. 4c, d have their phase transition.
_CLAIMED_EPS = 1.0


@dataclass(frozen=True, slots=True)
class Prediction:
    r"""What theory predicts at one point.

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


@dataclass(frozen=True, slots=True)
class LinePoint(Cell[Prediction]):
    """One point of a line; ``parameter`` names the field that varies along it."""

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

    def run(self) -> Prediction:
        """Predict."""
        rate = growth(self.activation, self.batch_size, self.eps, self.gamma, self.beta)
        linear = theory.explosion_rate("identity", self.batch_size)
        kinked = self.activation == "relu" and self.beta == 0
        return Prediction(
            rate=rate,
            depth=theory.max_trainable_depth(rate),
            linear_depth=theory.max_trainable_depth(linear),
            critical_eps=None
            if kinked
            else theory.critical_eps(self.activation, gamma=self.gamma, beta=self.beta),
        )


# Positions and predictions, rising.
Line = Sequence[tuple[float, Prediction]]


@lru_cache(maxsize=64)
def growth(activation: str, batch_size: int, eps: float, gamma: float, beta: float) -> Estimate:
    """Predict the growth of the squared gradient norm per layer."""
    with warnings.catch_warnings():  # whether the state is stable is recorded with the rate
        warnings.simplefilter("ignore", theory.UnstableFixedPointWarning)
        return theory.explosion_rate(activation, batch_size, eps=eps, gamma=gamma, beta=beta)


def lines(points: Mapping[LinePoint, Prediction]) -> dict[int, Line]:
    """Points by batch size, along the parameter."""
    return {
        batch_size: sorted(
            ((point.position, prediction) for point, prediction in group),
            key=lambda pair: pair[0],
        )
        for batch_size, group in grouped(points, lambda point: point.batch_size).items()
    }


def monotone(claim: str, points: Mapping[LinePoint, Prediction], *, rising: bool) -> list[Check]:
    """Check that depth changes in one direction along the line of each batch size."""
    checks = []
    for batch_size, line in lines(points).items():
        depths = [prediction.depth for _, prediction in line]
        holds = all((b > a) == rising and a != b for a, b in pairwise(depths))
        text = f"from {wording.depth(depths[0])} to {wording.depth(depths[-1])} layers"
        checks.append(Check(f"B = {batch_size}: {claim}", text, holds))
    return checks


def divergence(points: Mapping[LinePoint, Prediction]) -> list[Check]:
    """Check that depth diverges at ε = 1, quadratically from below, and only there."""
    checks = []
    for batch_size, line in lines(points).items():
        critical = line[0][1].critical_eps or math.nan
        below = [(_CLAIMED_EPS - at, point) for at, point in line if at < _CLAIMED_EPS]
        above = [point for at, point in line if at > _CLAIMED_EPS]
        (far, first), (near, last) = below[-2:]
        power = math.log(last.depth / first.depth) / math.log(near / far)
        deepest = max(line, key=lambda pair: pair[1].depth)[0]
        nearest = min(line, key=lambda pair: abs(pair[0] - _CLAIMED_EPS))[0]
        prefix = f"B = {batch_size}:"
        own = (
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
        )
        checks += [
            *(ours(check) for check in own),
            Check(
                f"{prefix} predicted: gradients explode below ε = 1 and vanish above",
                f"λ_G from {wording.number(below[0][1].rate.value, 4)} to "
                f"{wording.number(above[-1].rate.value, 4)}",
                all(point.rate.value > 1 for _, point in below)
                and all(point.rate.value < 1 for point in above),
            ),
        ]
    return checks
