"""Reproduce a published figure: compute what is missing, draw it, and judge the claim."""

from __future__ import annotations

from pathlib import Path
from shlex import quote
from typing import Any, get_args

from equipoise.files import write_text
from equipoise.instrument import Progress
from equipoise_papers.experiments.experiment import Experiment, Scale
from equipoise_papers.reproduction.catalogue import find
from equipoise_papers.reproduction.compute import collect, compute
from equipoise_papers.reproduction.folders import cell_store
from equipoise_papers.reproduction.outputs import SUMMARY_NAME, write_panel, write_sheet
from equipoise_papers.reproduction.record import Reproductions
from equipoise_papers.reproduction.summary import overview
from equipoise_papers.sweeps.backends import Backend, Engine
from equipoise_papers.sweeps.cell import Result
from equipoise_papers.sweeps.shard import Shard


def reproduce(
    name: str,
    *,
    scale: Scale = "small",
    out: str | Path = "reproduction",
    redraw: bool = False,
    jobs: int | None = None,
    backend: Backend = "loky",
    scheduler: str | None = None,
    shard: tuple[int, int] = (1, 1),
    progress: Progress = lambda stage, done, total: None,
) -> Reproductions:
    """Reproduce an experiment, or every panel of a figure.

    Each finished cell is stored at once as a file under ``out/EXPERIMENT/cells``. A later run,
    even after this one was killed, computes only what is missing. Figure, verdict and summary
    go to ``out/EXPERIMENT/SCALE``, those of a whole figure to ``out/FIGURE/SCALE``.

    Every cell is computed on one core, so that its numbers do not depend on where the others
    are computed, or on how many at once.

    Args:
        name: Such as ``yang2019.fig1a``, or ``yang2019.fig1`` for all of its panels.
        scale: ``smoke`` takes seconds, ``small`` minutes, ``paper`` the paper's settings.
        out: Folder for records and figures.
        redraw: Whether to make figures and verdicts from stored records alone.
        jobs: Cells at once; ``None`` for as many as there are cores, but one where starting
            workers is not worth it: at scale ``smoke``, and for quick work at scale ``small``.
        backend: ``loky`` for processes on this machine, ``threading``, ``dask`` or ``ray``.
        scheduler: Address of the cluster's scheduler, for ``dask`` and ``ray``.
        shard: ``(i, n)`` for part i of n of each grid, the same on every machine; i is from 1
            to n. Parts that are not stored in ``out`` are missing from figure and verdict.
        progress: Called with the experiment's name, the finished and all cells.

    Raises:
        ValueError: If the name, the scale, the shard or the backend is unknown, the folder
            cannot be written to, no cluster answers, or there are no records to redraw.
        ChildProcessError: If a worker process was killed; everything finished is stored.
    """
    if scale not in get_args(Scale):
        raise ValueError(f"scale must be one of {', '.join(get_args(Scale))}, got {scale!r}.")
    engine = Engine(backend=backend, jobs=jobs, scheduler=scheduler)
    part = Shard(*shard)
    root = Path(out)
    panels = []
    for experiment in find(name):
        store = cell_store(experiment, root)
        if redraw:
            results = collect(experiment, scale, store)
        else:
            results = compute(experiment, scale, store, progress, engine=engine, shard=part)
        panels.append((experiment, results))
    if redraw and not any(results for _, results in panels):
        raise ValueError(
            f"{str(root)!r} holds no records of {name} at scale {scale} to redraw. Run it "
            "without --redraw first, or name the folder with --out."
        )
    return _conclude(name, scale, root, panels)


def _conclude(
    name: str,
    scale: Scale,
    root: Path,
    panels: list[tuple[Experiment, tuple[Result[Any], ...]]],
) -> Reproductions:
    reproductions = tuple(
        write_panel(
            experiment,
            results,
            scale,
            root / experiment.name / scale,
            f"equipoise reproduce {experiment.name} --scale {scale} --out {quote(str(root))}",
        )
        for experiment, results in panels
    )
    folder = root / name / scale
    if len(panels) == 1:
        figure = folder / "figure.png"
        return Reproductions(name, reproductions, str(figure) if figure.exists() else None)
    sheet = write_sheet(panels, folder)
    run = Reproductions(name, reproductions, None if sheet is None else str(sheet))
    write_text(folder / SUMMARY_NAME, overview(run))
    return run
