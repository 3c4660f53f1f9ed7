"""Choose a learning rate on a small logarithmic grid, extended while the best is at its edge."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from equipoise.numerics.checks import is_number
from equipoise.numerics.options import named_options


@dataclass(frozen=True, slots=True)
class TunedRate:
    """The best of the learning rates that were tried.

    Args:
        rate: The rate with the lowest score; nan if every rate diverged.
        scores: Pairs of rate and score, by rising rate; the score is infinite where training
            diverged.
        at_edge: Whether a rate beyond those tried might be better still.
    """

    rate: float
    scores: tuple[tuple[float, float], ...]
    at_edge: bool

    @property
    def safest(self) -> float:
        """The best rate; the smallest, if all diverged."""
        return self.scores[0][0] if math.isnan(self.rate) else self.rate


@named_options
def tune_rate(
    score: Callable[[float], float], rates: Sequence[float], *, extensions: int = 2
) -> TunedRate:
    """Find the rate with the lowest score.

    While the best rate is the smallest or the largest one, the grid is extended beyond it by the
    factor between its last two rates.

    Args:
        score: Called with a rate, such as the mean loss of the second half of a training with
            it; a score that is not finite counts as diverged.
        rates: At least two, positive, rising.
        extensions: How many rates may be added.

    Raises:
        ValueError: If there are fewer than two rates, or they do not rise from above zero.

    Examples:
        >>> tune_rate(lambda rate: abs(math.log10(rate)), [0.01, 0.1]).rate
        1.0
    """
    check_rates(rates)
    grid = [float(rate) for rate in rates]
    factor = grid[-1] / grid[-2]
    scores = {rate: _or_infinite(score(rate)) for rate in grid}
    for _ in range(extensions + 1):
        best = min(scores, key=lambda rate: (scores[rate], rate))
        if math.isinf(scores[best]):
            beyond = min(scores) / factor  # everything diverged: only smaller rates can help
        elif best == max(scores):
            beyond = best * factor
        elif best == min(scores):
            beyond = best / factor
        else:
            break
        if len(scores) == len(grid) + extensions:
            return _tuned(scores, best, at_edge=True)
        scores[rounded(beyond)] = _or_infinite(score(rounded(beyond)))
    return _tuned(scores, best, at_edge=False)


def check_rates(rates: Sequence[float]) -> None:
    """Refuse rates that are no grid.

    Raises:
        ValueError: If they are no list, fewer than two, or do not rise from above zero.
    """
    grid: list[object] = []
    with contextlib.suppress(TypeError):  # a single number
        grid = list(rates)
    finite = all(is_number(rate) and 0 < rate < math.inf for rate in grid)
    if len(grid) < 2 or not finite or not all(b > a for a, b in pairwise(rates)):
        raise ValueError(
            f"rates must be at least two, positive and rising, such as (0.01, 0.1); got {rates!r}."
        )


def _tuned(scores: dict[float, float], best: float, *, at_edge: bool) -> TunedRate:
    chosen = math.nan if math.isinf(scores[best]) else best
    return TunedRate(chosen, tuple(sorted(scores.items())), at_edge)


def rounded(rate: float) -> float:
    """Round to ten digits, so that 0.03 · (0.03/0.01) is 0.09 on every machine."""
    return float(f"{rate:.10g}")


def _or_infinite(value: float) -> float:
    return value if math.isfinite(value) else math.inf
