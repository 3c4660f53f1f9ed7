"""As many threads as the machine gives, for a while.

Threads of one operation wait for each other. Where other processes have the cores, one thread that
waits costs more than all others save: a step may take fifty times as long with two threads.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import lru_cache

import torch
from threadpoolctl import ThreadpoolController

# Operations of this many numbers are shared between threads, and take 0.05 ms each.
_NUMBERS, _OPERATIONS = 2**17, 20
# Runs longer than this are not repeated to choose threads; small networks are faster on one.
_SHORT = 0.05
_TURNS = 3


@contextmanager
def suitable_threads() -> Iterator[Callable[[Callable[[], object]], None]]:
    """Inside the block, use one thread if the others would keep it waiting.

    Yields:
        A function that takes a run of the user's model, and uses one thread if that is faster.
        Afterwards the number of threads is what it was.

    Examples:
        >>> before = torch.get_num_threads()
        >>> with suitable_threads() as refine:
        ...     refine(lambda: torch.ones(2, 2) @ torch.ones(2, 2))
        >>> torch.get_num_threads() == before
        True
    """
    before = torch.get_num_threads()
    try:
        if before > 1:
            values = torch.ones(_NUMBERS)

            def work() -> None:
                for _ in range(_OPERATIONS):
                    values.add_(1)

            _use_the_faster(work, before)
        yield _refined
    finally:
        torch.set_num_threads(before)


@contextmanager
def one_thread() -> Iterator[None]:
    """Use one thread inside the block, in PyTorch and in NumPy's and SciPy's linear algebra.

    For matrices so small that more threads only wait for each other, and for sums that are added
    in the same order on every machine.

    Examples:
        >>> with one_thread():
        ...     torch.get_num_threads()
        1
    """
    before = torch.get_num_threads()
    with _libraries(len(sys.modules)).limit(limits=1):
        torch.set_num_threads(1)
        try:
            yield
        finally:
            torch.set_num_threads(before)


@lru_cache(maxsize=1)
def _libraries(_modules: int) -> ThreadpoolController:
    # Looking for libraries takes 8 ms: only imports can bring new ones.
    return ThreadpoolController()


def _refined(run: Callable[[], object]) -> None:
    now = torch.get_num_threads()
    if now > 1 and _seconds(run) < _SHORT:
        _use_the_faster(run, now)


def _use_the_faster(run: Callable[[], object], many: int) -> None:
    # All turns count, and not the best one: beside other processes some are quick, and the next
    # ones take fifty times as long.
    taken = {many: 0.0, 1: 0.0}
    for _ in range(_TURNS):
        for threads in taken:  # in turns, so that a busy machine slows both
            torch.set_num_threads(threads)
            taken[threads] += _seconds(run)
    torch.set_num_threads(min(taken, key=taken.__getitem__))


def _seconds(run: Callable[[], object]) -> float:
    started = time.perf_counter()
    run()
    return time.perf_counter() - started
