"""Compute an experiment's missing cells at a scale, or read what is there."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from equipoise_papers.big.distributed import under_torchrun
from equipoise_papers.reproduction.experiment import AnyExperiment, AnyResult
from equipoise_papers.reproduction.record import Scale
from equipoise_papers.reproduction.torchrun import compute_together
from equipoise_papers.sweeps.backends import Engine
from equipoise_papers.sweeps.grid import sweep
from equipoise_papers.sweeps.shard import Shard
from equipoise_papers.sweeps.store import CellStore

Progress = Callable[[str, int, int], None]


def compute(
    experiment: AnyExperiment,
    scale: Scale,
    store: CellStore,
    progress: Progress,
    *,
    engine: Engine,
    shard: Shard,
) -> tuple[AnyResult, ...]:
    """Finish every cell of a scale, or a shard of them.

    Args:
        experiment: What to compute.
        scale: How much of it.
        store: Where results are, and go.
        progress: Told the experiment's name, the finished and all cells of the shard.
        engine: Where to compute. Without a number of jobs, scale ``smoke`` stays in this
            process, and scale ``small`` too if it turns out to be quick. Under ``torchrun`` its
            processes compute each cell together instead.
        shard: Which part of the grid.

    Returns:
        One result per cell, in the experiment's order; outside the shard, of stored cells only.
    """
    cells = experiment.cells(scale)
    if under_torchrun():
        wanted = shard.select(cells, store.task.digest)
        compute_together(
            experiment, wanted, store, lambda done, total: progress(experiment.name, done, total)
        )
        return collect(experiment, scale, store)
    free = engine.jobs is None and engine.on_this_machine
    results = sweep(
        store,
        shard.select(cells, store.task.digest),
        engine=replace(engine, jobs=1) if free and scale == "smoke" else engine,
        # The paper's cells take long: not even the first should keep the other cores waiting.
        begin_here=free and scale == "small",
        progress=lambda done, total: progress(experiment.name, done, total),
    )
    found = (results.get(cell) or store.load(cell) for cell in cells)
    return tuple(result for result in found if result is not None)


def collect(experiment: AnyExperiment, scale: Scale, store: CellStore) -> tuple[AnyResult, ...]:
    """Read the stored results of a scale; cells that were never computed are left out."""
    found = (store.load(cell) for cell in experiment.cells(scale))
    return tuple(result for result in found if result is not None)
