"""What a report says about second-order pooling."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from equipoise.diagnosis.second_order.record import MatrixSpectrum, SecondOrderPooling
from equipoise.records import wording

_SHOWN = 2


@dataclass(frozen=True, slots=True)
class SpectrumRow:
    """The spectrum of one pooling layer, before or after normalisation, in words."""

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
    """Layers of which something was not measured, and why."""
    return [(layer.layer, layer.reason) for layer in layers if layer.reason is not None]


def conditions(layers: Sequence[SecondOrderPooling]) -> str:
    """Explain the numbers."""
    measured = [layer for layer in layers if layer.before is not None]
    samples = max((layer.samples for layer in measured), default=0)
    return (
        f"Medians over {wording.count(samples, 'sample')}. Leading: the two largest eigenvalues "
        "as parts of the sum. Direction: the part of the energy in the direction that rank-1 "
        "update normalisation (RUN) shrinks or would shrink; in brackets its eigen-residual, 0 "
        "for an eigenvector. Cost: part of a forward and backward pass."
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
    return SpectrumRow(
        layer="",
        side="after",
        direction="shrunk" if layer.shrinks else "",
        cost="–" if layer.cost is None else wording.percent(layer.cost.value, 3),
        **_spectrum(spectrum, layer.channels),
    )


def _spectrum(spectrum: MatrixSpectrum, channels: int) -> dict[str, str]:
    return {
        "top": ", ".join(wording.number(share, 2) for share in spectrum.top[:_SHOWN]),
        "condition": wording.known(spectrum.condition),
        "rank": f"{spectrum.rank:.0f}/{channels:,}",
    }
