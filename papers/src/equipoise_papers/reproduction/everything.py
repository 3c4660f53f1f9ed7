"""Reproduce every experiment of the catalogue, one after the other; one may fail."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

from equipoise.instrument import Progress
from equipoise_papers.experiments.experiment import Scale
from equipoise_papers.reproduction.catalogue import EXPERIMENTS
from equipoise_papers.reproduction.folders import has_records
from equipoise_papers.reproduction.record import AllReproductions, ExperimentRun, Reproduction
from equipoise_papers.reproduction.reproduce import reproduce
from equipoise_papers.sweeps.backends import Backend, Engine
from equipoise_papers.sweeps.shard import Shard
from equipoise_papers.sweeps.store import prepare_folder

# Called with the number of experiments that have ended, the number of all, and the latest.
Concluded = Callable[[int, int, ExperimentRun], None]


def reproduce_all(
    *,
    scale: Scale = "small",
    out: str | Path = "reproduction",
    jobs: int | None = None,
    backend: Backend = "loky",
    scheduler: str | None = None,
    shard: tuple[int, int] = (1, 1),
    progress: Progress = lambda stage, done, total: None,
    concluded: Concluded = lambda number, total, run: None,
) -> AllReproductions:
    """Reproduce every experiment; one that breaks off does not keep the others from running.

    Finished cells are stored at once: after an interruption the same call goes on where this one
    ended.

    Args:
        scale: ``smoke`` takes seconds an experiment, ``small`` minutes, ``paper`` the papers'
            settings.
        out: Folder for records and figures.
        jobs: Cells at once, as in :func:`equipoise_papers.reproduce`.
        backend: Where to compute: ``loky``, ``threading``, ``dask`` or ``ray``.
        scheduler: Address of the cluster's scheduler, for ``dask`` and ``ray``.
        shard: ``(i, n)`` for part i of n of each grid.
        progress: Called with the experiment's number and name, its finished and all cells.
        concluded: Called after every experiment, whether it succeeded or not.

    Returns:
        The verdict of each, or why it failed.

    Raises:
        ValueError: If the shard or the backend is unknown, or the folder cannot be written to.
    """
    # Refuse before the first experiment what would fail in every one.
    Engine(backend=backend, jobs=jobs, scheduler=scheduler)
    Shard(*shard)
    prepare_folder(Path(out))
    attempt = partial(
        reproduce,
        scale=scale,
        out=out,
        jobs=jobs,
        backend=backend,
        scheduler=scheduler,
        shard=shard,
    )
    runs: list[ExperimentRun] = []
    for number, name in enumerate(EXPERIMENTS, start=1):
        stage = f"{number} of {len(EXPERIMENTS)}: {name}"
        numbered = partial(_with_stage, progress, stage)
        try:
            run = _concluded(attempt(name, progress=numbered).panels[0])
        except Exception as error:  # one experiment's failure must not cost the others
            run = ExperimentRun(name, None, 0.0, _reason(error))
        runs.append(run)
        concluded(number, len(EXPERIMENTS), run)
    return AllReproductions(scale=scale, folder=str(out), runs=tuple(runs))


def redraw_all(
    root: str | Path,
    scale: Scale,
    progress: Progress = lambda stage, done, total: None,
) -> dict[str, str]:
    """Draw and judge again every experiment that has records at a scale; compute nothing.

    Args:
        root: Folder of records.
        scale: Which records.
        progress: Called with ``drawing``, the number of finished and of all experiments.

    Returns:
        Why an experiment could not be drawn or judged, by its name.
    """
    problems: dict[str, str] = {}
    for done, (name, experiment) in enumerate(EXPERIMENTS.items()):
        progress("drawing", done, len(EXPERIMENTS))
        if not has_records(experiment, Path(root), scale):
            continue
        try:
            reproduce(name, scale=scale, out=root, redraw=True)
        except Exception as error:  # the report says so, beside what did work
            problems[name] = _reason(error)
    progress("drawing", len(EXPERIMENTS), len(EXPERIMENTS))
    return problems


def _with_stage(progress: Progress, stage: str, _: str, done: int, total: int) -> None:
    progress(stage, done, total)


def _concluded(verdict: Reproduction) -> ExperimentRun:
    failed = verdict.failures
    failure = f"{len(failed)} of {verdict.cells} cells failed: {failed[0]}" if failed else None
    return ExperimentRun(verdict.experiment, verdict.outcome, verdict.seconds, failure)


def _reason(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"
