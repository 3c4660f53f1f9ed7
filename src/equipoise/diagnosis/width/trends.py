r"""The exponent of a size over widths, and whether it is zero.

Exponents of wide networks are multiples of ½ (Yang and Hu 2021, arXiv:2011.14522), so a slope is
stable if it lies nearer to 0 than to ±½, by more than its error.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from scipy import special

from equipoise.diagnosis.width.record import Trend, WidthTrend
from equipoise.records.estimate import Estimate

# Halfway between two possible exponents.
HALFWAY = 0.25
# Of a slope's error, the part that lies within its margin.
_SURE = 0.95


def trend_of(
    widths: Sequence[int],
    sizes: Sequence[Sequence[float]],
    predicted: Sequence[float] | None = None,
) -> WidthTrend:
    """Fit sizes, of one row for every width and one number in it for every seed.

    Examples:
        >>> found = trend_of([64, 128, 256], [[8.0, 8.1], [11.3, 11.2], [16.0, 16.1]])
        >>> round(found.slope.value, 2), found.trend
        (0.5, 'grows')
    """
    predicted = [math.nan] * len(widths) if predicted is None else predicted
    medians = tuple(float(np.median(row)) for row in sizes)
    slope = _slope(widths, sizes)
    return WidthTrend(
        medians,
        slope,
        tuple(predicted),
        _slope(widths, [[size] for size in predicted]).value,
        _trend(sizes, slope, max(0, sum(map(len, sizes)) - 2)),
    )


def rounded(slope: float) -> float:
    """The nearest exponent that a wide network can have.

    Examples:
        >>> rounded(0.56), rounded(-1.1)
        (0.5, -1.0)
    """
    return round(2 * slope) / 2


def _slope(widths: Sequence[int], sizes: Sequence[Sequence[float]]) -> Estimate:
    method = "least squares of logarithms"
    points = [(w, size) for w, row in zip(widths, sizes, strict=True) for size in row]
    if not all(0 < size < math.inf for _, size in points):
        return Estimate(math.nan, math.nan, method)
    x, y = np.log(np.array(points, dtype=np.float64)).T
    x = x - x.mean()
    value = float(x @ y / (x @ x))
    freedom = len(points) - 2
    if freedom < 1:
        return Estimate(value, math.nan, method)
    rest = y - y.mean() - value * x
    return Estimate(value, float(math.sqrt(rest @ rest / freedom / (x @ x))), method)


def _trend(sizes: Sequence[Sequence[float]], slope: Estimate, freedom: int) -> Trend:
    everything = [size for row in sizes for size in row]
    if not all(map(math.isfinite, everything)):
        return "not finite"
    if not all(everything):
        return "zero"
    # Student's t; without freedom there is no error either, and nothing is decided.
    margin = float(special.stdtrit(max(freedom, 1), (1 + _SURE) / 2)) * slope.error
    if abs(slope.value) + margin < HALFWAY:
        return "stable"
    if abs(slope.value) - margin > HALFWAY:
        return "grows" if slope.value > 0 else "vanishes"
    return "undecided"
