"""Preconditioning in the terminal: condition numbers per layer, and the side-by-side training."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from equipoise.diagnosis.preconditioning.record import LayerPreconditioning
from equipoise.diagnosis.trial.record import Trial
from equipoise.records import wording
from equipoise.report.checkup.words import preconditioning as words
from equipoise.report.console import enumerated, heading, new_table, remark, text

if TYPE_CHECKING:
    from rich.console import Console

_MOST_LAYERS = 8
_VERDICT_STYLES = {"better": "green", "not better": "yellow", "unclear": "dim", "–": "dim"}


def print_preconditioning(layers: Sequence[LayerPreconditioning], console: Console) -> None:
    """Print what preconditioning would do, the largest gains first."""
    measured = words.largest_gain_first(layers)
    if not measured:
        return
    heading("What preconditioning (BNP) would do to condition numbers", console)
    table = new_table()
    table.add_column("layer", overflow="fold", ratio=1)
    for name in ("inputs", "Hessian", "with BNP", "gain", "κ(D)²", "κ(S)", "rank"):
        table.add_column(name, justify="right", no_wrap=True)
    for layer in measured[:_MOST_LAYERS]:
        table.add_row(
            text(layer.layer),
            wording.number(layer.inputs, 2),
            words.known(layer.hessian),
            words.known(layer.hessian_after),
            words.known(layer.gain),
            wording.number(layer.promised, 2),
            words.known(layer.curvature),
            f"{layer.rank:,}/{layer.columns:,}",
        )
    console.print(table)
    if len(measured) > _MOST_LAYERS:
        remark(f"the {_MOST_LAYERS} largest gains of {len(measured)} layers", console)
    if any(layer.computed_in != "float64" for layer in measured):
        remark("the model ran in float32, which hides directions of little weight", console)
    for reason, names in words.hessian_not_measured(layers).items():
        remark(f"Hessian not measured at {enumerated(names)}: {reason}", console)


def print_trial(trial: Trial | None, console: Console) -> None:
    """Print the outcome of a side-by-side training."""
    if trial is None:
        return
    heading("Trained side by side", console)
    table = new_table()
    table.add_column("way", overflow="fold", ratio=1)
    for name in ("rate", "final loss", "there after", "step", "verdict"):
        table.add_column(name, justify="right", no_wrap=True)
    for row in words.trial_rows(trial):
        verdict = text(row.verdict, _VERDICT_STYLES[row.verdict])
        table.add_row(text(row.name), row.rate, row.loss, row.after, row.step, verdict)
    console.print(table)
    remark(words.trial_conditions(trial), console)
    for arm in trial.arms:
        if arm.reason is not None:
            remark(f"{arm.name}: not tried, {arm.reason}", console)
