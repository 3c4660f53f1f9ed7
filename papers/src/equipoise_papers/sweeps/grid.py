"""Finish a grid: what is stored is read, the rest computed, and each result kept as it comes."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Sequence
from contextlib import closing
from typing import Any

from equipoise_papers.sweeps.backends import Engine, WorkerLostError
from equipoise_papers.sweeps.store import CellStore
from equipoise_papers.sweeps.task import AnyResult, Result
from equipoise_papers.sweeps.worker import KeepHere, SendBack, one_thread

# Seconds of work that repay the start of workers, which import PyTorch and more for about 5.
_WORTH_WORKERS = 30.0

Progress = Callable[[int, int], None]


def sweep(
    store: CellStore,
    cells: Sequence[Any],
    *,
    engine: Engine,
    begin_here: bool = False,
    progress: Progress = lambda done, total: None,
) -> dict[Any, AnyResult]:
    """Finish every cell.

    Cells that are stored are not computed again, except failed ones, which come last: what made
    them fail may be gone. Results are kept one by one, so that a killed sweep loses at most the
    cells that were being computed. Every cell runs on one core, wherever it runs: its numbers do
    not depend on the number of workers.

    Args:
        store: Where results are, and go.
        cells: What to compute, in this order.
        engine: Where to compute.
        begin_here: Whether to begin in this process, and to start workers only if what is left
            then is worth it.
        progress: Told the number of finished and of all cells.

    Returns:
        The result of each cell, in the order of the cells.

    Raises:
        ValueError: If results cannot be written, or the engine does not start.
        WorkerLostError: If a worker was killed; everything finished is kept.
    """
    store.prepare()
    found = {cell: store.load(cell) for cell in cells}
    never = [cell for cell, result in found.items() if result is None]
    failed = [cell for cell, result in found.items() if result and result.record is None]
    waiting = deque(never + failed)
    done, total = len(found) - len(waiting), len(found)
    progress(done, total)
    with one_thread(), closing(_results(store, waiting, engine, begin_here)) as arriving:
        for result in arriving:
            found[result.cell] = result
            done += 1
            progress(done, total)
    return {cell: result for cell, result in found.items() if result is not None}


def _results(
    store: CellStore, waiting: deque[Any], engine: Engine, begin_here: bool
) -> Generator[AnyResult, None, None]:
    if begin_here:
        yield from _first_results(store, waiting)
    if waiting:
        yield from _streamed_results(store, waiting, engine)


def _first_results(store: CellStore, waiting: deque[Any]) -> Iterator[AnyResult]:
    """Compute in this process until as many cells are left as are worth workers."""
    compute, spent, done = KeepHere(store), 0.0, 0
    while waiting and (done == 0 or spent / done * len(waiting) <= _WORTH_WORKERS):
        start = time.perf_counter()
        result = compute(waiting.popleft())
        spent, done = spent + time.perf_counter() - start, done + 1
        yield result


def _streamed_results(
    store: CellStore, waiting: Collection[Any], engine: Engine
) -> Generator[AnyResult, None, None]:
    unknown: dict[Any, None] = {}  # cells that workers are at or have in line, in order

    def handed_out() -> Iterator[Any]:
        for cell in waiting:
            unknown[cell] = None
            yield cell

    work = KeepHere(store) if engine.on_this_machine else SendBack(store.task)
    try:
        with closing(engine.stream(work, handed_out(), most=len(waiting))) as results:
            for result in results:
                if not engine.on_this_machine:
                    store.save(result)
                unknown.pop(result.cell, None)
                yield result
    except WorkerLostError as loss:
        _note_lost(store, unknown, loss.workers)
        kept = sum(store.finished(cell) is not None for cell in waiting)
        raise WorkerLostError(
            loss.workers,
            f"a worker of {store.task.name} is gone, perhaps killed for lack of memory. {kept} of "
            f"the {len(waiting)} cells that were missing are finished and kept. Repeat the "
            "command to go on, with fewer jobs if memory is short.",
        ) from loss


def _note_lost(store: CellStore, unknown: Iterable[Any], workers: int) -> None:
    """Keep as failures the cells that workers were at, so that the next sweep does them last."""
    lost = [cell for cell in unknown if store.finished(cell) is None]
    for cell in lost[:workers]:  # workers take cells in order
        store.save(Result(cell, None, "its worker was killed, or one beside it", 0.0))
