"""Smoothness in the terminal: at initialisation, or along a short training."""

from __future__ import annotations

from typing import TYPE_CHECKING

from equipoise.diagnosis.smoothness.record import Smoothness
from equipoise.records import wording
from equipoise.report.checkup.words import smoothness as words
from equipoise.report.console import heading, new_table, remark, text

if TYPE_CHECKING:
    from rich.console import Console


def print_smoothness(found: Smoothness | None, console: Console) -> None:
    """Print how far the gradient is reliable."""
    if found is None:
        return
    heading("How far the gradient is reliable", console)
    if found.steps:
        _training(found, console)
    elif words.tried(found):
        _start(found, console)
    remark(words.conditions(found), console)
    for arm in found.arms:
        if arm.reason is not None:
            remark(f"{wording.capital(arm.name)}: not tried, {arm.reason}", console)


def _start(found: Smoothness, console: Console) -> None:
    change = f"change at {words.start_rate(found)}"
    table = new_table(["variant"], ("loss", "‖gradient‖", "reliable", change, "β"))
    for row in words.start_rows(found):
        cells = (row.loss, row.gradient, row.reliable, row.change, row.beta)
        table.add_row(text(row.name), *cells)
    console.print(table)


def _training(found: Smoothness, console: Console) -> None:
    heads = ("step", "loss", "along the step", "gradient change", "reliable", "β", "shift")
    for arm in words.tried(found):
        console.print()
        name = wording.capital(arm.name)
        console.print(text(f" {name}: {words.arm_line(arm, found)}", "bold"))
        table = new_table(numbers=heads)
        for row in words.measurement_rows(arm):
            cells = (row.losses, row.changes, row.reliable, row.beta, row.shift)
            table.add_row(row.step, row.loss, *cells)
        console.print(table)
