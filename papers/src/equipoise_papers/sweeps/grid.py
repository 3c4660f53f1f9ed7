"""Finish a grid of cells: read what is stored, compute the rest, store each result at once."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Collection, Generator, Iterable, Iterator, Sequence
from contextlib import closing
from typing import Any

from equipoise.instrument import Progress
from equipoise_papers.sweeps.backends import Engine, WorkerLostError
from equipoise_papers.sweeps.cell import Cell, Result
from equipoise_papers.sweeps.store import CellStore
from equipoise_papers.sweeps.worker import KeepHere, SendBack, one_thread

# Seconds of work that repay the start of workers, which import PyTorch and more for about 5.
_WORTH_WORKERS = 30.0


def sweep(
    store: CellStore,
    cells: Sequence[Cell[Any]],
    *,
    engine: Engine,
    begin_here: bool = False,
    progress: Progress = lambda stage, done, total: None,
) -> dict[Cell[Any], Result[Any]]:
    """Finish every cell.

    Stored cells are not computed again. Failed ones are, after all others: the cause may have
    gone. Each result is stored at once, so that a killed sweep loses at most the cells that were
    being computed. Every cell runs on one core, wherever it runs: its numbers do not depend on
    the number of workers.

    Args:
        store: Where results are, and go.
        cells: What to compute, in this order.
        engine: Where to compute.
        begin_here: Whether to begin in this process, and to start workers only if enough work is
            left to be worth it.
        progress: Called with the store's name, the number of finished and of all cells.

    Returns:
        The result of each cell, in the order of the cells.

    Raises:
        ValueError: If results cannot be written, or the engine does not start.
        WorkerLostError: If a worker was killed; everything finished is stored.
    """
    store.prepare()
    found = {cell: store.load(cell) for cell in cells}
    never = [cell for cell, result in found.items() if result is None]
    failed = [cell for cell, result in found.items() if result and result.record is None]
    waiting = deque(never + failed)
    done, total = len(found) - len(waiting), len(found)
    progress(store.name, done, total)
    with one_thread(), closing(_results(store, waiting, engine, begin_here)) as arriving:
        for result in arriving:
            found[result.cell] = result
            done += 1
            progress(store.name, done, total)
    return {cell: result for cell, result in found.items() if result is not None}


def _results(
    store: CellStore, waiting: deque[Cell[Any]], engine: Engine, begin_here: bool
) -> Generator[Result[Any], None, None]:
    if begin_here:
        yield from _first_results(store, waiting)
    if waiting:
        yield from _streamed_results(store, waiting, engine)


def _first_results(store: CellStore, waiting: deque[Cell[Any]]) -> Iterator[Result[Any]]:
    """Compute in this process, until so much work is left that workers are worth their start."""
    compute, spent, done = KeepHere(store), 0.0, 0
    while waiting and (done == 0 or spent / done * len(waiting) <= _WORTH_WORKERS):
        start = time.perf_counter()
        result = compute(waiting.popleft())
        spent, done = spent + time.perf_counter() - start, done + 1
        yield result


def _streamed_results(
    store: CellStore, waiting: Collection[Cell[Any]], engine: Engine
) -> Generator[Result[Any], None, None]:
    unfinished: dict[Cell[Any], None] = {}  # cells handed to workers, in order

    def handed_out() -> Iterator[Cell[Any]]:
        for cell in waiting:
            unfinished[cell] = None
            yield cell

    work = KeepHere(store) if engine.on_this_machine else SendBack()
    try:
        with closing(engine.stream(work, handed_out(), most=len(waiting))) as results:
            for result in results:
                if not engine.on_this_machine:
                    store.save(result)
                unfinished.pop(result.cell, None)
                yield result
    except WorkerLostError as loss:
        _store_lost(store, unfinished, loss.workers)
        kept = sum(store.finished(cell) is not None for cell in waiting)
        raise WorkerLostError(
            loss.workers,
            f"a worker of {store.name} was killed, perhaps for lack of memory. {kept} of the "
            f"{len(waiting)} cells that were missing are finished and stored. Repeat the "
            "command to go on, with fewer jobs if memory is short.",
        ) from loss


def _store_lost(store: CellStore, unfinished: Iterable[Cell[Any]], workers: int) -> None:
    """Store as failures the cells that workers were computing: the next sweep does them last."""
    lost = [cell for cell in unfinished if store.finished(cell) is None]
    for cell in lost[:workers]:  # workers take cells in order
        store.save(Result(cell, None, "its worker was killed, or one beside it", 0.0))
