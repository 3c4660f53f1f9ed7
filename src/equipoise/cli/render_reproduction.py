"""Print what reproducing everything came to, and where its report is."""

from __future__ import annotations

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from equipoise.records.reproduction import AllReproductions, PublishedReport
from equipoise.report import digest_reproduction as words

_MEGABYTE = 1e6


class ExperimentsFailedError(ChildProcessError):
    """Some experiments broke off or have failed cells; what the others computed is kept."""


def show_all(result: AllReproductions, console: Console) -> None:
    """Print every experiment's verdict.

    Raises:
        ExperimentsFailedError: If some failed, with their names and the first reason, so that
            a script notices.
    """
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, header_style="bold")
    table.add_column("experiment", no_wrap=True)
    table.add_column("verdict", overflow="fold")
    table.add_column("time", justify="right", no_wrap=True)
    for run in result.runs:
        outcome = run.outcome or "broke off"
        spent = "" if run.outcome is None else words.duration(run.seconds)
        table.add_row(run.experiment, outcome, spent)
    console.print(table)
    if result.failed:
        names = ", ".join(run.experiment for run in result.failed)
        raise ExperimentsFailedError(
            f"{len(result.failed)} of {len(result.runs)} experiments failed: {names}. The first: "
            f"{result.failed[0].failure}. Repeat the command to try them again; what is finished "
            "is kept."
        )


def show_report(result: PublishedReport, console: Console) -> None:
    """Print how much holds, and where the report is."""
    report = result.report
    console.print(Text(words.sentence(report), "bold"), Text(words.scope(report)))
    size = result.bytes / _MEGABYTE
    console.print(f"{len(result.files)} files, {size:.1f} MB", markup=False)
    console.print(f"Report: {result.page}", soft_wrap=True, markup=False)
