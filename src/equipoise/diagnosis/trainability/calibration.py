r"""The model of the benchmark's trainings: a logistic function of few quantities.

.. math:: \log\frac{P}{1 - P} = a - \sum_i b_i x_i, \qquad b_i \ge 0,

with the quantities x of :mod:`~equipoise.diagnosis.trainability.quantities`; the size of the batch
is the one that speaks for training. The numbers are those of ``calibration.json``, which
``papers/benchmarks/calibrate_trainability.py`` writes from the records of the benchmark.
"""

from __future__ import annotations

import json
import math
from bisect import bisect_left, bisect_right
from dataclasses import dataclass, replace
from functools import cache
from importlib.resources import files
from typing import Literal

import numpy as np

from equipoise.diagnosis.trainability.record import NAMES, Quantities
from equipoise.records.codec import from_plain

Basis = Literal["measured", "both"]

# Quantities that make training more probable.
FAVOURABLE = ("samples",)
# Standard normal quantile of 9 of 10 cases.
_TWO_SIDED = 1.645
# Error of the log-odds of a network outside the range of the benchmark.
_OUTSIDE = 1.5
# Networks of the benchmark that one is compared with: those nearest in probability.
_ALIKE = 100
_FEWEST_ALIKE = 10


@dataclass(frozen=True, slots=True)
class Fit:
    """One fitted model.

    Args:
        intercept: a.
        coefficients: b of each quantity, by name, as a factor of the log-odds; none is of the
            wrong sign.
        covariance: Of a and the coefficients, over draws of the benchmark's designs.
        held_out: Probability of every network of the benchmark, from a fit without its family, in
            ascending order.
        trained: Whether each of them trained, 1 or 0.
    """

    intercept: float
    coefficients: dict[str, float]
    covariance: tuple[tuple[float, ...], ...]
    held_out: tuple[float, ...]
    trained: tuple[int, ...]

    def log_odds(self, quantities: Quantities) -> float:
        """Of training."""
        return self.intercept + sum(self.terms(quantities).values())

    def terms(self, quantities: Quantities) -> dict[str, float]:
        """What each quantity adds to the log-odds."""
        return {name: self.coefficients[name] * getattr(quantities, name) for name in NAMES}

    def error(self, quantities: Quantities) -> float:
        """Standard error of the log-odds."""
        x = np.array([1.0, *quantities.values])
        return float(math.sqrt(max(0.0, x @ np.array(self.covariance) @ x)))

    def alike(self, probability: float) -> tuple[int, float]:
        """How many networks of the benchmark had about this probability, and how many trained.

        They are the nearest ones whose odds differ by less than a factor e, if there are enough.
        """
        # The middle of those that are equal to it.
        place = sum(side(self.held_out, probability) for side in (bisect_left, bisect_right)) // 2
        odds = probability / max(1 - probability, 1e-12)
        low, high = (odds * factor / (1 + odds * factor) for factor in (1 / math.e, math.e))
        near = bisect_right(self.held_out, high) - bisect_left(self.held_out, low)
        most = max(_FEWEST_ALIKE, min(_ALIKE, near))
        start = max(0, min(place - most // 2, len(self.held_out) - most))
        # Networks of equal probability are all alike.
        first, last = self.held_out[start], self.held_out[start : start + most][-1]
        start, end = bisect_left(self.held_out, first), bisect_right(self.held_out, last)
        return end - start, sum(self.trained[start:end]) / (end - start)


@dataclass(frozen=True, slots=True)
class Calibration:
    """What the benchmark has taught.

    Args:
        fits: A model for measured quantities, and one for means of predicted and measured ones.
        networks: Networks that were trained.
        trainings: Trainings.
        ranges: Smallest and largest value of each quantity among them.
    """

    fits: dict[str, Fit]
    networks: int
    trainings: int
    ranges: dict[str, tuple[float, ...]]

    def outside(self, quantities: Quantities) -> tuple[str, ...]:
        """Quantities beyond those of the benchmark."""
        return tuple(
            name
            for name, (low, high) in self.ranges.items()
            if not low <= getattr(quantities, name) <= high
        )


def interval(log_odds: float, error: float, *, outside: bool) -> tuple[float, float, float]:
    """Probability with the ends of its interval."""
    spread = _TWO_SIDED * math.hypot(error, _OUTSIDE if outside else 0.0)
    low, value, high = (
        1 / (1 + math.exp(-max(-700.0, min(700.0, odds))))
        for odds in (log_odds - spread, log_odds, log_odds + spread)
    )
    return value, low, high


def joined(predicted: Quantities | None, measured: Quantities) -> Quantities:
    """Means of what is predicted and what is measured.

    An explosion counts as far as both see it: theory makes too much of norms over few numbers,
    a single pass scatters. So does faintness: of matrices that theory does not reach, one may have
    a gradient. Of a network that is silent as yet nothing is measured.
    """
    if predicted is None:
        return measured
    if measured.silence == 1:
        return predicted
    pairs = zip(predicted.values, measured.values, strict=True)
    found = Quantities(*((one + other) / 2 for one, other in pairs))
    return replace(
        found,
        explosion=min(predicted.explosion, measured.explosion),
        faintness=min(predicted.faintness, measured.faintness),
    )


@cache
def calibration() -> Calibration:
    """Read what the package ships with."""
    text = files("equipoise.diagnosis.trainability").joinpath("calibration.json").read_text()
    return from_plain(Calibration, json.loads(text))
