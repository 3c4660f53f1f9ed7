"""Spectra as a table for the terminal, or as Markdown with all digits."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich import box
from rich.table import Table
from rich.text import Text

from equipoise.records import wording
from equipoise.records.estimate import Estimate
from equipoise.theory.table import SpectrumPrediction

if TYPE_CHECKING:
    from rich.console import Console

_HEADS = ("q", "c", "λ_G", "λ_L", "λ_M", "λ↑_G", "λ↑_L", "λ↑_M", "λ_CB")
_DIGITS, _MOST_DIGITS = 4, 13
_FIXED_POINT = 2  # q and c, which the other table of this command shows


def print_spectra(rows: Sequence[SpectrumPrediction], console: Console) -> None:
    """Print one row per activation and batch size."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, collapse_padding=True, header_style="bold")
    table.add_column("activation", overflow="fold", min_width=9)
    numbers = [_parts(row)[_FIXED_POINT:] for row in rows]
    shown = [
        column
        for column, parts in enumerate(zip(*numbers, strict=True))
        if any(abs(part.value) > part.error for part in parts)
    ]
    heads = _HEADS[_FIXED_POINT:]
    for head in ("batch", *(heads[column] for column in shown), "stable"):
        table.add_column(head, justify="right", no_wrap=True)
    digits = _DIGITS if len(shown) < len(heads) else _DIGITS - 1  # within 80 columns
    for row, parts in zip(rows, numbers, strict=True):
        cells = (_short(parts[column], digits) for column in shown)
        stable = "yes" if row.stable else "no"
        table.add_row(Text(row.activation), f"{row.batch_size:,}", *cells, stable)
    console.print(table)
    largest = max(row.largest_error for row in rows)
    legend = (
        "λ: gradients\u2019 covariance on the way back; λ↑: covariance on the way forward; λ_CB: "
        f"between two batches\nlargest error of any number: {wording.number(largest, 1)}; "
        "--markdown or --json print all digits"
    )
    console.print(Text(legend, "dim"))


def spectra_markdown(rows: Sequence[SpectrumPrediction]) -> str:
    """One Markdown table: every digit that the error bounds vouch for."""
    heads = ("activation", "B", *_HEADS, "largest error", "stable")
    lines = ["| " + " | ".join(heads) + " |", "|" + "---|" * len(heads)]
    for row in rows:
        cells = (
            row.activation,
            str(row.batch_size),
            *(_digits(part) for part in _parts(row)),
            f"{row.largest_error:.0e}",
            "yes" if row.stable else "no",
        )
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _parts(row: SpectrumPrediction) -> tuple[Estimate, ...]:
    return (row.q, row.c, *row.backward, *row.forward, row.cross_batch)


def _short(part: Estimate, digits: int) -> str:
    return "0" if abs(part.value) <= part.error else wording.number(part.value, digits)


def _digits(part: Estimate) -> str:
    """As many decimals as are certain."""
    if abs(part.value) <= part.error:
        return "0"
    decimals = _MOST_DIGITS
    if part.error > 0:
        decimals = min(_MOST_DIGITS, max(0, -math.ceil(math.log10(2 * part.error))))
    return f"{part.value:.{decimals}f}"
