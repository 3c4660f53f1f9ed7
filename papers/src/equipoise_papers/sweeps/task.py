"""A pure function of a cell, and the name and revision under which its results are kept."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from equipoise.records.codec import to_plain

Cell = TypeVar("Cell", bound=Hashable)
Record = TypeVar("Record")

# 64 bits: among a million cells, two digests coincide with a probability of 3e-8.
_DIGEST_LENGTH = 16


@dataclass(frozen=True, slots=True)
class Result(Generic[Cell, Record]):
    """What became of one cell.

    Args:
        cell: Its configuration.
        record: Its numbers; ``None`` if it failed.
        failure: Why it failed; ``None`` if it did not.
        seconds: How long it took.
    """

    cell: Cell
    record: Record | None
    failure: str | None
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Task(Generic[Cell, Record]):
    """What a sweep computes for each of its cells.

    Args:
        name: What results are filed under.
        revision: Version of ``run``; results of other revisions are unused.
        record: Class of the records, a frozen dataclass.
        run: Compute one cell, from nothing but the cell. It reaches other processes by name, so
            it is best a function of a module. What it raises is kept as the cell's failure and
            tried again by the next sweep; an outcome that would come out the same, such as a
            training that diverged, belongs in the record.

    Examples:
        >>> task = Task(name="root", revision=1, record=float, run=lambda cell: cell**0.5)
        >>> task.compute(4.0).record
        2.0
        >>> Task(name="ratio", revision=1, record=float, run=lambda cell: 1 / cell).compute(0)
        Result(cell=0, record=None, failure='ZeroDivisionError: division by zero', seconds=...)
    """

    name: str
    revision: int
    record: type[Record]
    run: Callable[[Cell], Record]

    def identity(self, cell: Cell) -> dict[str, Any]:
        """What a result depends on, as plain values."""
        return {"experiment": self.name, "revision": self.revision, "cell": to_plain(cell)}

    def digest(self, cell: Cell) -> str:
        """A short name for a cell that no other cell, task or revision has."""
        return digest(self.identity(cell))

    def compute(self, cell: Cell) -> Result[Cell, Record]:
        """Compute one cell; a failure is a result with its reason."""
        start = time.perf_counter()
        record, failure = None, None
        try:
            record = self.run(cell)
        except Exception as error:  # one cell's failure must not cost the others
            failure = f"{type(error).__name__}: {error}"
        return Result(cell, record, failure, time.perf_counter() - start)


def digest(identity: dict[str, Any]) -> str:
    """Hash a task's name, its revision and a cell, given as plain values."""
    text = json.dumps(identity, sort_keys=True, allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()[:_DIGEST_LENGTH]


# Stores and sweeps handle tasks whatever their cells are.
AnyTask = Task[Any, Any]
AnyResult = Result[Any, Any]
