"""How far experiments have come, from their stored records."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import get_args

from equipoise.records import Estimate
from equipoise_papers.experiments.experiment import Experiment, Scale
from equipoise_papers.reproduction.catalogue import EXPERIMENTS
from equipoise_papers.reproduction.compute import collect
from equipoise_papers.reproduction.folders import cell_store, require_stores


@dataclass(frozen=True, slots=True)
class SweepProgress:
    """How far one experiment has come at one scale.

    Args:
        experiment: The experiment's name.
        scale: Which grid of cells.
        cells: Cells of the grid.
        finished: Those with a record.
        failed: Those whose latest attempt failed.
        missing: Those without a result.
        seconds: Time that finished and failed cells took, added up over workers.
        left: Time that failed and missing cells will take one after the other, if they take as
            long as finished ones on average; ``None`` if none is finished.
    """

    experiment: str
    scale: Scale
    cells: int
    finished: int
    failed: int
    missing: int
    seconds: float
    left: Estimate | None


@dataclass(frozen=True, slots=True)
class SweepStatus:
    """How far the experiments in a folder have come.

    Args:
        folder: Where their records lie.
        rows: Each experiment at each scale that was begun.
        unknown: Names of stores that belong to no experiment of this version.
    """

    folder: str
    rows: tuple[SweepProgress, ...]
    unknown: tuple[str, ...]


def sweep_status(folder: str | Path) -> SweepStatus:
    """Count finished, failed and missing cells of every experiment in a folder.

    Args:
        folder: Where :func:`equipoise_papers.reproduce` writes to, perhaps at this moment.

    Raises:
        ValueError: If it holds no records.
    """
    root = Path(folder)
    names = require_stores(root)
    known = [e for e in EXPERIMENTS.values() if e.filed_under in names]
    rows = [_row(experiment, scale, root) for experiment in known for scale in get_args(Scale)]
    return SweepStatus(
        folder=str(root),
        rows=tuple(row for row in rows if row.finished or row.failed),
        unknown=tuple(sorted({*names} - {experiment.filed_under for experiment in known})),
    )


def _row(experiment: Experiment, scale: Scale, root: Path) -> SweepProgress:
    results = collect(experiment, scale, cell_store(experiment, root))
    cells = len(experiment.cells_here(scale, {result.cell for result in results}))
    finished = [result.seconds for result in results if result.record is not None]
    return SweepProgress(
        experiment=experiment.name,
        scale=scale,
        cells=cells,
        finished=len(finished),
        failed=len(results) - len(finished),
        missing=cells - len(results),
        seconds=sum(result.seconds for result in results),
        left=_time_left(finished, cells - len(finished)),
    )


def _time_left(seconds: Sequence[float], cells: int) -> Estimate | None:
    """Extrapolate to some more cells, as if all were drawn from one distribution.

    Examples:
        >>> print(_time_left([1.0, 3.0], 4))
        8 ± 5
    """
    if not seconds:
        return None
    method = f"mean of {len(seconds)} finished cells"
    spread = statistics.stdev(seconds) if len(seconds) > 1 else math.inf
    # The scatter of the new draws' sum, and the error of the mean that predicts it.
    error = spread * math.sqrt(cells + cells**2 / len(seconds)) if cells else 0.0
    return Estimate(statistics.fmean(seconds) * cells, error, method)
