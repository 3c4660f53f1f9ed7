"""The user's own optimiser in the terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING

from equipoise.diagnosis.optimizer.record import OptimizerCheck
from equipoise.report.checkup.words import optimizer as words
from equipoise.report.console import heading, new_table, remark

if TYPE_CHECKING:
    from rich.console import Console


def print_optimizer(found: OptimizerCheck | None, console: Console) -> None:
    """Print what its steps did to the loss, rate by rate."""
    if found is None:
        return
    heading("Steps of your optimiser", console)
    if found.trials:
        table = new_table(["learning rate"], ("steps", "loss before", "after", "lower"))
        for row in words.trial_rows(found):
            table.add_row(row.rate, row.steps, row.before, row.after, row.lowered)
        console.print(table)
    remark(words.conditions(found), console)
