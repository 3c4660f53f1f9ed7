"""What a grid of cells will cost, from a few timed steps of a few of them."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Iterator, Sequence
from typing import Any

from equipoise.records import Estimate
from equipoise_papers.sweeps.cell import Cell, Excerpt
from equipoise_papers.sweeps.store import CellStore
from equipoise_papers.sweeps.worker import KeepHere, one_thread

# Steps from whose difference the time of one follows: the first also loads and builds.
_FEW, _MORE = 1, 4
# Seconds beyond which a first step is long enough for one more to be told from it.
_SLOW = 5.0
# Cells that are timed at most; another one begins only within so many seconds.
_CELLS, _PATIENCE = 8, 45.0


def cost(store: CellStore, cells: Sequence[Cell[Any]], patience: float = _PATIENCE) -> Estimate:
    """Estimate the seconds that cells take, one after the other on their devices.

    Of trainings a few steps are timed. Other cells are computed whole, and kept.

    Args:
        store: Where cells that are no trainings are kept.
        cells: Those that are to be computed.
        patience: Seconds after which no further cell is timed; one is in any case.

    Returns:
        The sum over all cells, with the standard error that comes from timing only some.

    Raises:
        ValueError: If a cell cannot be computed, such as for want of its data.
    """
    if not cells:
        return Estimate(0.0, 0.0, "no cells")
    found: list[float] = []
    start = time.perf_counter()
    with one_thread():
        for cell in _spread(cells):
            found.append(_seconds(store, cell))
            if time.perf_counter() - start > patience:
                break
    count = len(found)
    spread = statistics.stdev(found) if count > 1 else math.inf
    # As if the others were drawn from one distribution with these.
    error = 0.0 if count == len(cells) else len(cells) * spread / math.sqrt(count)
    return Estimate(
        len(cells) * statistics.fmean(found), error, f"{count} of {len(cells)} cells timed"
    )


def _spread(cells: Sequence[Cell[Any]]) -> Iterator[Cell[Any]]:
    """Some cells from all over a grid: both halves, then both halves of those, and so on.

    Examples:
        >>> list(_spread(range(100)))
        [50, 25, 75, 12, 62, 37, 87, 6]
    """
    places = (
        int(f"{number:b}"[::-1], 2) * len(cells) >> number.bit_length()
        for number in range(1, len(cells) + _CELLS + 1)
    )
    return iter([cells[place] for place in list(dict.fromkeys(places))[:_CELLS]])


def _seconds(store: CellStore, cell: Cell[Any]) -> float:
    excerpt = cell.excerpt(_FEW)
    if excerpt is None:
        result = KeepHere(store)(cell)
        if result.failure is not None:
            raise ValueError(f"{cell} fails: {result.failure}")
        return result.seconds
    # This one loads data, too, which a worker's other cells find loaded.
    more = _MORE if _timed(excerpt.cell) < _SLOW else 1
    longer = cell.excerpt(_FEW + more)
    assert longer is not None
    return _extrapolated(excerpt, _timed(excerpt.cell), _timed(longer.cell), more)


def _extrapolated(excerpt: Excerpt, short: float, longer: float, more: int) -> float:
    """Seconds of a whole training; what is not steps counts as the looks, and as one start.

    Examples:
        >>> from equipoise_papers.sweeps.cell import Excerpt
        >>> _extrapolated(Excerpt(None, steps=1000, looks=10), short=0.5, longer=0.9, more=4)
        104.0
    """
    step = max(longer - short, 0.0) / more
    rest = max(short - _FEW * step, 0.0)
    return round(step * excerpt.steps + rest * max(excerpt.looks, 1), 9)


def _timed(cell: Cell[Any]) -> float:
    start = time.perf_counter()
    cell.run()
    return time.perf_counter() - start
