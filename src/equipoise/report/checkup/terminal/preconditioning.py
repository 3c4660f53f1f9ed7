"""Preconditioning in the terminal: condition numbers per layer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from equipoise.diagnosis.preconditioning.record import LayerPreconditioning
from equipoise.records import wording
from equipoise.report.checkup.words import preconditioning as words
from equipoise.report.console import heading, new_table, remark, text

if TYPE_CHECKING:
    from rich.console import Console

_MOST_LAYERS = 8


def print_preconditioning(layers: Sequence[LayerPreconditioning], console: Console) -> None:
    """Print what preconditioning would do, the largest gains first."""
    measured = words.largest_gain_first(layers)
    if not measured:
        return
    heading("What preconditioning (BNP) would do to condition numbers", console)
    numbers = ("inputs", "Hessian", "with BNP", "gain", "κ(D)²", "κ(S)", "rank")
    table = new_table(["layer"], numbers)
    for layer in measured[:_MOST_LAYERS]:
        table.add_row(
            text(layer.layer),
            wording.number(layer.inputs, 2),
            wording.known(layer.hessian),
            wording.known(layer.hessian_after),
            wording.known(layer.gain),
            wording.number(layer.promised, 2),
            wording.known(layer.curvature),
            f"{layer.rank:,}/{layer.columns:,}",
        )
    console.print(table)
    remark(words.LEGEND, console)
    if len(measured) > _MOST_LAYERS:
        remark(f"The {_MOST_LAYERS} largest gains of {len(measured)} layers.", console)
    if any(layer.computed_in != "float64" for layer in measured):
        remark("The model ran in float32, which hides directions of little weight.", console)
    for reason, names in words.hessian_not_measured(layers).items():
        remark(f"Hessian not measured at {wording.listed(names)}: {reason}", console)
