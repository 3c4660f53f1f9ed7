"""Joblib on a Dask or a Ray cluster, with errors that say what to do."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError, Future
from contextlib import contextmanager
from importlib import import_module
from typing import Any

import joblib

# Seconds in which a scheduler answers and the first worker joins.
_PATIENCE = 10


@contextmanager
def dask_cluster(scheduler: str | None) -> Iterator[tuple[type[BaseException], ...]]:
    """Let joblib compute on a Dask cluster, inside the block.

    Args:
        scheduler: Its address; ``None`` for the current client's cluster.

    Yields:
        What is raised when workers are gone.

    Raises:
        ValueError: If Dask is not installed, nobody answers, or workers have several threads.
    """
    distributed = _installed("distributed", "dask")
    client = _client(distributed, scheduler)
    try:
        _wait_for_workers(client)
        with joblib.parallel_config(backend=_telling_of_losses(client)):
            yield (distributed.KilledWorker, CancelledError)
    finally:
        if scheduler is not None:
            client.close()


@contextmanager
def ray_cluster(
    scheduler: str | None, jobs: int | None
) -> Iterator[tuple[type[BaseException], ...]]:
    """Let joblib compute on a Ray cluster, inside the block.

    Args:
        scheduler: Its address; ``None`` for the current cluster, or a new one on this machine.
        jobs: Number of workers; ``None`` for one per core of the cluster.

    Yields:
        What is raised when workers are gone.

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


def _telling_of_losses(client: Any) -> Any:
    """Joblib's backend for Dask, made to end when Dask gives a task up.

    By itself, joblib waits for ever for a task whose workers died again and again: the callback
    on which it relies is called after a success only (seen with joblib 1.6.0).
    """
    backend = import_module("joblib._dask").DaskDistributedBackend

    class TellingBackend(backend):  # type: ignore[misc, valid-type]  # a class known at run time
        def submit(self, func: Any, callback: Callable[[Any], None]) -> Future[Any]:
            def tell(future: Future[Any]) -> None:
                error = future.exception()
                if error is not None:
                    callback(error)

            future: Future[Any] = super().submit(func, callback)
            future.add_done_callback(tell)
            return future

    return TellingBackend(client=client)


def _installed(module: str, extra: str) -> Any:
    try:
        return import_module(module)
    except ImportError as error:
        raise ValueError(
            f"the backend {extra} needs the package {module}: pip install 'equipoise[{extra}]'."
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
            "some workers of the Dask cluster have several threads, and cells want a process "
            "each. Start workers with `dask worker ADDRESS --nworkers auto --nthreads 1`."
        )
