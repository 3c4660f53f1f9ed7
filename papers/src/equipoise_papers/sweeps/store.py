"""One experiment's results on disk: a JSON file per cell, named by what it was computed from."""

from __future__ import annotations

import errno
import hashlib
import json
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any

from equipoise import __version__
from equipoise.files import remove_abandoned, write_text
from equipoise.records import from_plain, to_plain
from equipoise_papers.sweeps.cell import Cell, Record, Result
from equipoise_papers.sweeps.provenance import Provenance

# Raise by one whenever a stored result of the old form can no longer be read.
SCHEMA = 1
# 64 bits: among a million cells, two digests coincide with a probability of 3e-8.
_DIGEST_LENGTH = 16
# A full disk, a quota, and a limit on the size of files: `equipoise` ends with code 3 for these.
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


class CellStore:
    """Results of one experiment's cells, each written whole or not at all.

    Any number of processes may use one folder at once: results appear by an atomic rename, and
    two processes that compute the same cell write the same record.

    Args:
        folder: Where the files lie.
        name: What results are filed under.
        revision: Version of the cells' ``run``. Results of other revisions are ignored.
    """

    def __init__(self, folder: Path, name: str, revision: int = 1) -> None:
        self.name = name
        self._folder, self._revision = folder, revision

    def prepare(self) -> None:
        """Check that results can be written, before any work could be lost.

        Drafts of writers that were killed are removed.

        Raises:
            ValueError: If they cannot.
        """
        prepare_folder(self._folder)
        remove_abandoned(self._folder)

    def identity(self, cell: Cell[Any]) -> dict[str, Any]:
        """Everything that a result depends on, as plain values."""
        return {"experiment": self.name, "revision": self._revision, "cell": to_plain(cell)}

    def digest(self, cell: Cell[Any]) -> str:
        """A short name of a cell, different for every cell, experiment and revision."""
        return digest(self.identity(cell))

    def path(self, cell: Cell[Any]) -> Path:
        """Where a cell's file is."""
        return self._folder / f"{self.digest(cell)}.json"

    def save(self, result: Result[Any]) -> None:
        """Write a result over an older one of the same cell; a failure never replaces a record.

        Raises:
            ValueError: If the file cannot be written.
            OSError: If there is no room for it.
        """
        if result.record is None and self.finished(result.cell) is not None:
            return
        origin: dict[str, Any] = {
            "schema": SCHEMA,
            "equipoise": __version__,
            "created": datetime.now(UTC).isoformat(timespec="microseconds"),
        }
        outcome = {
            "record": to_plain(result.record),
            "failure": result.failure,
            "seconds": result.seconds,
        }
        if result.provenance is not None:
            origin["provenance"] = to_plain(result.provenance)
        document = origin | self.identity(result.cell) | outcome
        document["checksum"] = _hash(document)
        write_whole(self.path(result.cell), json.dumps(document, indent=1, allow_nan=False) + "\n")

    def load(self, cell: Cell[Record]) -> Result[Record] | None:
        """Read a cell's result; ``None`` if there is none, or none that can be read."""
        try:
            return _decode(cell, self.document(cell))
        except (OSError, ValueError, KeyError, TypeError):
            return None  # counts as never computed: computing it again replaces the file

    def document(self, cell: Cell[Any]) -> dict[str, Any]:
        """Read what a cell's file says, with its time of writing.

        Raises:
            OSError: If there is no file.
            ValueError: If it is not JSON.
        """
        document: dict[str, Any] = json.loads(self.path(cell).read_text(encoding="utf-8"))
        return document

    def finished(self, cell: Cell[Record]) -> Result[Record] | None:
        """Read a cell's result; ``None`` also if it failed."""
        result = self.load(cell)
        return None if result is None or result.record is None else result


def digest(identity: dict[str, Any]) -> str:
    """Hash everything that a result depends on, given as plain values."""
    return _hash(identity)


def is_undamaged(document: dict[str, Any]) -> bool:
    """Whether a file's content is what was written; files older than checksums count as such.

    One flipped bit of a digit leaves a file that reads well.
    """
    content = {key: value for key, value in document.items() if key != "checksum"}
    return "checksum" not in document or str(document["checksum"]) == _hash(content)


def _hash(values: dict[str, Any]) -> str:
    text = json.dumps(values, sort_keys=True, allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()[:_DIGEST_LENGTH]


def prepare_folder(folder: Path) -> None:
    """Make a folder, and check that files can be written there.

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
    """Write a text file atomically.

    Raises:
        ValueError: If it cannot be written.
    """
    try:
        write_text(path, text)
    except OSError as error:
        raise _cannot_write(path.parent, error) from error


def _decode(cell: Cell[Record], data: dict[str, Any]) -> Result[Record]:
    if data["schema"] != SCHEMA:
        raise ValueError(f"schema {data['schema']!r} is not {SCHEMA}.")
    if not is_undamaged(data):
        raise ValueError("the file has changed since it was written.")
    if data["cell"] != to_plain(cell):
        raise ValueError("the file describes another cell.")
    record = data["record"]
    if record is not None:
        record = from_plain(cell.record_type, record)
    # Records that were written before provenance was kept have none.
    plain = data.get("provenance")
    origin = None if plain is None else from_plain(Provenance, plain)
    return Result(cell, record, data["failure"], float(data["seconds"]), origin)


def _cannot_write(folder: Path, error: OSError) -> ValueError | OSError:
    why = f"cannot write records to {str(folder)!r}: {error.strerror}."
    if error.errno in _NO_ROOM:  # what is finished is stored; the type and number reach the parent
        return OSError(error.errno, f"{why} Make room and repeat the command to go on")
    return ValueError(f"{why} Name another folder with --out.")
