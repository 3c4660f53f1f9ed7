"""One task's results on disk: a JSON file each, named by what it was computed from."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any

from equipoise import __version__
from equipoise.files import write_text
from equipoise.records.codec import from_plain, to_plain
from equipoise_papers.reproduction.record import REPRODUCTION_SCHEMA
from equipoise_papers.sweeps.task import AnyResult, AnyTask, Result


class CellStore:
    """Results of a task's cells, each written whole or not at all.

    Any number of processes may use one folder at once: results appear by an atomic rename, and
    two processes that compute the same cell write the same record.

    Args:
        task: Whose cells.
        folder: Where their files lie.
    """

    def __init__(self, task: AnyTask, folder: Path) -> None:
        self.task = task
        self._folder = folder

    def prepare(self) -> None:
        """Before any work is lost, see that results can be written.

        Raises:
            ValueError: If they cannot.
        """
        prepare_folder(self._folder)

    def path(self, cell: Any) -> Path:
        """Where a cell's file is: a hash of the task's name, its revision and the cell."""
        return self._folder / f"{self.task.digest(cell)}.json"

    def save(self, result: AnyResult) -> None:
        """Write a result; an older one of the same cell is replaced, but no record by a failure.

        Raises:
            ValueError: If the file cannot be written, such as on a full disk.
        """
        if result.record is None and self.finished(result.cell) is not None:
            return
        origin = {
            "schema": REPRODUCTION_SCHEMA,
            "equipoise": __version__,
            "created": datetime.now(UTC).isoformat(timespec="seconds"),
        }
        outcome = {
            "record": to_plain(result.record),
            "failure": result.failure,
            "seconds": result.seconds,
        }
        document = origin | self.task.identity(result.cell) | outcome
        write_whole(self.path(result.cell), json.dumps(document, indent=1, allow_nan=False) + "\n")

    def load(self, cell: Any) -> AnyResult | None:
        """Read a cell's result; ``None`` if there is none, or none that can be read."""
        try:
            data = json.loads(self.path(cell).read_text(encoding="utf-8"))
            return self._decode(cell, data)
        except (OSError, ValueError, KeyError, TypeError):
            return None  # as good as never computed: computing it again replaces the file

    def finished(self, cell: Any) -> AnyResult | None:
        """Read a cell's result; ``None`` also if it failed."""
        result = self.load(cell)
        return None if result is None or result.record is None else result

    def _decode(self, cell: Any, data: dict[str, Any]) -> AnyResult:
        if data["schema"] != REPRODUCTION_SCHEMA:
            raise ValueError(f"schema {data['schema']!r} is not {REPRODUCTION_SCHEMA}.")
        if data["cell"] != to_plain(cell):
            raise ValueError("the file describes another cell.")
        record = data["record"]
        if record is not None:
            record = from_plain(self.task.record, record)
        return Result(cell, record, data["failure"], float(data["seconds"]))


def prepare_folder(folder: Path) -> None:
    """Make a folder, and see that files can be written there.

    Raises:
        ValueError: If they cannot.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise _cannot_write(folder, error) from error


def write_whole(path: Path, text: str) -> None:
    """Write a text file that others see whole or not at all, whoever else writes it.

    Raises:
        ValueError: If it cannot be written.
    """
    try:
        write_text(path, text)
    except OSError as error:
        raise _cannot_write(path.parent, error) from error


def _cannot_write(folder: Path, error: OSError) -> ValueError:
    return ValueError(
        f"cannot write records to {str(folder)!r}: {error.strerror}. Name another folder with "
        "--out."
    )
