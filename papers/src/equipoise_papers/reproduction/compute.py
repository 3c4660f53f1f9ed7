"""Compute an experiment's missing cells at a scale, or read the stored ones."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from equipoise.instrument import Progress
from equipoise_papers.big.distributed import under_torchrun
from equipoise_papers.experiments.experiment import Experiment, Scale
from equipoise_papers.experiments.torchrun import compute_together
from equipoise_papers.sweeps.backends import Engine
from equipoise_papers.sweeps.cell import Result
from equipoise_papers.sweeps.grid import sweep
from equipoise_papers.sweeps.shard import Shard
from equipoise_papers.sweeps.store import CellStore


def compute(
    experiment: Experiment,
    scale: Scale,
    store: CellStore,
    progress: Progress,
    *,
    engine: Engine,
    shard: Shard,
) -> tuple[Result[Any], ...]:
    """Finish every cell of a scale, or a shard of them.

    Args:
        experiment: What to compute.
        scale: How much of it.
        store: Where results are, and go.
        progress: Called with the experiment's name, the finished and all cells of the shard.
        engine: Where to compute. Without a number of jobs, scale ``smoke`` stays in this
            process, and scale ``small`` too if it turns out to be quick. Under ``torchrun`` its
            processes compute each cell together instead.
        shard: Which part of the grid.

    Returns:
        One result per cell, in the experiment's order; outside the shard, of stored cells only.
    """

    def report(_: str, done: int, total: int) -> None:
        progress(experiment.name, done, total)  # its store may have a family's name

    cells = experiment.cells(scale)
    part = shard.select(experiment.cells_here(scale), store.digest)
    if under_torchrun():
        compute_together(experiment, part, store, report)
        return collect(experiment, scale, store)
    free = engine.jobs is None and engine.on_this_machine
    results = sweep(
        store,
        part,
        engine=replace(engine, jobs=1) if free and scale == "smoke" else engine,
        # The paper's cells take long: not even the first should keep the other cores waiting.
        begin_here=free and scale == "small",
        progress=report,
    )
    found = (results.get(cell) or store.load(cell) for cell in cells)
    return tuple(result for result in found if result is not None)


def collect(experiment: Experiment, scale: Scale, store: CellStore) -> tuple[Result[Any], ...]:
    """Read the stored results of a scale; cells that were never computed are left out."""
    found = (store.load(cell) for cell in experiment.cells(scale))
    return tuple(result for result in found if result is not None)
