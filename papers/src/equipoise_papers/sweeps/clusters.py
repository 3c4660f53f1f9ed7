"""Dask and Ray clusters, with errors that say what to do.

Dask is used through its own client and not through joblib: joblib 1.6 waits for ever for a task
that Dask has given up because its workers died, as it calls back after successes only, and what
``joblib.register_parallel_backend`` takes is a subclass of the same private class.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import CancelledError
from contextlib import contextmanager
from importlib import import_module
from itertools import islice
from typing import Any, TypeVar

import joblib

Item = TypeVar("Item")
Answer = TypeVar("Answer")

# Seconds in which a scheduler answers and the first worker joins.
_PATIENCE = 10
# Items per worker in line, so that none waits for this process.
_IN_LINE = 2


@contextmanager
def dask_client(scheduler: str | None) -> Iterator[tuple[Any, tuple[type[BaseException], ...]]]:
    """Connect to a Dask cluster, inside the block.

    Args:
        scheduler: Its address; ``None`` for the current client's cluster.

    Yields:
        A client, and the exceptions that mean that a worker was killed.

    Raises:
        ValueError: If Dask is not installed, nobody answers, or workers have several threads.
    """
    distributed = _installed("distributed", "dask")
    client = _client(distributed, scheduler)
    try:
        _wait_for_workers(client)
        yield client, (distributed.KilledWorker, CancelledError)
    finally:
        if scheduler is not None:
            client.close()


def stream_from_dask(
    client: Any, work: Callable[[Item], Answer], items: Iterable[Item]
) -> Iterator[Answer]:
    """Yield ``work(item)`` of every item as soon as it is known; closing cancels the rest."""
    remaining = iter(items)
    unfinished: set[Any] = set()

    def submitted(count: int) -> list[Any]:
        # Not pure: the same item may be computed once more after a failure.
        futures = [client.submit(work, item, pure=False) for item in islice(remaining, count)]
        unfinished.update(futures)
        return futures

    in_line = _IN_LINE * sum(client.nthreads().values())
    arriving = import_module("distributed").as_completed(submitted(in_line), loop=client.loop)
    try:
        for future in arriving:
            answer = future.result()
            unfinished.discard(future)
            arriving.update(submitted(1))
            yield answer
    finally:
        client.cancel(list(unfinished))


@contextmanager
def ray_cluster(
    scheduler: str | None, jobs: int | None
) -> Iterator[tuple[type[BaseException], ...]]:
    """Let joblib compute on a Ray cluster, inside the block.

    Args:
        scheduler: Its address; ``None`` for the current cluster, or a new one on this machine.
        jobs: Number of workers; ``None`` for one per core of the cluster.

    Yields:
        The exceptions that mean that a worker was killed.

    Raises:
        ValueError: If Ray is not installed or nobody answers.
    """
    ray = _installed("ray", "ray")
    if not ray.is_initialized():
        try:
            ray.init(address=scheduler, log_to_driver=False)
        except (ConnectionError, OSError, RuntimeError) as error:
            raise ValueError(f"no Ray cluster answers at {scheduler!r}: {error}") from error
    import_module("ray.util.joblib").register_ray()
    with joblib.parallel_config(backend="ray", n_jobs=jobs or -1):
        yield (ray.exceptions.RayActorError, ray.exceptions.WorkerCrashedError)


def _installed(module: str, extra: str) -> Any:
    try:
        return import_module(module)
    except ImportError as error:
        raise ValueError(
            f"the backend {extra} needs the package {module}: pip install "
            f"'equipoise-papers[{extra}]'."
        ) from error


def _client(distributed: Any, scheduler: str | None) -> Any:
    try:
        if scheduler is None:
            return distributed.get_client()
        return distributed.Client(scheduler, timeout=_PATIENCE, set_as_default=False)
    except ValueError as error:
        raise ValueError(
            "which Dask cluster? Name its scheduler's address, such as --scheduler "
            "tcp://localhost:8786 after starting `dask scheduler` and `dask worker`."
        ) from error
    except OSError as error:  # of which a timeout is one
        raise ValueError(
            f"no Dask scheduler answers at {scheduler!r} within {_PATIENCE} s. Is `dask "
            "scheduler` running there?"
        ) from error


def _wait_for_workers(client: Any) -> None:
    try:
        client.wait_for_workers(1, timeout=_PATIENCE)
    except TimeoutError as error:
        raise ValueError(
            f"no worker joined the Dask scheduler within {_PATIENCE} s. Start some with `dask "
            "worker ADDRESS --nworkers auto --nthreads 1`."
        ) from error
    if any(threads > 1 for threads in client.nthreads().values()):
        # They would share PyTorch's global generator: records would depend on what runs beside.
        raise ValueError(
            "some workers of the Dask cluster have several threads, but a cell needs a process of "
            "its own. Start workers with `dask worker ADDRESS --nworkers auto --nthreads 1`."
        )
