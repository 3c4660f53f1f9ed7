"""How good the verdict is on families that it was not fitted to, beside others' scores."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from equipoise_papers.trainability import fitting
from equipoise_papers.trainability.calibrate import BASES, Table, table
from equipoise_papers.trainability.fitting import Array
from equipoise_papers.trainability.outcome import TRAINED, Outcome, designs

EARLY = "train a fifth of the steps and look"
# A predicted depth is right within a fifth of the observed one.
NEAR = math.log(1.2)
_ODDS_OF_NEVER = 50.0


@dataclass(frozen=True, slots=True)
class Standing:
    """How well a number tells which networks train.

    Args:
        name: Of the number.
        area: ROC AUC over all networks.
        low: Lower end of its interval over draws of designs.
        high: Upper end.
        by_family: ROC AUC within each family, by name; NaN where all or none trained.
        calibration: Expected calibration error; ``None`` for scores that are no probabilities.
    """

    name: str
    area: float
    low: float
    high: float
    by_family: dict[str, float]
    calibration: float | None = None


@dataclass(frozen=True, slots=True)
class DepthLimit:
    """At how many blocks a design stops to train.

    Args:
        family: Of the design.
        observed: Interpolated over the logarithm of the depth where progress falls below one half.
        predicted: Where the probability does, by a fit without the family. Both are 0 if not even
            the shallowest network trains, infinite if the deepest does.
    """

    family: str
    observed: float
    predicted: float

    @property
    def is_near(self) -> bool:
        """Whether the two are within a fifth of each other."""
        if self.observed == self.predicted:
            return True
        if not (0 < self.observed < math.inf and 0 < self.predicted < math.inf):
            return False
        return abs(math.log(self.predicted / self.observed)) <= NEAR


def standings(found: Sequence[Outcome], threshold: float = TRAINED) -> tuple[Standing, ...]:
    """The verdict on each basis, then every other score, then a short training.

    Args:
        found: Outcomes of all networks.
        threshold: Progress of a network that trained.
    """
    data = table(found, threshold)
    ours = [_standing(f"Equipoise, {b}", data.held_out(b), data, calibrated=True) for b in BASES]
    others = [
        _standing(name, np.array([one.known.scores[name] for one in found]), data)
        for name in found[0].known.scores
    ]
    early = np.array([max(one.early, -1e3) for one in found])
    return (*ours, *sorted(others, key=lambda one: -one.area), _standing(EARLY, early, data))


def _standing(name: str, score: Array, data: Table, *, calibrated: bool = False) -> Standing:
    score = np.nan_to_num(score, nan=-1e300, posinf=1e300, neginf=-1e300)

    def area(rows: NDArray[np.intp]) -> float:
        chosen = data.trained[rows]
        if chosen.min() == chosen.max():
            return math.nan
        return fitting.area_under_curve(score[rows], chosen)

    low, high = fitting.interval(area, data.designs)
    names = np.array(data.families)
    return Standing(
        name,
        area(np.arange(len(score))),
        low,
        high,
        {family: area(np.flatnonzero(names == family)) for family in sorted(set(data.families))},
        fitting.calibration_error(score, data.trained) if calibrated else None,
    )


def depth_limits(found: Sequence[Outcome], basis: str = "both") -> tuple[DepthLimit, ...]:
    """Every design's limit, observed and predicted, where it has networks of two depths."""
    data = table(found)
    odds = dict(zip((one.network for one in found), _log_odds(data.held_out(basis)), strict=True))
    limits = []
    for own in designs(found).values():
        if len(own) < 2:
            continue
        depths = [one.network.depth for one in own]
        observed = crossing(depths, [one.progress - TRAINED for one in own])
        predicted = crossing(depths, [odds[one.network] for one in own])
        limits.append(DepthLimit(own[0].network.family, observed, predicted))
    return tuple(limits)


def crossing(depths: Sequence[float], values: Sequence[float]) -> float:
    """The first depth at which values fall below 0, interpolated over its logarithm.

    Returns:
        0 if the first value is negative, infinite if none is.

    Examples:
        >>> round(crossing([1, 4, 16], [2.0, 1.0, -1.0]), 6), crossing([1, 4], [2.0, 1.0])
        (8.0, inf)
    """
    if values[0] < 0:
        return 0.0
    for (depth, value), (following, reached) in pairwise(zip(depths, values, strict=True)):
        if reached < 0:
            part = value / (value - reached)
            return float(depth * (following / depth) ** part)
    return math.inf


def share_near(limits: Sequence[DepthLimit], wanted: Callable[[DepthLimit], bool]) -> float:
    """The share of wanted limits that were predicted within a fifth."""
    chosen = [limit for limit in limits if wanted(limit)]
    return sum(limit.is_near for limit in chosen) / len(chosen) if chosen else math.nan


def _log_odds(probability: Array) -> Array:
    with np.errstate(divide="ignore"):
        odds = np.log(probability) - np.log1p(-probability)
    return np.asarray(np.clip(odds, -_ODDS_OF_NEVER, _ODDS_OF_NEVER))
