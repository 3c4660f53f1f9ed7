"""Remedies in the terminal: the answer, loss curves as sparklines, the table and the change."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from equipoise.diagnosis.fix.record import Arm, Fix
from equipoise.records import wording
from equipoise.report.checkup.words import fix as words
from equipoise.report.console import heading, new_table, remark, text

if TYPE_CHECKING:
    from rich.console import Console

_VERDICT_STYLES = {
    "best": "bold green", "better": "green", "ahead": "green", "not better": "yellow",
    "unclear": "dim", "–": "dim",
}  # fmt: skip
_LEVELS = "▁▂▃▄▅▆▇█"
_CURVE = 32  # characters of a curve, at most
_FURTHER = 6
# Columns of a terminal that holds the whole table.
_WIDE = 90


def print_fix(fix: Fix | None, console: Console) -> None:
    """Print what was tried, and what to change."""
    if fix is None:
        return
    heading("What to change", console)
    style = "bold green" if fix.is_sure else "bold"
    console.print(Padding(text(words.answer(fix), style), (0, 1)))
    _curves(fix, console)
    if fix.code:
        console.print()
    for line in fix.code:
        console.print(Padding(text(f"+ {line}", "green"), (0, 1)))
    rows = words.rows(fix)
    if rows:
        wide = console.width >= _WIDE  # the gap is the difference of two other columns
        gap = ("gap",) if wide else ()
        table = new_table(["#"], ("predicted", "training", "evaluation", *gap, "step", "verdict"))
        table.columns[0].min_width = 3
        # A column of names would be as narrow as a letter in a terminal of 80 columns.
        names = Table.grid(padding=(0, 1))
        for number, row in enumerate(rows):
            names.add_row(Text(f"{number}.", "dim"), text(row.name))
            gap = (row.gap,) if wide else ()
            cells = (row.predicted, row.loss, row.held_out, *gap, row.step)
            verdict = text(row.verdict, _VERDICT_STYLES[row.verdict])
            table.add_row(text(f"{number}."), *cells, verdict)
        console.print()
        console.print(Padding(names, (0, 1)))
        console.print(table)
        remark(words.conditions(fix, gap=wide), console)
    for line in (*words.not_tried(fix), *fix.remarks):
        remark(line, console)
    rest = words.further(fix)
    if rest:
        remark(f"Not trained, with what theory says: {wording.listed(rest, _FURTHER)}", console)


def _curves(fix: Fix, console: Console) -> None:
    """Loss over steps of the model as it is and of the best arm, on one scale."""
    shown = [arm for arm in (fix.unchanged, fix.winner) if arm is not None]
    if not fix.winner and len(fix.arms) > 1:
        shown.append(fix.arms[1])
    drawn = [arm for arm in shown if arm.curve is not None]
    if not drawn:
        return
    losses = [loss for arm in drawn for loss in _losses(arm)]
    low, high = min(losses), max(losses)
    grid = Table.grid(padding=(0, 2))
    for arm in drawn:
        values = _losses(arm)
        grid.add_row(
            Text(wording.number(values[0])),
            Text(curve_line(values, low, high), "blue"),
            Text(wording.number(values[-1])),
            text(arm.name),
        )
    console.print(Padding(grid, (0, 1)))


def _losses(arm: Arm) -> Sequence[float]:
    return () if arm.curve is None else arm.curve.losses


def curve_line(values: Sequence[float], low: float, high: float) -> str:
    """Draw values between two bounds, one character for each or for several.

    Examples:
        >>> curve_line([4.0, 3.0, 2.0, 0.0], 0.0, 4.0)
        '█▆▅▁'
    """
    size = max(1, math.ceil(len(values) / _CURVE))
    parts = [values[start : start + size] for start in range(0, len(values), size)]
    means = [math.fsum(part) / len(part) for part in parts]
    span = (high - low) or 1.0
    return "".join(
        _LEVELS[min(len(_LEVELS) - 1, max(0, round((m - low) / span * (len(_LEVELS) - 1))))]
        for m in means
    )
