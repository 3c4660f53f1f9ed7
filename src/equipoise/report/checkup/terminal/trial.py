"""A side-by-side training in the terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING

from equipoise.diagnosis.trial.record import Trial
from equipoise.records import wording
from equipoise.report.checkup.words import trial as words
from equipoise.report.console import heading, new_table, remark, text

if TYPE_CHECKING:
    from rich.console import Console

_VERDICT_STYLES = {"better": "green", "not better": "yellow", "unclear": "dim", "–": "dim"}


def print_trial(trial: Trial | None, console: Console) -> None:
    """Print the outcome of a side-by-side training."""
    if trial is None:
        return
    heading("Trained side by side", console)
    numbers = ("rate", "final loss", "catches up", "step time", "verdict")
    table = new_table(["variant"], numbers)
    for row in words.rows(trial):
        verdict = text(row.verdict, _VERDICT_STYLES[row.verdict])
        table.add_row(text(row.name), row.rate, row.loss, row.after, row.step, verdict)
    console.print(table)
    remark(words.conditions(trial), console)
    for arm in trial.arms:
        if arm.reason is not None:
            remark(f"{wording.capital(arm.name)}: not tried, {arm.reason}", console)
