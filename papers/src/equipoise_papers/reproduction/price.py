"""What scale ``paper`` costs, said before it starts, and refused if it is more than a day."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from equipoise.records import Estimate
from equipoise_papers.experiments.experiment import Scale
from equipoise_papers.reproduction.catalogue import EXPERIMENTS, find
from equipoise_papers.reproduction.folders import cell_store
from equipoise_papers.reproduction.summary import duration
from equipoise_papers.sweeps.cell import Cell
from equipoise_papers.sweeps.cost import cost
from equipoise_papers.sweeps.shard import Shard
from equipoise_papers.sweeps.store import CellStore

# Seconds that need no asking.
_A_DAY = 24 * 3600.0
# Seconds in which cells of a store are timed, where there are many stores.
_PATIENCE_OF_ALL = 10.0


@dataclass(frozen=True, slots=True)
class Price:
    """What the missing cells of one store cost.

    Args:
        store: Name under which the cells are filed.
        cells: How many are missing.
        seconds: Of computing, one cell after the other; ``None`` if none could be timed.
        trouble: Why none could be timed.
        at_once: How many are computed at the same time.
    """

    store: str
    cells: int
    seconds: Estimate | None
    trouble: str
    at_once: int

    @property
    def wall(self) -> float:
        """Seconds until they are finished; 0 if that is not known."""
        return 0.0 if self.seconds is None else self.seconds.value / self.at_once

    def words(self) -> str:
        """Write it on one line.

        Examples:
            >>> Price("a.b", 40, Estimate(144000.0, 7200.0, "8 of 40 timed"), "", 2).words()
            'a.b: 40 cells, about 40.0 h ± 5 % of computing (8 of 40 timed), 20.0 h with 2 at once'
        """
        if self.seconds is None:
            return f"{self.store}: {self.cells} cells, of unknown cost: {self.trouble}"
        wall = "" if self.at_once == 1 else f", {_long(self.wall)} with {self.at_once} at once"
        return (
            f"{self.store}: {self.cells} cells, about {_long(self.seconds.value)}{self._error()} "
            f"of computing ({self.seconds.method}){wall}"
        )

    def _error(self) -> str:
        """The standard error, if more than one cell tells it."""
        if self.seconds is None or not 0 < self.seconds.error < math.inf:
            return ""
        return f" ± {math.ceil(100 * self.seconds.error / self.seconds.value)} %"


def prices(
    name: str, *, out: str | Path, jobs: int | None, shard: tuple[int, int], scale: Scale = "paper"
) -> tuple[Price, ...]:
    """Estimate what is missing of an experiment, of a figure or of ``all``, store by store.

    Args:
        name: As :func:`equipoise_papers.reproduce` takes it, or ``all``.
        out: Folder of records; cells that are no trainings are computed whole and kept there.
        jobs: Cells at once; ``None`` for as many as there are cores. Of cells on a GPU, whose
            steps share it, one is counted.
        shard: Which part of each grid.
        scale: How much.

    Raises:
        ValueError: If the name is unknown, or a cell of a single store fails at once, such as
            for want of its data.
    """
    every = tuple(EXPERIMENTS.values()) if name == "all" else find(name)
    stores: dict[str, tuple[CellStore, dict[Cell[Any], None]]] = {}
    for experiment in every:
        store, cells = stores.setdefault(
            experiment.filed_under, (cell_store(experiment, Path(out)), {})
        )
        part = Shard(*shard).select(experiment.cells_here(scale), store.digest)
        cells.update(dict.fromkeys(cell for cell in part if store.finished(cell) is None))
    return tuple(
        _price(store, tuple(cells), jobs, alone=len(stores) == 1)
        for store, cells in stores.values()
    )


def start_or_refuse(found: Sequence[Price], *, agreed: bool, say: Callable[[str], None]) -> None:
    """Print what experiments cost, and refuse what takes more than a day.

    Args:
        found: By store.
        agreed: Whether any price is accepted.
        say: Prints a line.

    Raises:
        ValueError: If it takes more than a day, and nobody has agreed to that.
    """
    for price in found:
        if price.cells:
            say(price.words())
    total = sum(price.wall for price in found)
    if len(found) > 1:
        say(f"together about {_long(total)}")
    if total > _A_DAY and not agreed:
        raise ValueError(
            f"this would take about {_long(total)}. Add --yes to start it all the same; --device "
            "cuda computes on a GPU, --shard 1/N one part of N, such as on each of N machines."
        )


def _price(
    store: CellStore, cells: tuple[Cell[Any], ...], jobs: int | None, *, alone: bool
) -> Price:
    on_cpu = all(cell.runs_on().type == "cpu" for cell in cells)
    at_once = min(jobs or os.cpu_count() or 1, len(cells)) if on_cpu and cells else 1
    try:
        seconds = cost(store, cells) if alone else cost(store, cells, _PATIENCE_OF_ALL)
    except ValueError as error:
        if alone:
            raise
        return Price(store.name, len(cells), None, str(error), at_once)
    return Price(store.name, len(cells), seconds, "", at_once)


def _long(seconds: float) -> str:
    """Write a time, beyond two days in days.

    Examples:
        >>> _long(7200.0), _long(40 * 86400.0)
        ('2.0 h', '40 days')
    """
    days = seconds / 86400
    return duration(seconds) if days < 2 else f"{days:.0f} days"
