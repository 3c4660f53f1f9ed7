"""Verdicts and the catalogue as lines for the terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich import box
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from equipoise.experiments.summary import MOST_FAILURES
from equipoise.records.experiments import Catalogue, Reproduction, Reproductions
from equipoise.report.digest_reproduction import duration

if TYPE_CHECKING:
    from rich.console import Console

_STYLES = {
    "reproduced": "bold green",
    "partly": "bold yellow",
    "not reproduced": "bold red",
    "undecided": "bold yellow",
    "incomplete": "bold magenta",
    "not judged": "bold",
}


def show(result: Catalogue | Reproductions, console: Console) -> None:
    """Print the catalogue, or every panel's verdict and the checks behind it."""
    if isinstance(result, Catalogue):
        _show_catalogue(result, console)
    else:
        _show_reproductions(result, console)


def _show_reproductions(run: Reproductions, console: Console) -> None:
    for panel in run.panels:
        console.print()
        console.print(
            Text(panel.experiment, "bold"),
            Text(panel.outcome, _STYLES[panel.outcome]),
            Text(f"at scale {panel.scale}, {duration(panel.seconds)}", "dim"),
        )
        console.print(Padding(Text(panel.title), (0, 1)))
        table = Table(box=box.SIMPLE_HEAD, expand=True, pad_edge=False, header_style="bold")
        table.add_column("claim", overflow="fold", ratio=1)
        table.add_column("found", overflow="fold", ratio=1)
        table.add_column("holds", no_wrap=True)
        for check in panel.checks:
            table.add_row(Text(check.sentence), Text(check.found), check.answer)
        if panel.checks:
            console.print(table)
        for remark in _remarks(panel):
            console.print(Padding(Text(remark, "dim"), (0, 1)))
    if run.figure is not None:
        console.print(f"Figure: {run.figure}", soft_wrap=True, markup=False)


def _show_catalogue(catalogue: Catalogue, console: Console) -> None:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, header_style="bold")
    table.add_column("name", no_wrap=True)
    table.add_column("shows", overflow="fold")
    for entry in catalogue.entries:
        table.add_row(Text(entry.name), Text(entry.title))
    console.print(table)


def _remarks(panel: Reproduction) -> list[str]:
    remarks = [f"not attempted: {part}" for part in panel.left_out]
    if panel.finished < panel.cells:
        remarks.append(f"{panel.finished} of {panel.cells} cells are finished")
    remarks += [f"failed: {failure}" for failure in panel.failures[:MOST_FAILURES]]
    if len(panel.failures) > MOST_FAILURES:
        remarks.append(f"and {len(panel.failures) - MOST_FAILURES} more failed")
    return remarks
