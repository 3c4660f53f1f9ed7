"""One experiment's cells on disk: a JSON file each, named by what it was computed from."""

from __future__ import annotations

import hashlib
import json
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any

from equipoise import __version__
from equipoise.experiments.experiment import AnyExperiment, AnyResult, Result
from equipoise.records import from_plain, to_plain, write_json
from equipoise.records.experiments import REPRODUCTION_SCHEMA

# 64 bits: among a million cells, two names coincide with a probability of 3e-8.
_NAME_LENGTH = 16


class CellStore:
    """Results of an experiment's cells, each written whole or not at all.

    Args:
        experiment: Whose cells.
        folder: Where their files lie.
    """

    def __init__(self, experiment: AnyExperiment, folder: Path) -> None:
        self._experiment = experiment
        self._folder = folder

    def prepare(self) -> None:
        """Before any work is lost, see that results can be written.

        Raises:
            ValueError: If they cannot.
        """
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            with TemporaryFile(dir=self._folder):
                pass
        except OSError as error:
            raise ValueError(
                f"cannot write records to {str(self._folder)!r}: {error.strerror}. Name another "
                "folder with --out."
            ) from error

    def path(self, cell: Any) -> Path:
        """Where a cell's file is: a hash of the experiment, its revision and the cell."""
        text = json.dumps(self._identity(cell), sort_keys=True, allow_nan=False)
        digest = hashlib.sha256(text.encode()).hexdigest()
        return self._folder / f"{digest[:_NAME_LENGTH]}.json"

    def save(self, result: AnyResult) -> None:
        """Write a result; an older one of the same cell is replaced."""
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
        write_json(self.path(result.cell), origin | self._identity(result.cell) | outcome)

    def load(self, cell: Any) -> AnyResult | None:
        """Read a cell's result; ``None`` if there is none, or none that can be read."""
        try:
            data = json.loads(self.path(cell).read_text(encoding="utf-8"))
            return self._decode(cell, data)
        except (OSError, ValueError, KeyError, TypeError):
            return None  # as good as never computed: computing it again replaces the file

    def _identity(self, cell: Any) -> dict[str, Any]:
        experiment = self._experiment
        plain = to_plain(cell)
        return {"experiment": experiment.name, "revision": experiment.revision, "cell": plain}

    def _decode(self, cell: Any, data: dict[str, Any]) -> AnyResult:
        if data["schema"] != REPRODUCTION_SCHEMA:
            raise ValueError(f"schema {data['schema']!r} is not {REPRODUCTION_SCHEMA}.")
        if data["cell"] != to_plain(cell):
            raise ValueError("the file describes another cell.")
        record = data["record"]
        if record is not None:
            record = from_plain(self._experiment.record, record)
        return Result(cell, record, data["failure"], float(data["seconds"]))
