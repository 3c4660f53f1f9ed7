"""An experiment: which cells to compute, and how to draw and judge their records."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from equipoise_papers.experiments.verdict import Verdict
from equipoise_papers.sweeps.cell import Cell

if TYPE_CHECKING:
    from matplotlib.figure import FigureBase

# How much of the source's effort is spent.
Scale = Literal["smoke", "small", "paper"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Experiment:
    """A published figure as independent cells, and a drawing and a verdict made from them.

    Drawing and judging read records alone: figures and verdicts are made again from stored
    records without computing anything.

    Args:
        name: Source and figure, such as ``yang2019.fig1a``.
        title: What the figure shows.
        claim: What the source says that it shows.
        choices: What the source does not state, and what was chosen here.
        cells: Every cell at a scale, in the order of computation. They may be of several kinds,
            and some of them possible on some machines alone: without these too it is whole.
        draw: Draw finished cells, perhaps not all of them, on an empty figure.
        judge: Compare the claim with the records of all cells.
        revision: Raise by one when a cell's ``run`` changes its numbers: older records are then
            ignored.
        family: Name that experiments share which have cells in common, so that none is computed
            twice.
        big: Whether each cell is one training by :func:`equipoise_papers.train_big`, which all
            processes of ``torchrun`` may share.
    """

    name: str
    title: str
    claim: str
    choices: tuple[str, ...]
    cells: Callable[[Scale], tuple[Cell[Any], ...]]
    draw: Callable[[FigureBase, Mapping[Any, Any]], None]
    judge: Callable[[Mapping[Any, Any]], Verdict]
    revision: int = 1
    family: str | None = None
    big: bool = False

    @property
    def filed_under(self) -> str:
        """Name of the store; experiments of a family share their cells."""
        return self.family or self.name

    def cells_here(
        self, scale: Scale, known: Collection[Cell[Any]] = frozenset()
    ) -> tuple[Cell[Any], ...]:
        """Cells that this machine can compute, and those that are known, such as from another."""
        return tuple(c for c in self.cells(scale) if c in known or c.possible_here())
