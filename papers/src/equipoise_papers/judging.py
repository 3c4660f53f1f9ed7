"""When numbers with errors decide a sentence: two methods compared seed by seed.

Seeds share weights and batches, so that differences scatter less than the numbers themselves.
Every question has three answers: the one-sided bounds at 95 %, by Student's t, lie on one side of
a threshold, on the other, or on both, so that nothing is decided.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from scipy.special import stdtrit

# Of a factor: as many as tell the ends of its interval apart.
_DIGITS = (2, 3, 4, 5)
_CONFIDENCE = 0.95


def positive(value: float, margin: float) -> bool | None:
    """Whether a value is above zero; ``None`` if it is within its margin of error of zero.

    Args:
        value: Such as a mean difference.
        margin: How far chance alone may move the value. NaN counts as undecided.

    Examples:
        >>> positive(0.3, 0.1), positive(-0.3, 0.1), positive(0.05, 0.1)
        (True, False, None)
    """
    if math.isnan(value) or math.isnan(margin) or abs(value) <= margin:
        return None
    return value > 0


@dataclass(frozen=True, slots=True)
class Difference:
    """Mean difference over seeds.

    Args:
        mean: Mean of one minus the other.
        error: Its standard error; nan for a single seed, which decides nothing.
        seeds: Number of seeds.

    Examples:
        >>> gap = Difference(2.0, 0.5, seeds=3)  # Student's t at 95 % is 2.92
        >>> gap.above(0.5), gap.above(4.0), gap.above(1.0)
        (True, False, None)
    """

    mean: float
    error: float
    seeds: int

    def above(self, threshold: float = 0.0) -> bool | None:
        """Whether the difference is above a threshold."""
        return positive(self.mean - threshold, self._margin)

    def below(self, threshold: float = 0.0) -> bool | None:
        """Whether the difference is below a threshold."""
        return positive(threshold - self.mean, self._margin)

    def between(self, low: float, high: float) -> bool | None:
        """Whether the difference lies in an interval: certainly, certainly not, or undecided."""
        sides = self.above(low), self.below(high)
        if False in sides:
            return False
        return None if None in sides else True

    @property
    def _margin(self) -> float:
        if self.seeds < 2:
            return math.nan
        return float(stdtrit(self.seeds - 1, _CONFIDENCE)) * self.error

    @property
    def interval(self) -> tuple[float, float]:
        """Both one-sided bounds at 95 %, which hold the difference in 90 of 100 cases."""
        return self.mean - self._margin, self.mean + self._margin

    def words(self, digits: int = 1) -> str:
        """Write the mean with its standard error and interval.

        Examples:
            >>> Difference(2.0, 0.5, seeds=3).words()
            '+2.0 ± 0.5 (90 %: +0.5 to +3.5)'
        """
        if math.isnan(self.error):
            return f"{self.mean:+.{digits}f} ± ?"
        low, high = self.interval
        return (
            f"{self.mean:+.{digits}f} ± {self.error:.{digits}f} (90 %: {low:+.{digits}f} to "
            f"{high:+.{digits}f})"
        )

    def factor(self) -> str:
        """Write a difference of logarithms as a factor with its interval.

        Examples:
            >>> Difference(math.log(10.0), 0.1, seeds=3).factor()
            'a factor 10 (90 %: 7.5 to 13)'
            >>> Difference(math.log(1.1), 0.001, seeds=3).factor()
            'a factor 1.100 (90 %: 1.097 to 1.103)'
            >>> Difference(math.log(1234), 0.0003, seeds=5).factor()
            'a factor 1234 (90 %: 1233 to 1235)'
        """
        mean = math.exp(self.mean)
        if math.isnan(self.error):
            return f"a factor {mean:.2g}"
        numbers = [mean, *map(math.exp, self.interval)]
        digits = next(
            (n for n in _DIGITS if len({f"{x:.{n}g}" for x in numbers}) == 3), _DIGITS[0]
        )
        alternate = "#" if digits > _DIGITS[0] else ""  # keeps zeros at the end
        middle, low, high = (f"{x:{alternate}.{digits}g}".rstrip(".") for x in numbers)
        return f"a factor {middle} (90 %: {low} to {high})"


def difference(one: Sequence[float], other: Sequence[float]) -> Difference:
    """Compare values of the same seeds in the same order.

    Examples:
        >>> difference([3.0, 4.0, 5.0], [1.0, 2.0, 3.5]).above()
        True
        >>> difference([3.0], [1.0]).above() is None
        True
    """
    gaps = [a - b for a, b in zip(one, other, strict=True)]
    return Difference(statistics.fmean(gaps), standard_error(gaps), len(gaps))


def by_seed(one: Mapping[int, float], other: Mapping[int, float]) -> Difference:
    """Compare values by the seeds that both have.

    Examples:
        >>> by_seed({0: 3.0, 1: 4.0, 2: 9.0}, {1: 1.0, 0: 1.0}).mean
        2.5
    """
    seeds = [seed for seed in one if seed in other]
    return difference([one[seed] for seed in seeds], [other[seed] for seed in seeds])


def best_rate(losses: Mapping[float, Mapping[int, float]]) -> float:
    """The learning rate with the lowest mean loss, the smaller of equal ones.

    Args:
        losses: Of each rate the loss of each seed. Only seeds that all rates have count, so that
            no rate is favoured by further ones.

    Examples:
        >>> best_rate({0.1: {0: 1.0, 1: 0.1}, 0.3: {0: 0.9}})
        0.3
    """
    common = set.intersection(*map(set, losses.values()))
    means = {rate: statistics.fmean(found[s] for s in common) for rate, found in losses.items()}
    return min(means, key=lambda rate: (means[rate], rate))


def spread(values: Sequence[float], digits: int = 1) -> str:
    """Write the mean over seeds with its standard error.

    Examples:
        >>> spread([1.0, 2.0, 3.0]), spread([1.0])
        ('2.0 ± 0.6', '1.0')
    """
    mean = f"{statistics.fmean(values):.{digits}f}"
    return mean if len(values) < 2 else f"{mean} ± {standard_error(values):.{digits}f}"


def standard_error(values: Sequence[float]) -> float:
    """Standard error of the mean; nan of a single value, or if a value is not finite."""
    if len(values) < 2 or not all(map(math.isfinite, values)):
        return math.nan
    return statistics.stdev(values) / math.sqrt(len(values))
