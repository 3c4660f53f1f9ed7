"""Ratios of depths with their intervals, and when an interval decides a sentence.

A sentence holds, does not hold, or is undecided (``None``). Depths that differ by a quarter or
less count as the same. A sentence is decided if both ends of the interval, read that way, give
the same answer. NaN counts as undecided.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import stdtrit

from equipoise.report import wording

CONFIDENCE = 0.95
# The log of the largest ratio of depths that count as the same.
ALIKE = math.log(1.25)
_RESAMPLINGS = 1000

Array = NDArray[np.float64]
Places = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Ratio:
    """A mean ratio and its two-sided interval at 95 %.

    Args:
        value: Geometric mean over columns.
        low: Lower end of the interval.
        high: Upper end.
        columns: How many columns it is the mean of.
        unseen: How many further columns there are whose ratio is not known.
    """

    value: float
    low: float
    high: float
    columns: int
    unseen: int = 0

    @property
    def is_one(self) -> bool | None:
        """Whether the ratio is 1, within a quarter."""
        low, high = math.log(self.low), math.log(self.high)
        if low > ALIKE or high < -ALIKE:
            return False
        return True if low >= -ALIKE and high <= ALIKE and not self.unseen else None

    def times(self, factor: float) -> str:
        """Write the ratio times a factor, with its interval."""
        text = wording.number(factor * self.value)
        if self.columns > 1:
            low, high = (wording.number(factor * end) for end in (self.low, self.high))
            text += f" ({low} to {high} at 95 %)"
        seen = f" over {wording.count(self.columns, 'column')}"
        return text + seen + (f", {self.unseen} unseen" if self.unseen else "")


def mean_ratio(logs: Sequence[float], *, unseen: int = 0) -> Ratio:
    """Average ratios by their logarithms; the interval is Student's t over columns.

    Examples:
        >>> ratio = mean_ratio([math.log(0.5), math.log(2.0)])
        >>> round(ratio.value, 6), ratio.high > 1000  # two columns say little
        (1.0, True)
        >>> mean_ratio([]).is_one is None
        True
    """
    count = len(logs)
    if not count:
        return Ratio(math.nan, math.nan, math.nan, 0, unseen)
    mean = statistics.fmean(logs)
    if count == 1:
        return Ratio(math.exp(mean), 5e-324, math.inf, 1, unseen)
    quantile = float(stdtrit(count - 1, (1 + CONFIDENCE) / 2))
    width = quantile * statistics.stdev(logs) / math.sqrt(count)
    return Ratio(math.exp(mean), math.exp(mean - width), math.exp(mean + width), count, unseen)


@dataclass(frozen=True, slots=True)
class Noise:
    """Standard deviation of one seed's log boundary, pooled over columns.

    Args:
        deviation: Of a single seed; nan if unknown.
        freedom: Degrees of freedom of the estimate.
        seeds: Seeds per column.
    """

    deviation: float
    freedom: int
    seeds: int

    def width(self, *, columns: int, comparisons: int = 1) -> float:
        """How far above another column, or above a line, chance alone puts a column, at 95 %.

        Args:
            columns: 2 for the difference of two columns, 1 for that of a column and a line.
            comparisons: Number of differences of which the largest is tested (Bonferroni).

        Returns:
            The width in log depth, one-sided, by Student's t; nan if it is unknown.
        """
        if not self.freedom:
            return math.nan
        quantile = float(stdtrit(self.freedom, 1 - (1 - CONFIDENCE) / comparisons))
        return quantile * self.deviation * math.sqrt(columns / self.seeds)


def seed_noise(columns: Sequence[Sequence[float]]) -> Noise:
    """Pool the scatter of seeds over columns.

    Args:
        columns: Depth of every seed's boundary, column by column.
    """
    logs = [[math.log(depth) for depth in depths] for depths in columns if len(depths) > 1]
    freedom = sum(len(seeds) - 1 for seeds in logs)
    if not freedom:
        return Noise(math.nan, 0, 1)
    squares = sum(statistics.variance(seeds) * (len(seeds) - 1) for seeds in logs)
    return Noise(math.sqrt(squares / freedom), freedom, min(map(len, logs)))


def no_more(excess: float, width: float) -> bool | None:
    """Decide whether a log depth is not above another.

    Args:
        excess: Measured difference of the log depths.
        width: Difference that chance alone explains; nan if unknown.
    """
    if excess > width:
        return False
    return True if excess + width <= 0 or width <= ALIKE else None


def more(excess: float, width: float) -> bool | None:
    """Decide whether a log depth is above another; within chance, a visible gap is undecided."""
    if excess > width:
        return True
    return False if excess + width < ALIKE else None


def resampled(count: int, statistic: Callable[[Places], Array]) -> tuple[float, float]:
    """Bootstrap interval at 95 % of a statistic.

    Args:
        count: How many items there are.
        statistic: Takes the places of the items that are drawn, one drawing a row, and returns a
            value of each drawing; nan if it has none.

    Returns:
        Its ends; nan if there are fewer than three items, or too few drawings have a value.
    """
    if count < 3:
        return math.nan, math.nan
    places = np.random.default_rng(0).integers(count, size=(_RESAMPLINGS, count))
    values = statistic(places)
    values = values[np.isfinite(values)]
    if len(values) < CONFIDENCE * _RESAMPLINGS:
        return math.nan, math.nan
    low, high = np.quantile(values, [(1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2])
    return float(low), float(high)
