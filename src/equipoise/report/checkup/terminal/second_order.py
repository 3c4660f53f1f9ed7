"""Second-order pooling in the terminal: spectra before and after, and what a layer costs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from equipoise.diagnosis.second_order.record import SecondOrderPooling
from equipoise.report.checkup.words import second_order as words
from equipoise.report.console import heading, new_table, remark, text

if TYPE_CHECKING:
    from rich.console import Console


def print_second_order(layers: Sequence[SecondOrderPooling], console: Console) -> None:
    """Print every pooling layer's spectrum before and after its normalisation."""
    if not layers:
        return
    heading("Spectra of second-order pooling", console)
    rows = words.spectrum_rows(layers)
    if rows:
        table = new_table(["layer"], ("", "leading", "κ", "rank", "direction", "cost"))
        for row in rows:
            table.add_row(
                text(row.layer),
                row.side,
                row.top,
                row.condition,
                row.rank,
                row.direction,
                row.cost,
            )
        console.print(table)
        remark(words.conditions(layers), console)
    for name, reason in words.not_measured(layers):
        remark(f"{name}: {reason}", console)
