r"""Where networks stop to train, and how far that is from a predicted line :math:`f\,\xi`.

Depths are compared by their logarithms throughout, as figures show them.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from scipy import stats

from equipoise.records import Estimate

# A network is trained if its accuracy is half-way from guessing to the best of its column.
HALF_WAY = 0.5
# The source's line is at 16ξ.
PAPER_FACTOR = 16.0
_CONFIDENCE = 0.95


@dataclass(frozen=True, slots=True)
class Column:
    """Networks that differ in depth and seed alone.

    Args:
        position: Value of the parameter that differs from column to column.
        predicted: The predicted boundary, 16ξ, in layers; perhaps infinite.
        depths: Rising.
        accuracies: Of each depth, those of all seeds.
        chance: Accuracy of guessing.
    """

    position: float
    predicted: float
    depths: tuple[int, ...]
    accuracies: tuple[tuple[float, ...], ...]
    chance: float

    @property
    def means(self) -> tuple[float, ...]:
        """Mean accuracy of each depth."""
        return tuple(statistics.fmean(seeds) for seeds in self.accuracies)


@dataclass(frozen=True, slots=True)
class Edge:
    """Where the networks of a column stop to train.

    Args:
        position: Of the column.
        predicted: 16ξ, in layers.
        span: The least and the largest depth that was tried.
        seeds: Depth of the boundary of each seed, within the span.
        depth: That of the mean accuracy, within the span.
    """

    position: float
    predicted: float
    span: tuple[int, int]
    seeds: tuple[float, ...]
    depth: float

    @property
    def inside(self) -> bool:
        """Whether the boundary was seen: the least depth trains and the largest does not."""
        return self.span[0] < self.depth < self.span[1]

    @property
    def line_inside(self) -> bool:
        """Whether the predicted line crosses the column."""
        return self.span[0] < self.predicted < self.span[1]

    @property
    def factor(self) -> float:
        r"""The f that puts :math:`f\,\xi` on the boundary."""
        return PAPER_FACTOR * self.depth / self.predicted


def edge(column: Column, share: float = HALF_WAY) -> Edge:
    """Find a column's boundary.

    Args:
        column: Its networks.
        share: A network is trained if its accuracy is at least this share of the way from
            guessing to the best mean of the column, in (0, 1).

    Examples:
        >>> column = Column(64, 40.0, (10, 20, 40), ((0.9,), (0.7,), (0.1,)), chance=0.1)
        >>> round(edge(column).depth, 1)  # 0.5 is a third of the way down from 0.7 to 0.1
        25.2
    """
    least = level(column, share)
    return Edge(
        column.position,
        column.predicted,
        (column.depths[0], column.depths[-1]),
        tuple(
            crossing(column.depths, accuracies, least)
            for accuracies in zip(*column.accuracies, strict=True)
        ),
        crossing(column.depths, column.means, least),
    )


def level(column: Column, share: float = HALF_WAY) -> float:
    """The least accuracy that counts as trained in a column."""
    return column.chance + share * (max(column.means) - column.chance)


def crossing(depths: Sequence[int], accuracies: Sequence[float], least: float) -> float:
    """Depth at which accuracy first falls below the least one, interpolated over log depth.

    Returns:
        The least depth if its accuracy is below, the largest depth if none is.
    """
    if accuracies[0] < least:
        return float(depths[0])
    for i in range(1, len(depths)):
        if accuracies[i] < least:
            share = (accuracies[i - 1] - least) / (accuracies[i - 1] - accuracies[i])
            return float(depths[i - 1] * (depths[i] / depths[i - 1]) ** share)
    return float(depths[-1])


def fitted_factor(edges: Sequence[Edge]) -> Estimate:
    r"""Fit f in depth = :math:`f\,\xi`, over columns whose boundary and line are both inside.

    Returns:
        The geometric mean of the columns' factors and its standard error over columns; nan
        without a column, and with an unknown error with one.
    """
    logs = [math.log(e.factor) for e in edges if e.inside and e.line_inside]
    if not logs:
        return Estimate(math.nan, math.nan, "no column shows both")
    mean = math.exp(statistics.fmean(logs))
    error = statistics.stdev(logs) / math.sqrt(len(logs)) if len(logs) > 1 else math.nan
    return Estimate(mean, mean * error, f"geometric mean over {len(logs)} columns")


def disagreement(edges: Sequence[Edge], line: Callable[[Edge], float]) -> float:
    """Share of the panel between the boundary and a line, over log depth.

    Args:
        edges: Boundaries of the panel's columns.
        line: Depth of the line in a column; cut to the span.
    """
    return statistics.fmean(abs(_log_share(e, line(e)) - _log_share(e, e.depth)) for e in edges)


def paper_line(e: Edge) -> float:
    r"""The source's line, :math:`16\,\xi`."""
    return e.predicted


def scaled_line(factor: float) -> Callable[[Edge], float]:
    r"""The line :math:`f\,\xi`."""
    return lambda e: factor / PAPER_FACTOR * e.predicted


def best_constant(edges: Sequence[Edge]) -> float:
    """The one depth for all columns that disagrees least: their median."""
    return statistics.median(e.depth for e in edges)


def seed_noise(edges: Sequence[Edge]) -> Estimate:
    """Standard deviation of one seed's log boundary, pooled over columns where it was seen.

    Returns:
        The deviation; its error is the half-width that makes a difference of two columns'
        boundaries significant at 95 %, by Student's t. Both nan if there is nothing to pool.
    """
    seen = [[math.log(depth) for depth in e.seeds] for e in edges if e.inside]
    seen = [logs for logs in seen if len(logs) > 1]
    freedom = sum(len(logs) - 1 for logs in seen)
    if not freedom:
        return Estimate(math.nan, math.nan, "one seed")
    pooled = sum(statistics.variance(logs) * (len(logs) - 1) for logs in seen) / freedom
    per_seed = len(seen[0])
    width = float(stats.t.ppf(_CONFIDENCE, freedom)) * math.sqrt(2 * pooled / per_seed)
    return Estimate(math.sqrt(pooled), width, f"{freedom} degrees of freedom")


def _log_share(e: Edge, depth: float) -> float:
    low, high = e.span
    return math.log(min(max(depth, low), high) / low) / math.log(high / low)
