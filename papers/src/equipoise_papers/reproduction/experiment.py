"""An experiment: which cells to compute, how to compute one, how to draw and judge them all."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from equipoise_papers.reproduction.record import Scale, Verdict
from equipoise_papers.sweeps.task import AnyResult, Result

if TYPE_CHECKING:
    from matplotlib.figure import FigureBase

__all__ = ["AnyExperiment", "AnyResult", "Experiment", "Result"]

Cell = TypeVar("Cell", bound=Hashable)
Record = TypeVar("Record")


@dataclass(frozen=True, slots=True, kw_only=True)
class Experiment(Generic[Cell, Record]):
    """A published figure as independent cells, and a drawing and a verdict made from them.

    A cell is a frozen dataclass of plain values; it holds everything that its numbers depend
    on, the seed included. Computing, drawing and judging know of each other through records
    alone: figures and verdicts are made anew from stored records without computing anything.

    Args:
        name: Source and figure, such as ``yang2019.fig1a``.
        title: What the figure shows.
        claim: What the source says that it shows.
        choices: What the source does not state, and what was chosen here.
        record: Class of the records, a frozen dataclass.
        cells: Every cell at a scale, in the order of computation.
        run: Compute one cell. It is pure: the same cell gives the same record.
        draw: Draw finished cells, perhaps not all of them, on an empty figure.
        judge: Hold the claim against the records of all cells.
        revision: Raise by one when ``run`` changes its numbers: older records are then unused.
        family: Name that experiments share which have ``run`` and ``record`` in common, and so
            need not compute a cell twice.
        big: Whether ``run`` is one training by :func:`equipoise.training.train_big`, which all
            processes of ``torchrun`` may share.
    """

    name: str
    title: str
    claim: str
    choices: tuple[str, ...]
    record: type[Record]
    cells: Callable[[Scale], tuple[Cell, ...]]
    run: Callable[[Cell], Record]
    draw: Callable[[FigureBase, Mapping[Cell, Record]], None]
    judge: Callable[[Mapping[Cell, Record]], Verdict]
    revision: int = 1
    family: str | None = None
    big: bool = False

    @property
    def filed_under(self) -> str:
        """Name of the store; experiments of a family share their cells."""
        return self.family or self.name


# The runner and the catalogue handle experiments whatever their cells are.
AnyExperiment = Experiment[Any, Any]
