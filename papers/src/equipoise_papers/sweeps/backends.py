"""Where cells are computed: processes or threads on this machine, a Dask or a Ray cluster."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import BrokenExecutor
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import Any, Literal, TypeVar, get_args

import joblib

from equipoise_papers.sweeps.clusters import dask_client, ray_cluster, stream_from_dask
from equipoise_papers.sweeps.processes import stream_from_processes

Item = TypeVar("Item")
Answer = TypeVar("Answer")

Backend = Literal["loky", "threading", "dask", "ray"]
BACKENDS: tuple[Backend, ...] = get_args(Backend)
_ON_THIS_MACHINE = ("loky", "threading")


class WorkerLostError(ChildProcessError):
    """A worker ended in the middle of its work, such as for lack of memory.

    Args:
        workers: How many there were, and so how many items at most were lost.
        message: What was lost, and what to do.
    """

    def __init__(self, workers: int, message: str = "a worker was killed.") -> None:
        super().__init__(message)
        self.workers = workers


@dataclass(frozen=True, slots=True)
class _Pool:
    """Workers that are ready.

    Args:
        workers: Number of workers.
        losses: Exceptions that mean that one was killed.
        stream: Called with the work and the items, yields answers.
    """

    workers: int
    losses: tuple[type[BaseException], ...]
    stream: Callable[[Callable[[Any], Any], Iterable[Any]], Iterator[Any]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Engine:
    """Where to compute, and how much at once.

    Args:
        backend: ``loky`` for processes on this machine; ``threading`` for threads, which share
            PyTorch's global generator and so suit only cells that never draw from it; ``dask``
            and ``ray`` for clusters.
        jobs: Workers on this machine, or Ray's; ``None`` for as many as there are cores. A Dask
            cluster brings its own.
        scheduler: Address of the Dask scheduler, such as ``tcp://host:8786``, or of the Ray
            cluster. Without one, Dask's current client is used, and Ray starts on this machine.

    Raises:
        ValueError: If these do not fit together.

    Examples:
        >>> sorted(Engine(jobs=1).stream(abs, [-1, 2, -3]))
        [1, 2, 3]
    """

    backend: Backend = "loky"
    jobs: int | None = None
    scheduler: str | None = None

    def __post_init__(self) -> None:
        if self.backend not in BACKENDS:
            raise ValueError(
                f"backend must be one of {', '.join(BACKENDS)}, got {self.backend!r}."
            )
        if self.jobs is not None and self.jobs < 1:
            raise ValueError(f"jobs must be at least 1, got {self.jobs}.")
        if self.jobs is not None and self.backend == "dask":
            raise ValueError(
                "jobs counts workers here, but a Dask cluster brings its own: omit it."
            )
        if self.scheduler is not None and self.on_this_machine:
            raise ValueError(
                f"the backend {self.backend} works on this machine and has no scheduler; a "
                "scheduler's address belongs to the backend dask or ray."
            )

    @property
    def on_this_machine(self) -> bool:
        """Whether every worker sees this machine's files."""
        return self.backend in _ON_THIS_MACHINE

    def stream(
        self, work: Callable[[Item], Answer], items: Iterable[Item], *, most: int | None = None
    ) -> Generator[Answer, None, None]:
        """Yield ``work(item)`` of every item as soon as it is known, in any order.

        Items are taken one by one as workers become free, except for Ray. Closing the iterator
        cancels the rest.

        Args:
            work: Function of an item; for other processes it must be picklable.
            items: Its arguments.
            most: Most workers to start, such as the number of items.

        Raises:
            ValueError: If the backend is not installed or its cluster does not answer.
            WorkerLostError: If a worker was killed. Answers that are not yet yielded may be lost.
        """
        with self._pool(most) as pool:
            try:
                yield from pool.stream(work, items)
            except pool.losses as error:
                raise WorkerLostError(pool.workers) from error

    def _pool(self, most: int | None) -> AbstractContextManager[_Pool]:
        if self.backend == "dask":
            return _dask(self.scheduler)
        if self.backend == "ray":
            return _ray(self.scheduler, self.jobs)
        jobs = self.jobs or joblib.cpu_count()
        return _this_machine(self.backend, min(jobs, most or jobs))


@contextmanager
def _this_machine(backend: Backend, jobs: int) -> Iterator[_Pool]:
    if backend == "loky" and jobs > 1:
        yield _Pool(jobs, (BrokenExecutor,), partial(stream_from_processes, jobs))
        return
    with joblib.parallel_config(backend="threading", n_jobs=jobs):
        yield _Pool(jobs, (), _stream)


@contextmanager
def _dask(scheduler: str | None) -> Iterator[_Pool]:
    with dask_client(scheduler) as (client, losses):
        yield _Pool(sum(client.nthreads().values()), losses, partial(stream_from_dask, client))


@contextmanager
def _ray(scheduler: str | None, jobs: int | None) -> Iterator[_Pool]:
    with ray_cluster(scheduler, jobs) as losses:
        yield _Pool(joblib.effective_n_jobs(None), losses, _in_rounds)


def _stream(work: Callable[[Item], Answer], items: Iterable[Item]) -> Iterator[Answer]:
    # One item at a time: joblib would otherwise hand quick ones over in batches, and a batch
    # would be lost as a whole.
    pool = joblib.Parallel(return_as="generator_unordered", batch_size=1, max_nbytes=None)
    answers = pool(joblib.delayed(work)(item) for item in items)
    try:
        for answer in answers:  # noqa: UP028  # `yield from` would close them outside `finally`
            yield answer
    finally:
        with warnings.catch_warnings():
            # Joblib warns that unfinished work was cancelled, which is the purpose of closing.
            warnings.simplefilter("ignore", UserWarning)
            answers.close()


def _in_rounds(work: Callable[[Item], Answer], items: Iterable[Item]) -> Iterator[Answer]:
    """As many items at a time as there are workers, for a backend that cannot stream."""
    remaining = iter(items)
    with joblib.Parallel(batch_size=1, max_nbytes=None) as pool:
        while batch := list(islice(remaining, joblib.effective_n_jobs(None))):
            yield from pool(joblib.delayed(work)(item) for item in batch)
