"""How published records agree with newly computed ones, printed to the terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich import box
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from equipoise.report import wording
from equipoise_papers.reproduction.check.record import CheckedCells, Evidence, PublishedCheck
from equipoise_papers.reproduction.summary import MOST_FAILURES

if TYPE_CHECKING:
    from rich.console import Console

_WORDS = {
    "equal": ("equal", "bold green"),
    "rounding": ("rounding", "bold green"),
    "noise": ("noise", "green"),
    "undecided": ("too few", "bold yellow"),
    "changed": ("changed", "bold red"),
    "failed": ("failed", "bold red"),
}


def show_check(check: PublishedCheck, console: Console) -> None:
    """Print how each kind of cells agrees, and what lies behind it."""
    console.print()
    console.print(Text(_sentence(check), "bold"))
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, header_style="bold")
    table.add_column("records of", overflow="fold")
    for name in ("checked", "equal", "rounding", "differ"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("result", no_wrap=True)
    for row in check.rows:
        table.add_row(
            Text(_name(check, row)),
            f"{row.cells} of {row.published:,}",
            *map(str, (row.equal, row.rounding, row.differing)),
            Text(*_WORDS[row.agreement]),
        )
    console.print(table)
    for remark in remarks(check):
        console.print(Padding(Text(remark, "dim"), (0, 1)))
    console.print(f"New records: {check.folder}", soft_wrap=True, markup=False)


def remarks(check: PublishedCheck) -> list[str]:
    """Say what the table's words mean, and on which numbers they rest."""
    lines = [
        f"rounding: within {check.tolerance:g} of a field's largest number",
        f"changed: unchanged code is called so in {check.family_level:.0%} of checks; noise: no "
        "more than that; too few: cells that differ cannot tell noise from change, draw more with "
        "--cells",
    ]
    for row in check.rows:
        lines += _found(row, check.level)
    return [*lines, *_left_out(check)]


def _name(check: PublishedCheck, row: CheckedCells) -> str:
    """Name an experiment, with the kind of cells where it has several."""
    kinds = sum(other.experiment == row.experiment for other in check.rows)
    return row.experiment if kinds == 1 else f"{row.experiment}\n  {row.kind}"


def _sentence(check: PublishedCheck) -> str:
    """Count cells by how they agree."""
    total, failed = sum(row.cells for row in check.rows), sum(row.failed for row in check.rows)
    alike = sum(row.equal + row.rounding for row in check.rows)
    differing = {
        word: sum(row.differing for row in check.rows if row.agreement == word)
        for word in ("noise", "undecided", "changed", "failed")
    }
    parts = [f"{alike} equal to the last bit or within rounding"]
    parts += [
        f"{differing[word]} {text}"
        for word, text in (
            ("noise", "different, by no more than noise"),
            ("undecided", "different, of too few to tell noise from change"),
            ("changed", "different, by more than noise or rounding"),
            ("failed", "different, where others failed"),
        )
        if differing[word]
    ]
    if failed:
        parts.append(f"{failed} failed")
    return f"{wording.count(total, 'cell')} computed anew: {'; '.join(parts)}."


def _found(row: CheckedCells, level: float) -> list[str]:
    name = f"{row.experiment}: {row.kind}: "
    lines = [f"{name}failed: {reason}" for reason in row.failures[:MOST_FAILURES]]
    if row.flipped:
        cells = wording.count(row.flipped, "cell")
        lines.append(f"{name}{cells} with a number that is finite in one record only")
    if len(row.failures) > MOST_FAILURES:
        lines.append(f"{name}and {len(row.failures) - MOST_FAILURES} more failed")
    changed = [test for test in row.evidence if test.changed]
    able = [test for test in row.evidence if test.smallest_p <= level]
    if row.agreement == "changed":
        lines += [f"{name}{_words(test)}" for test in changed]
        lines += [
            f"{name}{deviation.cell} differs in {', '.join(deviation.fields)}; published by "
            f"commit {deviation.commit}, {deviation.created}"
            for deviation in row.deviations[:MOST_FAILURES]
        ]
        if len(row.deviations) > MOST_FAILURES:
            lines.append(f"{name}and {len(row.deviations) - MOST_FAILURES} more differ")
    elif able:
        closest = min(able, key=lambda test: test.p)
        lines.append(
            f"{name}{_words(closest)}, the least likely of {wording.count(len(able), 'test')}"
        )
    return lines


def _words(test: Evidence) -> str:
    """Write a test on one line.

    Examples:
        >>> _words(Evidence("loss", "bias", "spread", 20, 0.1, 0.5, 0.3, 1e-6, False))
        '20 cells differ in loss, on average by +0.1 ± 0.5 spreads between seeds (p = 0.3)'
    """
    cells = wording.count(test.cells, "cell")
    p = f"p = {test.p:.1g}"
    if test.question == "bias":
        unit = "spreads between seeds" if test.yardstick == "spread" else "of their size"
        return (
            f"{cells} differ in {test.field}, on average by {test.value:+.2g} ± {test.margin:.2g} "
            f"{unit} ({p})"
        )
    return (
        f"of {cells} that differ in {test.field}, {test.value:.0%} lie outside the range of the "
        f"published seeds, where chance allows {test.margin:.0%} ({p})"
    )


def _left_out(check: PublishedCheck) -> list[str]:
    places: dict[str, list[str]] = {}
    for row in check.rows:
        for field in row.left_out:
            places.setdefault(field, []).append(row.experiment)
    return [
        f"not compared, {field.partition(': ')[2]}: {field.partition(': ')[0]} in "
        f"{', '.join(dict.fromkeys(names))}"
        for field, names in places.items()
    ]
