"""Cells that are one training over all processes of ``torchrun``: rank 0 leads, others follow.

Rank 0 does what a single process would do: it reads and writes records, draws and judges. Before
each cell it tells the other ranks, which read no records, to compute the cell with it.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Any

from equipoise.instrument import Progress
from equipoise_papers.big.checkpoint import remove_checkpoint
from equipoise_papers.big.distributed import from_rank_0, leave_together, process_group, ranks
from equipoise_papers.experiments.experiment import Experiment
from equipoise_papers.sweeps.cell import Cell, compute
from equipoise_papers.sweeps.store import CellStore

_checkpoint: ContextVar[Path | None] = ContextVar("checkpoint", default=None)
_busy: ContextVar[bool] = ContextVar("busy", default=False)


def checkpoint_path() -> Path | None:
    """Where the cell that is being computed keeps its checkpoint; ``None`` if nowhere.

    For :func:`equipoise_papers.train_big` inside a cell's ``run``. It is a path under
    ``torchrun``, with one process or many, and is deleted once the cell's record is stored.
    """
    return _checkpoint.get()


@contextmanager
def all_ranks() -> Iterator[bool]:
    """Join the processes that ``torchrun`` started; all but rank 0 follow until it leaves.

    Yields:
        Whether this process leads. The others have nothing to do in the block.
    """
    with process_group() as here:
        if not here.leads:
            _follow()
            leave_together(here)
            yield False
            return
        try:
            yield True
        finally:
            # In the middle of a cell others wait for its next step, not for a message; torchrun
            # ends them when this process fails.
            if not _busy.get():
                from_rank_0(None, here)
                leave_together(here)
            _busy.set(False)


def compute_together(
    experiment: Experiment, cells: Sequence[Cell[Any]], store: CellStore, progress: Progress
) -> None:
    """Finish cells one after the other, each on all ranks; called on rank 0.

    Args:
        experiment: The experiment of the cells.
        cells: Which, in this order; those that are stored are not computed again.
        store: Where results are, and go.
        progress: Called with the store's name, the number of finished and of all cells.

    Raises:
        ValueError: If the experiment's cells are no big trainings, or ranks have not joined.
        ChildProcessError: If a cell failed, after which ranks may be out of step.
    """
    if not experiment.big:
        raise ValueError(
            f"the cells of {experiment.name} are small trainings, each for one process. Leave "
            "torchrun out: --jobs spreads them over cores, --shard over machines."
        )
    if _busy.get():
        raise ChildProcessError("the ranks may be out of step since an earlier cell failed.")
    if ranks().size != int(os.environ.get("WORLD_SIZE", "1")):
        raise ValueError(
            "torchrun started several processes, which have not joined. Use the equipoise command "
            "or equipoise_papers.experiments.torchrun.all_ranks."
        )
    store.prepare()
    missing = [cell for cell in cells if store.finished(cell) is None]
    for number, cell in enumerate(missing):
        progress(store.name, len(cells) - len(missing) + number, len(cells))
        _lead(cell, store)
    progress(store.name, len(cells), len(cells))


def _lead(cell: Cell[Any], store: CellStore) -> None:
    path = _checkpoint_of(store.path(cell))
    from_rank_0((cell, path), ranks())
    _busy.set(True)
    with _kept_at(path):
        result = compute(cell)
    store.save(result)
    if result.failure is not None:
        kept = f" from its checkpoint, or delete {str(path)!r} first" if path.exists() else ""
        raise ChildProcessError(
            f"{cell} failed on rank 0: {result.failure.rstrip('.')}. Finished cells are stored; "
            f"repeat the command to go on{kept}."
        )
    _busy.set(False)
    remove_checkpoint(path)


def _follow() -> None:
    nothing: tuple[Cell[Any], Path] | None = None
    while (message := from_rank_0(nothing, ranks())) is not None:
        cell, path = message
        with _kept_at(path):
            cell.run()  # what it raises ends this process, and torchrun the others


def _checkpoint_of(record: Path) -> Path:
    return record.parent.with_name("checkpoints") / f"{record.stem}.pt"


@contextmanager
def _kept_at(path: Path) -> Iterator[None]:
    token = _checkpoint.set(path.absolute())
    try:
        yield
    finally:
        _checkpoint.reset(token)
