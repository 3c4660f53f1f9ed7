"""Where an experiment's results are among those of others."""

from __future__ import annotations

from pathlib import Path

from equipoise_papers.reproduction.experiment import AnyExperiment
from equipoise_papers.reproduction.record import Scale
from equipoise_papers.sweeps.store import CellStore
from equipoise_papers.sweeps.task import Task

_CELLS = "cells"


def has_records(experiment: AnyExperiment, root: Path, scale: Scale) -> bool:
    """Whether there is a result of any of the cells that the experiment has now."""
    store = cell_store(experiment, root)
    return any(store.path(cell).is_file() for cell in experiment.cells(scale))


def cell_store(experiment: AnyExperiment, root: Path) -> CellStore:
    """Open an experiment's store.

    Args:
        experiment: Whose results.
        root: Folder of many experiments' results.
    """
    # Workers get what computes a cell and nothing else, no drawing.
    task = Task(
        name=experiment.filed_under,
        revision=experiment.revision,
        record=experiment.record,
        run=experiment.run,
    )
    return CellStore(task, cells_folder(root, experiment.filed_under))


def cells_folder(root: Path, name: str) -> Path:
    """Return the folder of an experiment's store."""
    return root / name / _CELLS


def stored_names(root: Path) -> tuple[str, ...]:
    """Names of the experiments that have a store, known ones or not."""
    return tuple(sorted(folder.parent.name for folder in root.glob(f"*/{_CELLS}")))


def require_stores(root: Path) -> tuple[str, ...]:
    """Return the same names.

    Raises:
        ValueError: If there is none.
    """
    names = stored_names(root)
    if not names:
        raise ValueError(
            f"{str(root)!r} holds no records. Name a folder that `equipoise reproduce` wrote to."
        )
    return names
