"""What happens to one cell inside a worker, wherever that is."""

from __future__ import annotations

import gc
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache, lru_cache
from typing import Any

import torch
from threadpoolctl import threadpool_limits

from equipoise import __version__
from equipoise_papers.sweeps.store import CellStore
from equipoise_papers.sweeps.task import AnyResult, AnyTask

# Seconds that a worker outlives a parent that was killed.
_PATIENCE = 0.5


@dataclass(frozen=True, slots=True)
class KeepHere:
    """Compute a cell and write its result at once; for workers that see the store's folder.

    What is finished is then on disk, whatever becomes of the parent or of the other workers.

    Args:
        store: Where the result goes. A cell that another sweep has finished meanwhile is read
            from there instead.
    """

    store: CellStore
    parent: int = field(default_factory=os.getpid)

    def __call__(self, cell: Any) -> AnyResult:
        """Compute and keep a cell, unless that is done."""
        if os.getpid() != self.parent:
            _settle(self.parent)
        found = self.store.finished(cell)
        if found is not None:
            return found
        use_one_thread()
        result = self.store.task.compute(cell)
        self.store.save(result)
        return result


@dataclass(frozen=True, slots=True)
class SendBack:
    """Compute a cell and leave writing to the parent; for workers on other machines.

    Args:
        task: What to compute.
    """

    task: AnyTask
    version: str = __version__

    def __call__(self, cell: Any) -> AnyResult:
        """Compute a cell."""
        if self.version != __version__:
            raise ValueError(
                f"a worker of the cluster runs equipoise {__version__}, this machine "
                f"{self.version}. Install the same version everywhere."
            )
        use_one_thread()
        return self.task.compute(cell)


def use_one_thread() -> None:
    """Let this thread's numerics use one core, here and in libraries loaded so far.

    Sums are then added in the same order however many workers there are. Nested parallelism
    would not gain anything either: there is a worker for each core.
    """
    # PyTorch keeps the number per thread: the one that computes must ask for it.
    torch.set_num_threads(1)
    _limit_libraries(len(sys.modules))


@lru_cache(maxsize=1)
def _limit_libraries(_modules: int) -> None:
    # Looking for libraries takes 8 ms, more than some cells: only after imports may there be new.
    threadpool_limits(limits=1)


@contextmanager
def one_thread() -> Iterator[None]:
    """Let this process compute on one core for a while, and restore its threads afterwards."""
    before = torch.get_num_threads()
    with threadpool_limits(limits=1):
        torch.set_num_threads(1)
        try:
            yield
        finally:
            torch.set_num_threads(before)


@cache  # once per process
def _settle(parent: int) -> None:
    """Make this process a good worker: it ends with its parent and leaves Ctrl-C to it.

    A pool of processes does neither: its workers would go on for minutes after ``kill -9`` and
    compute what the resumed sweep computes too.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # Without psutil, loky collects garbage every second: 0.2 s each time for PyTorch's objects.
    gc.freeze()

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(_PATIENCE)
        os._exit(1)

    threading.Thread(target=watch, name="equipoise-parent-watch", daemon=True).start()
