"""What a worker does with one cell, in whatever process or on whatever machine it runs."""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache, lru_cache
from typing import Any

import torch
from threadpoolctl import threadpool_limits

from equipoise import __version__
from equipoise_papers.sweeps.cell import Cell, Result, compute
from equipoise_papers.sweeps.store import CellStore


@dataclass(frozen=True, slots=True)
class KeepHere:
    """Compute a cell and write its result at once; for workers that see the store's folder.

    A finished cell is then on disk even if the parent or another worker is killed.

    Args:
        store: Where the result goes. If another sweep has finished the cell meanwhile, its
            result is read from there instead.
    """

    store: CellStore
    parent: int = field(default_factory=os.getpid)

    def __call__(self, cell: Cell[Any]) -> Result[Any]:
        """Compute and store a cell, unless it is stored already."""
        if os.getpid() != self.parent:
            _freeze_garbage()
        found = self.store.finished(cell)
        if found is not None:
            return found
        use_one_thread()
        result = compute(cell)
        self.store.save(result)
        return result


@dataclass(frozen=True, slots=True)
class SendBack:
    """Compute a cell and leave writing to the parent; for workers on other machines."""

    version: str = __version__

    def __call__(self, cell: Cell[Any]) -> Result[Any]:
        """Compute a cell.

        Raises:
            ValueError: If this machine has another version of the library than the parent.
        """
        if self.version != __version__:
            raise ValueError(
                f"a worker of the cluster runs equipoise {__version__}, this machine "
                f"{self.version}. Install the same version everywhere."
            )
        use_one_thread()
        return compute(cell)


def use_one_thread() -> None:
    """Let this thread's numerics use one core, here and in libraries loaded so far.

    Sums are then added in the same order however many workers there are. Nested parallelism
    would not gain anything either: there is a worker for each core.
    """
    # PyTorch keeps the number per thread: the thread that computes must set it.
    torch.set_num_threads(1)
    _limit_libraries(len(sys.modules))


@lru_cache(maxsize=1)
def _limit_libraries(_modules: int) -> None:
    # Looking for libraries takes 8 ms, more than some cells: only imports can bring new ones.
    threadpool_limits(limits=1)


@contextmanager
def one_thread() -> Iterator[None]:
    """Let this process compute on one core inside the block, and restore its threads after it."""
    before = torch.get_num_threads()
    with threadpool_limits(limits=1):
        torch.set_num_threads(1)
        try:
            yield
        finally:
            torch.set_num_threads(before)


@cache  # once per process
def _freeze_garbage() -> None:
    # Without psutil, loky collects garbage every second: 0.2 s each time for PyTorch's objects.
    gc.freeze()
