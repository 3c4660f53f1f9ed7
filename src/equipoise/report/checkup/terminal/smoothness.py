"""Smoothness in the terminal: at the start, or along a short training."""

from __future__ import annotations

from typing import TYPE_CHECKING

from equipoise.diagnosis.smoothness.record import Smoothness
from equipoise.report.checkup.words import smoothness as words
from equipoise.report.console import heading, new_table, remark, text

if TYPE_CHECKING:
    from rich.console import Console


def print_smoothness(found: Smoothness | None, console: Console) -> None:
    """Print how far the gradient can be trusted."""
    if found is None:
        return
    heading("How far the gradient can be trusted", console)
    if found.steps:
        _training(found, console)
    elif words.tried(found):
        _start(found, console)
    remark(words.conditions(found), console)
    for arm in found.arms:
        if arm.reason is not None:
            remark(f"{arm.name}: not tried, {arm.reason}", console)


def _start(found: Smoothness, console: Console) -> None:
    table = new_table()
    table.add_column("way", overflow="fold", ratio=1)
    for name in ("loss", "‖gradient‖", "trusted", f"at {words.start_rate(found)}", "β"):
        table.add_column(name, justify="right", no_wrap=True)
    for row in words.start_rows(found):
        cells = (row.loss, row.gradient, row.trusted, row.change, row.beta)
        table.add_row(text(row.name), *cells)
    console.print(table)


def _training(found: Smoothness, console: Console) -> None:
    for arm in words.tried(found):
        console.print()
        console.print(text(f" {arm.name}: {words.arm_line(arm, found)}", "bold"))
        table = new_table()
        for name in ("step", "loss", "along the step", "gradient change", "trusted", "β", "shift"):
            table.add_column(name, justify="right", no_wrap=True)
        for row in words.look_rows(arm):
            cells = (row.losses, row.changes, row.trusted, row.beta, row.shift)
            table.add_row(row.step, row.loss, *cells)
        console.print(table)
