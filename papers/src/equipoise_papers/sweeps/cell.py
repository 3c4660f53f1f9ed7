"""Cells, the independent pieces of an experiment, and what computing one gives."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar, Generic, TypeVar, get_args, get_origin

import torch

from equipoise_papers.sweeps.provenance import Provenance, provenance

Record = TypeVar("Record")


@dataclass(frozen=True, slots=True)
class Work:
    """How much a cell computes, in numbers that can be compared between cells of one kind.

    Seconds are about so many for a call and so many for an operation, on any one machine.

    Args:
        calls: Of layers, each of which costs time however little it computes.
        operations: Such as multiplications.
    """

    calls: float
    operations: float


@dataclass(frozen=True, slots=True)
class Excerpt:
    """The first steps of a training or turns of a timing, which tell what the whole will cost.

    Where a whole step takes long, the excerpt's steps have fewer samples, and its looks too; the
    whole cell then has as many more of them.

    Args:
        cell: A cell that takes these steps, and then looks at the model once.
        steps: Such steps of the whole cell.
        looks: How often the whole cell evaluates or probes the model so.
        look: A cell of one step that looks at the model instead of ``cell``, where looks take so
            much longer than steps that these could not be told from them.
    """

    cell: Cell[Any]
    steps: int
    looks: int
    look: Cell[Any] | None = None


@dataclass(frozen=True, slots=True)
class Cell(ABC, Generic[Record]):
    """One independent piece of an experiment, such as one training.

    A kind of cell is a subclass, a frozen dataclass of plain values. Its fields hold everything
    that the record depends on, the seed included: the file of a cell's result is named by them.
    The class of the records is the type argument, by which stored records are read:
    ``class Training(Cell[Run])``.

    Examples:
        >>> @dataclass(frozen=True)
        ... class Root(Cell[float]):
        ...     square: float
        ...
        ...     def run(self) -> float:
        ...         return self.square**0.5
        >>> Root(4.0).run(), Root.record_type
        (2.0, <class 'float'>)
    """

    record_type: ClassVar[type[Any]]

    def __init_subclass__(cls) -> None:
        bases = getattr(cls, "__orig_bases__", ())
        records = [get_args(base)[0] for base in bases if get_origin(base) is Cell]
        if not records:
            raise TypeError(f"write class {cls.__name__}(Cell[R]), where R is its records' class.")
        cls.record_type = records[0]

    @abstractmethod
    def run(self) -> Record:
        """Compute the record, from the cell's fields alone.

        The same cell gives the same record. An exception is kept as the cell's failure, and the
        next sweep tries again. A bad result that would come out the same again, such as a
        training that diverged, belongs in the record.
        """

    def runs_on(self) -> torch.device:
        """Where ``run`` computes; its records do not depend on it but for rounding and times."""
        return torch.device("cpu")

    def possible_here(self) -> bool:
        """Whether this machine has what the cell needs; what times a GPU needs one."""
        return True

    def excerpt(self, steps: int) -> Excerpt | None:
        """The first ``steps`` steps, if the cell takes any; ``None`` if it is computed at once."""
        return None

    def work(self) -> Work | None:
        """How much it computes; ``None`` if all cells compute as much, or nobody knows.

        From the work of all cells and the time of some, :func:`cost` tells the time of the rest.
        """
        return None


@dataclass(frozen=True, slots=True)
class Result(Generic[Record]):
    """A cell that was computed, whether it succeeded or not.

    Args:
        cell: The cell.
        record: What ``cell.run()`` returned; ``None`` if it failed.
        failure: The exception, as text; ``None`` if there was none.
        seconds: How long it took.
        provenance: What it was computed by; ``None`` of records that do not say.
    """

    cell: Cell[Record]
    record: Record | None
    failure: str | None
    seconds: float
    provenance: Provenance | None = None


def compute(cell: Cell[Record]) -> Result[Record]:
    """Compute one cell; an exception becomes a result that says why."""
    start = time.perf_counter()
    record, failure, origin = None, None, None
    try:
        origin = provenance(cell.runs_on())
        record = cell.run()
    except Exception as error:  # one cell's failure must not cost the others
        failure = f"{type(error).__name__}: {error}"
    return Result(cell, record, failure, time.perf_counter() - start, origin)
