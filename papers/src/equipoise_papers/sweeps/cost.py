"""What a grid of cells will cost, from a few timed steps of a few of them."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import nnls

from equipoise.records import Estimate
from equipoise_papers.sweeps.cell import Cell, Excerpt, Work
from equipoise_papers.sweeps.store import CellStore
from equipoise_papers.sweeps.worker import KeepHere, one_thread

# The first steps, which also load and build; and how many more are tried, until they take so large
# a share of the first ones' time that the time of a step can be told from what varies, or seconds.
_FEW, _MORE, _TOLD, _SLOW = 1, (1, 4, 16, 64), 0.3, 4.0
# Cells that are timed at most; another one only if it should end within so many seconds.
_CELLS, _PATIENCE = 8, 24.0
# Share of the time left for cells of any kind but the last.
_SIDE = 0.1


def cost(store: CellStore, cells: Sequence[Cell[Any]], patience: float = _PATIENCE) -> Estimate:
    """Estimate the seconds that cells take, one after the other on their devices.

    Every kind of cell is estimated by itself. Of trainings a few steps are timed. Other cells are
    computed whole, and kept. Where cells say how much work they are, those that are quickly timed
    come first, and the others follow by the seconds per call and per operation.

    On a CPU its own time counts, which other programs hardly lengthen.

    Args:
        store: Where cells that are no trainings are kept.
        cells: Those that are to be computed.
        patience: Seconds that timing should take, over all kinds; one cell of each kind is timed
            in any case.

    Returns:
        The sum over all cells, with the standard error that comes from timing only some.

    Raises:
        ValueError: If a cell cannot be computed, such as for want of its data.
    """
    if not cells:
        return Estimate(0.0, 0.0, "no cells")
    kinds: dict[type[Cell[Any]], list[Cell[Any]]] = {}
    for cell in cells:
        kinds.setdefault(type(cell), []).append(cell)
    found, start = [], time.perf_counter()
    with one_thread():
        # Predictions cost little beside the trainings that they belong to, which come last.
        ordered = sorted(kinds.values(), key=lambda kind: kind[0].excerpt(_FEW) is not None)
        for kind in ordered:
            left = patience - (time.perf_counter() - start)
            found.append(_of_a_kind(store, kind, left if kind is ordered[-1] else _SIDE * left))
    return Estimate(
        math.fsum(estimate.value for estimate, _ in found),
        math.hypot(*(estimate.error for estimate, _ in found)),
        f"{sum(count for _, count in found)} of {len(cells)} cells timed",
    )


def _of_a_kind(
    store: CellStore, cells: Sequence[Cell[Any]], patience: float
) -> tuple[Estimate, int]:
    """Estimate cells of one kind, and count how many were timed."""
    works = [work for cell in cells if (work := cell.work()) is not None]
    alike = len(works) < len(cells) or len(set(works)) == 1
    found = _timings(store, _spread(cells) if alike else _rising(cells), patience)
    count, seconds = len(found), [timing.seconds for timing in found]
    if count == len(cells):
        return Estimate(math.fsum(seconds), 0.0, "all timed"), count
    if alike:
        spread = statistics.stdev(seconds) if count > 1 else math.inf
        # As if the others were drawn from one distribution with these.
        error = len(cells) * spread / math.sqrt(count)
        return Estimate(len(cells) * statistics.fmean(seconds), error, "mean"), count
    total = float(_predicted(_table(found), np.array(seconds), _rows(works)).sum())
    return Estimate(total, total * _misses(found), "by work"), count


@dataclass(frozen=True, slots=True)
class _Timing:
    """What timing one cell gave.

    Args:
        cell: The cell.
        seconds: Of the whole cell, as extrapolated.
        started: Seconds that timing it took besides steps.
        stepped: Seconds of the steps that it took.
    """

    cell: Cell[Any]
    seconds: float
    started: float
    stepped: float

    def of(self, other: Cell[Any]) -> float:
        """About how long another cell takes to be timed, if that is more work."""
        mine, its = _excerpt_work(self.cell), _excerpt_work(other)
        if mine is None or its is None:
            return self.started + self.stepped
        calls, operations = its.calls / mine.calls, its.operations / max(mine.operations, 1.0)
        return self.started * max(calls, 1.0) + self.stepped * max(operations, 1.0)


def _timings(store: CellStore, cells: Sequence[Cell[Any]], patience: float) -> list[_Timing]:
    found: list[_Timing] = []
    start = time.perf_counter()
    for cell in cells:
        if found and time.perf_counter() - start + found[-1].of(cell) > patience:
            break
        found.append(_timing(store, cell))
    return found


def _spread(cells: Sequence[Cell[Any]]) -> list[Cell[Any]]:
    """Some cells from all over a grid: both halves, then both halves of those, and so on.

    Examples:
        >>> _spread(range(100))
        [50, 25, 75, 12, 62, 37, 87, 6]
    """
    places = (
        int(f"{number:b}"[::-1], 2) * len(cells) >> number.bit_length()
        for number in range(1, len(cells) + _CELLS + 1)
    )
    return [cells[place] for place in list(dict.fromkeys(places))[:_CELLS]]


def _rising(cells: Sequence[Cell[Any]]) -> list[Cell[Any]]:
    """Some cells from the quickest to the slowest to time, at equal distances in that order."""
    ordered = sorted(cells, key=_excerpt_operations)
    places = np.linspace(0, len(ordered) - 1, _CELLS).round().astype(int)
    return [ordered[place] for place in dict.fromkeys(places.tolist())]


def _excerpt_work(cell: Cell[Any]) -> Work | None:
    excerpt = cell.excerpt(_FEW)
    return (cell if excerpt is None else excerpt.cell).work()


def _excerpt_operations(cell: Cell[Any]) -> float:
    work = _excerpt_work(cell)
    return 0.0 if work is None else work.operations


def _timing(store: CellStore, cell: Cell[Any]) -> _Timing:
    excerpt = cell.excerpt(_FEW)
    if excerpt is None:
        result = KeepHere(store)(cell)
        if result.failure is not None:
            raise ValueError(f"{cell} fails: {result.failure}")
        return _Timing(cell, result.seconds, 0.0, result.seconds)
    _timed(excerpt.cell)  # this one loads data, too, which a worker's other cells find loaded
    short, step, spent, steps = _timed(excerpt.cell), 0.0, 0.0, 2 * _FEW
    for more in _MORE:
        longer = cell.excerpt(_FEW + more)
        assert longer is not None
        found = _timed(longer.cell)
        spent, steps = spent + found, steps + _FEW + more
        step = max(found - short, 0.0) / more
        if step * more > _TOLD * short or found > _SLOW:
            break
    look = short if excerpt.look is None else _timed(excerpt.look)
    spent += 2 * short + (0.0 if excerpt.look is None else look)
    stepped = min(steps * step, spent)
    return _Timing(cell, _extrapolated(excerpt, step, look), spent - stepped, stepped)


def _extrapolated(excerpt: Excerpt, step: float, look: float) -> float:
    """Seconds of a whole training; what is not steps counts as the looks, and as one start.

    Args:
        excerpt: What was timed.
        step: Seconds of a step.
        look: Seconds of a first step, a start and a look.

    Examples:
        >>> from equipoise_papers.sweeps.cell import Excerpt
        >>> _extrapolated(Excerpt(None, steps=1000, looks=10), step=0.1, look=0.5)
        104.0
    """
    rest = max(look - _FEW * step, 0.0)
    return round(step * excerpt.steps + rest * max(excerpt.looks, 1), 9)


def _timed(cell: Cell[Any]) -> float:
    clock = time.process_time if cell.runs_on().type == "cpu" else time.perf_counter
    start = clock()
    cell.run()
    return clock() - start


def _rows(works: Sequence[Work]) -> NDArray[np.float64]:
    return np.array([[work.calls, work.operations] for work in works])


def _table(timings: Sequence[_Timing]) -> NDArray[np.float64]:
    return _rows([work for timing in timings if (work := timing.cell.work()) is not None])


def _predicted(
    timed: NDArray[np.float64], seconds: NDArray[np.float64], others: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Seconds by those per call and per operation, which are fitted and not negative.

    Relative errors count, so that a quick cell says as much as a slow one.

    Examples:
        >>> timed, seconds = np.array([[10.0, 1.0], [10.0, 100.0]]), np.array([2.1, 12.0])
        >>> _predicted(timed, seconds, np.array([[20.0, 1000.0]])).round(9)
        array([104.])
    """
    scale = np.maximum(timed.max(axis=0), 1.0)
    rates, _ = nnls(timed / scale / seconds[:, None], np.ones(len(seconds)))
    predicted: NDArray[np.float64] = others / scale @ rates
    return predicted


def _misses(timings: Sequence[_Timing]) -> float:
    """How far each timed cell is from what the others predict, as a relative standard error."""
    if len(timings) < 2:
        return math.inf
    table, seconds = _table(timings), np.array([timing.seconds for timing in timings])
    misses = []
    for place in range(len(timings)):
        kept = np.arange(len(timings)) != place
        (expected,) = _predicted(table[kept], seconds[kept], table[place : place + 1])
        misses.append(float(expected) / float(seconds[place]) - 1)
    return math.sqrt(statistics.fmean(miss**2 for miss in misses))
