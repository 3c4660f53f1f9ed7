"""Compute an experiment's missing cells one after the other, and keep each as it comes."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from equipoise.experiments.experiment import AnyExperiment, AnyResult, Result
from equipoise.experiments.store import CellStore
from equipoise.records.experiments import Scale

Progress = Callable[[str, int, int], None]


def compute(
    experiment: AnyExperiment, scale: Scale, store: CellStore, progress: Progress
) -> tuple[AnyResult, ...]:
    """Finish every cell of a scale.

    Cells that are stored are not computed again, except failed ones: what made them fail may
    be gone. An interruption loses at most the cell that was being computed.

    Args:
        experiment: What to compute.
        scale: How much of it.
        store: Where results are, and go.
        progress: Told the experiment's name, the finished and all cells.

    Returns:
        One result per cell, in the experiment's order.
    """
    store.prepare()
    cells = experiment.cells(scale)
    results = []
    progress(experiment.name, 0, len(cells))
    for done, cell in enumerate(cells, start=1):
        result = store.load(cell)
        if result is None or result.record is None:
            result = compute_cell(experiment, cell)
            store.save(result)
        results.append(result)
        progress(experiment.name, done, len(cells))
    return tuple(results)


def collect(experiment: AnyExperiment, scale: Scale, store: CellStore) -> tuple[AnyResult, ...]:
    """Read the stored results of a scale; cells that were never computed are left out."""
    found = (store.load(cell) for cell in experiment.cells(scale))
    return tuple(result for result in found if result is not None)


def compute_cell(experiment: AnyExperiment, cell: Any) -> AnyResult:
    """Compute one cell; a failure is a result with its reason."""
    start = time.perf_counter()
    record, failure = None, None
    try:
        record = experiment.run(cell)
    except Exception as error:  # one cell's failure must not cost the others
        failure = f"{type(error).__name__}: {error}"
    return Result(cell, record, failure, time.perf_counter() - start)
