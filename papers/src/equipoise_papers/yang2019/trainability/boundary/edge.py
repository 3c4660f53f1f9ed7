r"""The depth beyond which networks do not train, and its distance from a line :math:`f\,\xi`.

Depths are compared by their logarithms, as figures show them.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from equipoise_papers.yang2019.trainability.boundary.ratios import Ratio, mean_ratio

# A network is trained if its accuracy is half-way from guessing to the best of its column.
HALF_WAY = 0.5
# The source's line is at 16ξ.
PAPER_FACTOR = 16.0
# A column whose best network is less than this share of the way to no errors trains nowhere.
_LEARNS = 0.1


@dataclass(frozen=True, slots=True)
class Column:
    """Networks that differ in depth and seed alone.

    Args:
        position: Value of the parameter that differs from column to column.
        predicted: The predicted boundary, 16ξ, in layers; it may be infinite.
        depths: Rising.
        accuracies: Accuracies of all seeds, depth by depth.
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
    """The depth beyond which the networks of a column do not train.

    Args:
        position: The column's.
        predicted: 16ξ, in layers.
        span: The least and the largest depth that was tried.
        seeds: Depth of the boundary of each seed, within the span.
        depth: Depth of the boundary of the mean accuracy, within the span.
    """

    position: float
    predicted: float
    span: tuple[int, int]
    seeds: tuple[float, ...]
    depth: float

    @property
    def below(self) -> bool:
        """Whether not even the least depth trains, so that the boundary is at or below it."""
        return self.depth <= self.span[0]

    @property
    def beyond(self) -> bool:
        """Whether even the largest depth trains, so that the boundary is at or beyond it."""
        return self.depth >= self.span[1]

    @property
    def inside(self) -> bool:
        """Whether the boundary was seen: the least depth trains, the largest does not."""
        return not (self.below or self.beyond)

    @property
    def line_inside(self) -> bool:
        """Whether the predicted line crosses the column."""
        return self.span[0] < self.predicted < self.span[1]

    @property
    def side_known(self) -> bool:
        """Whether it is known on which side of the line the boundary is."""
        least, largest = self.span
        unknown = (self.beyond and self.predicted >= largest) or (
            self.below and self.predicted <= least
        )
        return math.isfinite(self.predicted) and not unknown


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
    """The least accuracy that counts as trained in a column; infinite if none learns."""
    best = max(column.means)
    if not learns(best, column.chance):
        return math.inf
    return column.chance + share * (best - column.chance)


def learns(accuracy: float, chance: float) -> bool:
    """Whether an accuracy is clearly better than guessing."""
    return accuracy >= chance + _LEARNS * (1 - chance)


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


def of_line(edges: Sequence[Edge]) -> Ratio:
    """Boundary over 16ξ, in columns that the line crosses and whose boundary was seen."""
    seen = _seen_logs(edges)
    return mean_ratio(seen, unseen=sum(e.line_inside for e in edges) - len(seen))


def _seen_logs(edges: Sequence[Edge]) -> list[float]:
    return [math.log(e.depth / e.predicted) for e in edges if e.line_inside and e.inside]


def of_each_other(some: Sequence[Edge], others: Sequence[Edge]) -> Ratio:
    """Boundary of some columns over that of others at the same positions, pair by pair."""
    at = {e.position: e for e in others}
    pairs = [(e, at[e.position]) for e in some if e.position in at]
    # Two boundaries beyond the same end of the span cannot be compared.
    compared = [(a, b) for a, b in pairs if not ((a.beyond and b.beyond) or (a.below and b.below))]
    seen = [math.log(a.depth / b.depth) for a, b in compared if a.inside and b.inside]
    return mean_ratio(seen, unseen=len(compared) - len(seen))


def fitted_factor(edges: Sequence[Edge]) -> float:
    r"""The f of the line :math:`f\,\xi` through the boundaries, nan if none is seen."""
    seen = _seen_logs(edges)  # without the interval, as this is drawn a thousand times
    return PAPER_FACTOR * math.exp(statistics.fmean(seen)) if seen else math.nan


def disagreement(edges: Sequence[Edge], line: Callable[[Edge], float]) -> float:
    """Area between the boundary and a line over log depth, as a share of the panel.

    Args:
        edges: Boundaries of the panel's columns.
        line: Depth of the line in a column; it is limited to the span.
    """
    return statistics.fmean([abs(_log_share(e, line(e)) - _log_share(e, e.depth)) for e in edges])


def paper_line(e: Edge) -> float:
    r"""The source's line, :math:`16\,\xi`."""
    return e.predicted


def scaled_line(factor: float) -> Callable[[Edge], float]:
    r"""The line :math:`f\,\xi`."""
    return lambda e: factor / PAPER_FACTOR * e.predicted


def best_constant(edges: Sequence[Edge]) -> float:
    """The single depth that disagrees least over all columns: the median."""
    return statistics.median(e.depth for e in edges)


def _log_share(e: Edge, depth: float) -> float:
    low, high = e.span
    return math.log(min(max(depth, low), high) / low) / math.log(high / low)
