"""The state of sweeps as lines for the terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich import box
from rich.table import Table
from rich.text import Text

from equipoise_papers.report.words import duration
from equipoise_papers.reproduction.record import Gathered, SweepProgress, SweepStatus

if TYPE_CHECKING:
    from rich.console import Console


def show_sweeps(result: SweepStatus | Gathered, console: Console) -> None:
    """Print how far sweeps have come, or what was merged."""
    if isinstance(result, SweepStatus):
        _show_status(result, console)
    else:
        _show_gathered(result, console)


def _show_status(status: SweepStatus, console: Console) -> None:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, header_style="bold")
    for name in ("experiment", "scale"):
        table.add_column(name, no_wrap=True)
    for name in ("finished", "failed", "missing"):
        table.add_column(name, justify="right", no_wrap=True)
    for name in ("spent", "left, one worker"):
        table.add_column(name, justify="right")
    for row in status.rows:
        table.add_row(
            row.experiment,
            row.scale,
            f"{row.finished} of {row.cells}",
            str(row.failed),
            str(row.missing),
            duration(row.seconds),
            _left(row),
        )
    console.print(table)
    for name in status.unknown:
        console.print(Text(f"{name}: unknown to this version of equipoise", "dim"))


def _left(row: SweepProgress) -> str:
    if row.left is None:
        return "?"
    return duration(row.left.value) if row.finished < row.cells else "–"


def _show_gathered(gathered: Gathered, console: Console) -> None:
    count = len(gathered.experiments)
    what = f"{gathered.cells} cells of {count} experiment{'s' if count != 1 else ''}"
    line = f"{gathered.folder}: {what}, {gathered.added} of them new"
    console.print(line, soft_wrap=True, markup=False)
    for path in gathered.damaged:
        console.print(f"left out, not a record: {path}", soft_wrap=True, markup=False)
