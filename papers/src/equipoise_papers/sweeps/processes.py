"""Worker processes on this machine, which end when the process that started them does."""

from __future__ import annotations

import multiprocessing.resource_tracker
import os
import signal
import sys
import threading
import warnings
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, wait
from contextlib import contextmanager
from itertools import islice
from types import FrameType
from typing import Any, TypeVar

from joblib.externals.loky import get_reusable_executor
from joblib.externals.loky.backend import resource_tracker

from equipoise_papers.parent import end_with_parent

Item = TypeVar("Item")
Answer = TypeVar("Answer")

# Items per worker in line, so that none waits for this process.
_IN_LINE = 2
# Seconds after which workers without work end: until then the next experiment finds them ready.
_IDLE = 300
# Read by numerical libraries when workers import them.
_ONE_THREAD = dict.fromkeys(
    (
        "OMP_NUM_THREADS",
        "OPENBLAS_NUM_THREADS",
        "MKL_NUM_THREADS",
        "BLIS_NUM_THREADS",
        "VECLIB_MAXIMUM_THREADS",
        "NUMEXPR_NUM_THREADS",
    ),
    "1",
)
_ENDING = (signal.SIGINT, signal.SIGTERM)
# Said by loky when a worker has grown by 300 MB, as PyTorch and a data set make it, and another
# takes its place.
_REPLACED = "A worker stopped while some jobs were given to the executor"


def stream_from_processes(
    jobs: int, work: Callable[[Item], Answer], items: Iterable[Item]
) -> Iterator[Answer]:
    """Yield ``work(item)`` of every item as soon as it is known; closing kills the workers.

    Workers are kept for the next call. They import what ``work`` needs only with the first item,
    after they have bound their lives to this process's: PyTorch takes seconds.

    Args:
        jobs: Number of workers.
        work: Picklable function of an item.
        items: Its arguments, taken as workers become free.

    Raises:
        concurrent.futures.BrokenExecutor: If a worker was killed.
    """
    _start_trackers()
    # For good: loky warns from a thread of its own.
    warnings.filterwarnings("ignore", _REPLACED, UserWarning)
    with _signals_wait():
        executor = get_reusable_executor(
            max_workers=jobs,
            timeout=_IDLE,
            initializer=begin_worker,
            initargs=(os.getpid(),),
            env=_ONE_THREAD,
        )
    remaining = iter(items)
    unfinished: set[Future[Answer]] = set()
    whole = False
    try:
        while True:
            for item in islice(remaining, _IN_LINE * jobs - len(unfinished)):
                with _signals_wait():  # workers start here
                    unfinished.add(executor.submit(work, item))
            if not unfinished:
                break
            done, unfinished = wait(unfinished, return_when=FIRST_COMPLETED)
            for future in done:
                yield future.result()
        whole = True
    finally:
        if not whole:
            # They would finish their cells first, and then wait for others.
            executor.shutdown(wait=True, kill_workers=True)


def begin_worker(parent: int) -> None:
    """Make this worker end when its parent does, and leave signals to the parent.

    A pool of processes does neither: after ``kill -9`` its workers would go on for minutes.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if hasattr(signal, "pthread_sigmask"):  # not on Windows
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _ENDING)  # inherited from `_signals_wait`
    end_with_parent(parent)


def _start_trackers() -> None:
    """Start the processes that remove semaphores when this one could not, and let them be silent.

    They outlive this process, and would print a warning after its last words. Starting them later
    would let signals through in the middle of `_signals_wait`.
    """
    option = "ignore:resource_tracker:UserWarning"
    sys.warnoptions.append(option)  # a child process takes these over
    try:
        multiprocessing.resource_tracker.ensure_running()
        resource_tracker.ensure_running()
    finally:
        sys.warnoptions.remove(option)


@contextmanager
def _signals_wait() -> Iterator[None]:
    """Put off SIGINT and SIGTERM to the end of the block, in which workers start.

    Otherwise a worker might start of which nobody knows, or one would die of Ctrl-C, which a
    terminal sends to all processes, with a traceback of its own. Workers inherit the mask.
    """
    if threading.current_thread() is not threading.main_thread():  # signals are the main one's
        yield
        return
    arrived: list[int] = []

    def note(number: int, _: FrameType | None) -> None:
        arrived.append(number)

    # A mask alone would not do: other threads of this process accept signals in its name.
    handlers: dict[int, Any] = {
        number: signal.signal(number, note)
        for number in _ENDING
        if signal.getsignal(number) not in (signal.SIG_IGN, None)
    }
    masks = hasattr(signal, "pthread_sigmask")
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _ENDING) if masks else set()
    try:
        yield
    finally:
        if masks:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        for number, handler in handlers.items():
            signal.signal(number, handler)
        for number in arrived[:1]:
            signal.raise_signal(number)
