"""Fields of settings along which numbers are smooth, and intervals of them.

Numbers are smooth in log γ, β, 1/B and log ε, except where a kink meets the end of what samples
span.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, fields
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from equipoise.theory.batch_norm.averages import compute
from equipoise.theory.batch_norm.averages.response import Response
from equipoise.theory.batch_norm.fixed_point.solution import Solution
from equipoise.theory.batch_norm.setting import Setting

Array = NDArray[np.float64]

# Relative error at which a polynomial is accepted.
GOAL = 1e-10
# A break this part of an interval away is one at its end.
_BESIDE = 0.05
# From here on coefficients fall fast enough also across what a kink leaves: like k^-6 and faster.
_SMOOTH_BATCH = 12


@dataclass(frozen=True, slots=True)
class Interval:
    """Coordinates between two ends, and whether numbers break there.

    They are x = low + (high − low) s; near a break s is like the square of a variable t from
    −1 to 1, which turns half-integer powers into whole ones.
    """

    low: float
    high: float
    breaks: tuple[bool, bool] = (False, False)

    def cut(self, end: float, start: float, breaks: bool = False) -> list[Interval]:
        """The parts up to one place and from another on, and whether numbers break there."""
        first, last = self.breaks
        return [
            Interval(self.low, end, (first, breaks)),
            Interval(start, self.high, (breaks, last)),
        ]

    def coordinates(self, t: Array) -> Array:
        """Give x at every t."""
        u = (1 + t) / 2
        s = {
            (False, False): u,
            (True, False): u * u,
            (False, True): u * (2 - u),
            (True, True): np.sin(np.pi / 2 * u) ** 2,
        }[self.breaks]
        # Ends are met exactly.
        return np.where(u < 1, self.low + (self.high - self.low) * s, self.high)

    def variables(self, x: Array) -> Array:
        """Give t at every x."""
        s = (x - self.low) / (self.high - self.low)
        rest = (self.high - x) / (self.high - self.low)
        u = {
            (False, False): s,
            (True, False): np.sqrt(s),
            (False, True): 1 - np.sqrt(rest),
            (True, True): 2 / np.pi * np.arctan2(np.sqrt(s), np.sqrt(rest)),
        }[self.breaks]
        return np.asarray(2 * u - 1)


@dataclass(frozen=True, slots=True)
class Axis:
    """A field of settings along which numbers are smooth.

    Args:
        name: The field.
        coordinate: In which they are smooth, from the field's value; infinite where there is none.
        width: The largest distance of two nodes: along β one standard deviation of what the
            activation sees, which numbers are averages over; at small batches, whose samples
            have sharp ends, they may still change within it.
        value: The field's value from the coordinate; None where nodes must be settings.
        breaks: Values of the field at which numbers are not smooth.
        enough: Relative error at which a polynomial is accepted where no higher degree would do
            or the degree is high.
        mirrored: Whether a value and its negative give the same numbers if φ is odd or even:
            normalised samples have the law of their negatives.
    """

    name: str
    coordinate: Callable[[float], float]
    width: Callable[[Setting, Solution], float]
    value: Callable[[float], float] | None
    breaks: Callable[[Setting], Array]
    enough: float = 1e-8
    mirrored: bool = False

    def at(self, setting: Setting) -> float:
        """The coordinate of a setting."""
        value = getattr(setting, self.name)
        if self.mirrored and setting.activation.is_symmetric:
            value = abs(value)
        return self.coordinate(value)

    def others(self, setting: Setting) -> tuple[Any, ...]:
        """The other fields, which all settings of a sweep along it share."""
        names = (field.name for field in fields(setting))
        return tuple(getattr(setting, name) for name in names if name != self.name)

    def intervals(self, first: Setting, last: Setting) -> list[Interval]:
        """Those between two settings that end where numbers break."""
        low, high = self.at(first), self.at(last)
        at = np.empty(0)
        if first.batch_size < _SMOOTH_BATCH:
            at = np.sort([self.coordinate(value) for value in self.breaks(first).tolist()])
        between = at[(at > low) & (at < high)].tolist()
        return [
            Interval(*ends, (_beside(at, *ends), _beside(at, *reversed(ends))))
            for ends in pairwise([low, *between, high])
        ]


def _beside(breaks: Array, end: float, other: float) -> bool:
    """Whether numbers break at or near one end of an interval."""
    return bool((abs(breaks - end) <= _BESIDE * abs(other - end)).any())


def _deviation(setting: Setting, solution: Solution) -> float:
    """About γR, the standard deviation of γRw + β."""
    kappa = solution.kappa.value
    return setting.gamma * math.sqrt(kappa / (kappa + setting.eps))


AXES = (
    Axis(
        *("gamma", math.log, lambda setting, solution: 1.0, math.exp),
        lambda setting: compute.gammas_of_breaks(Response.of(setting), setting.batch_size),
    ),
    Axis(
        *("beta", float, _deviation, float),
        lambda setting: compute.betas_of_breaks(Response.of(setting), setting.batch_size),
        mirrored=True,
    ),
    Axis(
        *("batch_size", lambda B: 1 / B, lambda setting, solution: 1.0, None),
        lambda setting: np.empty(0),
    ),
    Axis(
        "eps",
        lambda eps: math.log(eps) if eps else -math.inf,
        lambda setting, solution: 1.0,
        math.exp,
        lambda setting: np.empty(0),
        enough=GOAL,  # what is not shared along ε is solved fast
    ),
)
