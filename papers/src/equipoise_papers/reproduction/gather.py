"""Bring records together that were computed on several machines."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

from equipoise_papers.reproduction.folders import cells_folder, require_stores, stored_names
from equipoise_papers.sweeps.merge import Choice, choose, transfer


@dataclass(frozen=True, slots=True)
class Gathered:
    """Records that were merged into one folder.

    Args:
        folder: Where the records lie now.
        experiments: Experiments that they belong to.
        cells: Cells that the folder holds now, failed ones included.
        added: How many of them it lacked before, or had as failures.
        damaged: Files that hold no record and were left where they are.
    """

    folder: str
    experiments: tuple[str, ...]
    cells: int
    added: int
    damaged: tuple[str, ...]


def gather(sources: Sequence[str | Path], *, out: str | Path) -> Gathered:
    """Merge the records of several folders into one.

    A record is preferred to a failure of the same cell. Figures and verdicts are not merged:
    :func:`equipoise_papers.reproduce` makes them again with ``redraw=True``.

    Args:
        sources: Folders that :func:`~equipoise_papers.reproduce` wrote to.
        out: Folder for all records. Those that it holds already take part.

    Raises:
        ValueError: If a folder holds no records, the same cell has different records in two
            places, or the folder cannot be written to. Nothing is written then.
    """
    roots, target = [Path(source) for source in sources], Path(out)
    names = sorted({*stored_names(target), *chain.from_iterable(map(require_stores, roots))})
    folders = dict.fromkeys((target, *roots))  # each once, and what is there already first
    choices = {name: choose(cells_folder(root, name) for root in folders) for name in names}
    _refuse_conflicts(choices)
    added = sum(transfer(choice, cells_folder(target, name)) for name, choice in choices.items())
    return Gathered(
        folder=str(target),
        experiments=tuple(names),
        cells=sum(len(choice.files) for choice in choices.values()),
        added=added,
        damaged=tuple(str(path) for choice in choices.values() for path in choice.damaged),
    )


def _refuse_conflicts(choices: dict[str, Choice]) -> None:
    conflicts = [
        (name, conflict) for name, choice in choices.items() for conflict in choice.conflicts
    ]
    if conflicts:
        name, first = conflicts[0]
        raise ValueError(
            f"{len(conflicts)} cells have different records in two places, so nothing was "
            f"gathered: {name} {first}. Were they computed on unlike machines? Leave one folder "
            "out."
        )
