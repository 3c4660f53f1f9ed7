"""Verdicts, the catalogue and the state of sweeps, printed to the terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich import box
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from equipoise.report import wording
from equipoise_papers.report import words
from equipoise_papers.report.record import PublishedReport
from equipoise_papers.reproduction.catalogue import Catalogue
from equipoise_papers.reproduction.gather import Gathered
from equipoise_papers.reproduction.record import AllReproductions, Reproduction, Reproductions
from equipoise_papers.reproduction.status import SweepProgress, SweepStatus
from equipoise_papers.reproduction.summary import MOST_FAILURES, duration

if TYPE_CHECKING:
    from rich.console import Console

_MEGABYTE = 1e6
_STYLES = {
    "holds": "bold green",
    "partly open": "bold yellow",
    "mixed": "bold yellow",
    "fails": "bold red",
    "undecided": "bold yellow",
    "not testable here": "bold",
    "incomplete": "bold magenta",
    "not judged": "bold",
}


def show_reproductions(run: Reproductions, console: Console) -> None:
    """Print every panel's verdict and the checks behind it."""
    for panel in run.panels:
        console.print()
        console.print(
            Text(panel.experiment, "bold"),
            Text(panel.outcome, _STYLES[panel.outcome]),
            Text(
                f"{panel.fidelity}, at scale {panel.scale}, {duration(panel.seconds)}",
                "dim",
            ),
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


def show_catalogue(catalogue: Catalogue, console: Console) -> None:
    """Print every name that can be reproduced, and what it shows."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, header_style="bold")
    table.add_column("name", no_wrap=True)
    table.add_column("shows", overflow="fold")
    for entry in catalogue.entries:
        table.add_row(Text(entry.name), Text(entry.title))
    console.print(table)


def show_all(result: AllReproductions, console: Console) -> None:
    """Print every experiment's verdict."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, header_style="bold")
    table.add_column("experiment", no_wrap=True)
    table.add_column("verdict", overflow="fold")
    table.add_column("time", justify="right", no_wrap=True)
    for run in result.runs:
        outcome = run.outcome or "broke off"
        spent = "" if run.outcome is None else duration(run.seconds)
        table.add_row(run.experiment, outcome, spent)
    console.print(table)


def show_report(result: PublishedReport, console: Console) -> None:
    """Print how many rows hold, and where the report is."""
    report = result.report
    console.print(Text(words.sentence(report), "bold"), Text(words.scope(report)))
    size = result.bytes / _MEGABYTE
    console.print(f"{len(result.files)} files, {size:.1f} MB", markup=False)
    console.print(f"Report: {result.page}", soft_wrap=True, markup=False)


def show_status(status: SweepStatus, console: Console) -> None:
    """Print how many cells of each experiment are finished, and how long the rest will take."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 0, 0, 1), header_style="bold")
    for name in ("experiment", "scale"):
        table.add_column(name, no_wrap=True)
    for name in ("finished", "failed", "missing", "time\nspent", "left, one\nworker"):
        table.add_column(name, justify="right", no_wrap=True)
    for row in status.rows:
        table.add_row(
            row.experiment,
            row.scale,
            f"{row.finished}/{row.cells}",
            str(row.failed),
            str(row.missing),
            _short(row.seconds),
            _left(row),
        )
    console.print(table)
    for name in status.unknown:
        console.print(Text(f"{name}: unknown to this version of equipoise-papers", "dim"))


def show_gathered(gathered: Gathered, console: Console) -> None:
    """Print what was merged."""
    cells = wording.count(gathered.cells, "cell")
    experiments = wording.count(len(gathered.experiments), "experiment")
    line = f"{gathered.folder}: {cells} of {experiments}, {gathered.added:,} of them new"
    console.print(line, soft_wrap=True, markup=False)
    for path in gathered.damaged:
        console.print(f"left out, not a record: {path}", soft_wrap=True, markup=False)


def _left(row: SweepProgress) -> str:
    if row.left is None:
        return "?"
    return _short(row.left.value) if row.finished < row.cells else "–"


def _short(seconds: float) -> str:
    return duration(seconds).replace("less than ", "< ")  # so that rows fit in 80 columns


def _remarks(panel: Reproduction) -> list[str]:
    remarks = [f"unlike the source: {part}" for part in panel.left_out]
    if panel.finished < panel.cells:
        remarks.append(f"{panel.finished} of {panel.cells} cells are finished")
    remarks += [f"failed: {failure}" for failure in panel.failures[:MOST_FAILURES]]
    if len(panel.failures) > MOST_FAILURES:
        remarks.append(f"and {len(panel.failures) - MOST_FAILURES} more failed")
    return remarks
