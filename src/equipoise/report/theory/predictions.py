"""Predictions as a table for the terminal."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich import box
from rich.table import Table
from rich.text import Text

from equipoise.records import wording
from equipoise.theory.table import Prediction

if TYPE_CHECKING:
    from rich.console import Console

_STABILITY = {True: "yes", False: "no", None: "–"}
_SETTINGS = {
    "eps": "ε",
    "gamma": "γ",
    "beta": "β",
    "weight_variance": "σ_w²",
    "bias_variance": "σ_b²",
}


def print_predictions(rows: Sequence[Prediction], console: Console) -> None:
    """Print one row per prediction; list the settings that all rows share below the table."""
    rows = [wording.printable(row) for row in rows]
    if not rows:
        console.print(Text("No predictions."))
        return
    shared = {name for name in _SETTINGS if len({getattr(row, name) for row in rows}) == 1}
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, collapse_padding=True, header_style="bold")
    table.add_column("activation", overflow="fold", min_width=6)
    own = [name for name in _SETTINGS if name not in shared]
    heads = ["batch", *(_SETTINGS[name] for name in own), "growth", "scale", "depth"]
    for head in (*heads, "q", "c", "κ", "stable"):
        table.add_column(head, justify="right", no_wrap=True)
    for row in rows:
        table.add_row(
            Text(row.activation),
            f"{row.batch_size:,}",
            *(wording.number(getattr(row, name)) for name in own),
            "×" + wording.number(row.rate.value, 4),
            wording.number(row.depth_scale),
            wording.depth(row.max_depth),
            wording.number(row.q.value),
            wording.number(row.c.value),
            wording.number(row.kappa.value),
            _STABILITY[row.rate.stable],
        )
    console.print(table)
    console.print(Text(_legend(rows, shared), "dim"))


def _legend(rows: Sequence[Prediction], shared: set[str]) -> str:
    error = max(row.rate.relative_error for row in rows)
    lines = [
        "growth: factor per layer on the squared gradient norm, on the way back",
        "scale, depth: layers until it has changed by e and by e¹⁶; how many blocks of",
        "your model could train is another question, which equipoise checkup answers",
        "q, c: second moment and correlation of pre-activations; κ = q (1 − c)",
        f"largest relative error of a growth: {wording.number(error, 1)}",
    ]
    if any(row.rate.stable is False for row in rows):
        lines.append(
            "stable no: deep networks leave this fixed point, and grow at another rate then"
        )
    if shared:
        values = (
            f"{symbol} = {wording.number(getattr(rows[0], name))}"
            for name, symbol in _SETTINGS.items()
            if name in shared
        )
        lines.insert(0, ", ".join(values))
    return "\n".join(lines)
