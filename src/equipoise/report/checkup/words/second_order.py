"""What a report says about second-order pooling, whatever it is written on."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from equipoise.diagnosis.second_order.record import MatrixSpectrum, SecondOrderPooling
from equipoise.records import wording

_SHOWN = 2


@dataclass(frozen=True, slots=True)
class SpectrumRow:
    """One side of a pooling layer in words."""

    layer: str
    side: str
    top: str
    condition: str
    rank: str
    direction: str
    cost: str


def spectrum_rows(layers: Sequence[SecondOrderPooling]) -> list[SpectrumRow]:
    """Two rows per measured layer: before its normalisation and after."""
    return [
        row
        for layer in layers
        if layer.before is not None and layer.after is not None
        for row in (_before(layer, layer.before), _after(layer, layer.after))
    ]


def not_measured(layers: Sequence[SecondOrderPooling]) -> list[tuple[str, str]]:
    """Layers of which something is missing, and why."""
    return [(layer.layer, layer.reason) for layer in layers if layer.reason is not None]


def conditions(layers: Sequence[SecondOrderPooling]) -> str:
    """Say what the numbers are of."""
    measured = [layer for layer in layers if layer.before is not None]
    samples = max((layer.samples for layer in measured), default=0)
    return (
        f"Medians over {wording.count(samples, 'sample')}. Leading: the two largest eigenvalues "
        "as parts of the sum. Direction: the part of the energy in the direction that rank-1 "
        "update normalisation shrinks, or would; in brackets its eigen-residual, 0 at an "
        "eigenvector. Cost: part of a forward and backward pass."
    )


def _before(layer: SecondOrderPooling, spectrum: MatrixSpectrum) -> SpectrumRow:
    share, residual = wording.number(layer.direction_share, 2), layer.eigen_residual
    return SpectrumRow(
        layer=layer.layer,
        side="before",
        direction=f"{share} ({wording.number(residual, 2)})",
        cost="",
        **_spectrum(spectrum, layer.channels),
    )


def _after(layer: SecondOrderPooling, spectrum: MatrixSpectrum) -> SpectrumRow:
    cost = "–" if layer.cost is None else f"{layer.cost.value:.1%}"
    return SpectrumRow(
        layer="",
        side="after",
        direction="shrunk" if layer.shrinks else "",
        cost=cost,
        **_spectrum(spectrum, layer.channels),
    )


def _spectrum(spectrum: MatrixSpectrum, channels: int) -> dict[str, str]:
    known = not math.isnan(spectrum.condition)
    return {
        "top": ", ".join(wording.number(share, 2) for share in spectrum.top[:_SHOWN]),
        "condition": wording.number(spectrum.condition, 2) if known else "–",
        "rank": f"{spectrum.rank:.0f}/{channels:,}",
    }
