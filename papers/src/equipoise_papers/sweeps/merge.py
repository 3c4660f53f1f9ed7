"""Merge stores of one experiment that were filled on different machines."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from equipoise_papers.sweeps.store import SCHEMA, digest, is_undamaged, prepare_folder, write_whole

_IDENTITY = ("experiment", "revision", "cell")


@dataclass(frozen=True, slots=True)
class Conflict:
    """Two files with different records of the same cell.

    Args:
        cell: The cell, as plain values.
        files: Where the records are.
    """

    cell: Any
    files: tuple[Path, Path]

    def __str__(self) -> str:
        first, second = self.files
        return f"{self.cell} in {str(first)!r} and in {str(second)!r}"


@dataclass(slots=True)
class Choice:
    """The file to keep of each cell.

    Args:
        files: By file name. A record is preferred to a failure, and the first to a later one.
        conflicts: Cells with different records.
        damaged: Files that hold no result; their cells count as never computed.
    """

    files: dict[str, Path] = field(default_factory=dict)
    conflicts: list[Conflict] = field(default_factory=list)
    damaged: list[Path] = field(default_factory=list)


def choose(folders: Iterable[Path]) -> Choice:
    """Choose which file of each cell to keep, without writing anything.

    Args:
        folders: Stores of one experiment, the preferred one first. Missing ones count as empty.
    """
    choice = Choice()
    records: dict[str, Any] = {}
    for path in (path for folder in folders for path in sorted(folder.glob("*.json"))):
        document = _read(path)
        if document is None:
            choice.damaged.append(path)
            continue
        name, record = path.name, document["record"]
        if records.get(name) is None and (record is not None or name not in records):
            records[name], choice.files[name] = record, path
        elif record is not None and record != records[name]:
            choice.conflicts.append(Conflict(document["cell"], (choice.files[name], path)))
    return choice


def transfer(choice: Choice, target: Path) -> int:
    """Copy the chosen files into a store.

    Returns:
        How many were not there before, or were there as failures.

    Raises:
        ValueError: If they cannot be written.
    """
    prepare_folder(target)
    elsewhere = [path for path in choice.files.values() if path.parent != target]
    for path in elsewhere:
        write_whole(target / path.name, path.read_text(encoding="utf-8"))
    return len(elsewhere)


def _read(path: Path) -> dict[str, Any] | None:
    """Read a file; ``None`` if it is no result, or not that of the cell in its name."""
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
        identity = {key: document[key] for key in _IDENTITY}
        whole = document["schema"] == SCHEMA and digest(identity) == path.stem
        whole = whole and is_undamaged(document)
        outcome = document["record"] is not None or document["failure"] is not None
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return document if whole and outcome else None
