"""Where each experiment's results lie in a folder of many experiments."""

from __future__ import annotations

from pathlib import Path

from equipoise_papers.experiments.experiment import Experiment, Scale
from equipoise_papers.sweeps.store import CellStore

_CELLS = "cells"


def cell_store(experiment: Experiment, root: Path) -> CellStore:
    """Open an experiment's store.

    Args:
        experiment: The experiment of the results.
        root: Folder of many experiments' results.
    """
    name = experiment.filed_under
    return CellStore(cells_folder(root, name), name, experiment.revision)


def cells_folder(root: Path, name: str) -> Path:
    """Return the folder of a store."""
    return root / name / _CELLS


def has_records(experiment: Experiment, root: Path, scale: Scale) -> bool:
    """Whether any of the experiment's cells has a result, finished or failed."""
    store = cell_store(experiment, root)
    return any(store.path(cell).is_file() for cell in experiment.cells(scale))


def stored_names(root: Path) -> tuple[str, ...]:
    """Names of all stores in a folder, also of experiments that this version does not know."""
    return tuple(sorted(folder.parent.name for folder in root.glob(f"*/{_CELLS}")))


def require_stores(root: Path) -> tuple[str, ...]:
    """Return the names of all stores in a folder.

    Raises:
        ValueError: If there is none.
    """
    names = stored_names(root)
    if not names:
        raise ValueError(
            f"{str(root)!r} holds no records. Name a folder that `equipoise reproduce` wrote to."
        )
    return names
