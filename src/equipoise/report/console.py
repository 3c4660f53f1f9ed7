"""Parts that all reports in the terminal are made of."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, TypeVar

from rich import box
from rich.padding import Padding
from rich.rule import Rule
from rich.table import Table
from rich.text import Text

from equipoise.records.finding import Finding, Severity
from equipoise.report.pages import MARKS

if TYPE_CHECKING:
    from rich.console import Console

Row = TypeVar("Row")

STYLES: dict[Severity | None, str] = {
    "critical": "bold red",
    "warning": "bold yellow",
    "note": "bold cyan",
    "good": "bold green",
    None: "bold",
}
# Of longer tables only both ends are printed, where gradients are extreme.
_MOST_ROWS, _END_ROWS = 12, 5


def print_header(
    kind: str,
    target: str,
    verdict: tuple[str, str],
    facts: Mapping[str, str],
    console: Console,
    *,
    severity: Severity | None = None,
    interrupted: bool = False,
) -> None:
    """Print what was examined, the verdict in two lines, and what a reader looks up first."""
    console.print()
    console.print(Text.assemble((f"Equipoise {kind}", "bold"), "  ", target))
    console.print()
    mark, style = MARKS[severity] if severity else "●", STYLES[severity]
    lines = Table.grid(padding=(0, 1))
    lines.add_row(Text(mark, style), text(verdict[0], style))
    lines.add_row("", text(verdict[1]))
    if interrupted:
        notice = "Interrupted: the report holds what was finished before."
        lines.add_row("", Text(notice, "bold yellow"))
    console.print(Padding(lines, (0, 1)))
    console.print()
    grid = Table.grid(padding=(0, 2))
    for name, value in facts.items():
        grid.add_row(Text(name, "dim"), text(value))
    console.print(Padding(grid, (0, 1)))


def print_findings(findings: Sequence[Finding], console: Console) -> None:
    """Print findings in their order."""
    heading("Findings", console)
    if not findings:
        console.print(Text(" none", "dim"))
    grid = Table.grid(padding=(0, 1))
    for i, finding in enumerate(findings):
        if i:
            grid.add_row()
        label = Text(f"{MARKS[finding.severity]} {finding.severity:<8}", STYLES[finding.severity])
        grid.add_row(label, text(finding.title, "bold"))
        grid.add_row("", text(finding.detail))
        if finding.remedy is not None:
            grid.add_row("", text(f"→ {finding.remedy}", "cyan"))
    console.print(Padding(grid, (0, 1)))


def heading(title: str, console: Console) -> None:
    """Open a section."""
    console.print()
    console.print(Rule(Text(title, "bold"), align="left", style="dim"))


def remark(words: str, console: Console) -> None:
    """Print a line below a table."""
    console.print(Padding(text(words, "dim"), (0, 1)))


def new_table(names: Sequence[str] = (), numbers: Sequence[str] = ()) -> Table:
    """Make a table without rows.

    Args:
        names: Headings of the first columns, whose text may be folded.
        numbers: Headings of the columns after them, whose text never is.
    """
    table = Table(box=box.SIMPLE_HEAD, expand=True, pad_edge=False, header_style="bold")
    for name in names:
        table.add_column(name, overflow="fold", ratio=1)
    for name in numbers:
        table.add_column(name, justify="right", no_wrap=True)
    return table


def excerpt(rows: Sequence[Row], telling: Collection[int] = ()) -> list[tuple[int, Row] | int]:
    """The first, the last and telling rows with numbers, between them how many are left out.

    Args:
        rows: All of them.
        telling: Indices of rows that are shown wherever they stand.

    Examples:
        >>> excerpt("ab")
        [(1, 'a'), (2, 'b')]
        >>> excerpt(range(13))[4:7]
        [(5, 4), 3, (9, 8)]
        >>> excerpt(range(20), telling=[9, 10])[5:9]
        [4, (10, 9), (11, 10), 4]
    """
    ends = len(rows) - _END_ROWS
    found: list[tuple[int, Row] | int] = []
    for index, row in enumerate(rows):
        if len(rows) <= _MOST_ROWS or not _END_ROWS <= index < ends or index in telling:
            found.append((index + 1, row))
        elif found and isinstance(found[-1], int):
            found[-1] += 1
        else:
            found.append(1)
    return found


def text(words: str, style: str = "") -> Text:
    """Make text that is never parsed as markup and never cut off."""
    return Text(words, style, overflow="fold")
