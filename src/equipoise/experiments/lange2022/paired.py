"""Two methods seed by seed: seeds share weights and batches, so their differences scatter less."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from scipy import stats

_CONFIDENCE = 0.95


@dataclass(frozen=True, slots=True)
class Difference:
    """Mean difference over seeds.

    Args:
        mean: Of one less the other.
        error: Its standard error; 0 for a single seed.
        seeds: How many.
    """

    mean: float
    error: float
    seeds: int

    @property
    def above(self) -> bool:
        """Whether one is above the other by more than Student's t at 95 %, one-sided."""
        return self.mean > self._reach

    @property
    def below(self) -> bool:
        """Whether it is below by as much."""
        return self.mean < -self._reach

    @property
    def _reach(self) -> float:
        if self.seeds < 2:
            return 0.0
        return float(stats.t.ppf(_CONFIDENCE, self.seeds - 1)) * self.error

    def __str__(self) -> str:
        return f"{self.mean:+.1f} ± {self.error:.1f}"


def difference(one: Sequence[float], other: Sequence[float]) -> Difference:
    """Compare values of the same seeds in the same order.

    Examples:
        >>> difference([3.0, 4.0, 5.0], [1.0, 2.0, 3.5]).above
        True
    """
    gaps = [a - b for a, b in zip(one, other, strict=True)]
    error = statistics.stdev(gaps) / math.sqrt(len(gaps)) if len(gaps) > 1 else 0.0
    return Difference(statistics.fmean(gaps), error, len(gaps))
