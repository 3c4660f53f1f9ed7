"""Findings about second-order pooling: what it does to the spectrum, at what cost."""

from __future__ import annotations

from collections.abc import Sequence

from equipoise.diagnosis.second_order.record import MatrixSpectrum, SecondOrderPooling
from equipoise.records import wording
from equipoise.records.finding import Finding

# Normalisation should keep each direction below this part of the energy.
_DOMINANT = 0.5
# A direction with a larger eigen-residual depends on the start of the power iteration.
_FAR = 0.3
# A layer that takes more of a pass than this is worth replacing.
_COSTLY = 0.25


def conclude_second_order(layers: Sequence[SecondOrderPooling]) -> list[Finding]:
    """Turn the records into findings, one per layer."""
    return [_finding(layer) for layer in layers]


def _finding(layer: SecondOrderPooling) -> Finding:
    before, after = layer.before, layer.after
    if before is None or after is None:
        return Finding("note", f"Pooling layer {layer.layer} was not measured", layer.reason or "")
    detail = (
        f"Medians over {wording.count(layer.samples, 'sample')} of {layer.positions} positions × "
        f"{layer.channels} channels: the largest eigenvalue is "
        f"{wording.percent(before.leading_share)} of the spectrum before normalisation and "
        f"{wording.percent(after.leading_share)} after; the condition number is "
        f"{_condition(before)} before and {_condition(after)} after. "
        f"{_direction(layer)}{_cost(layer)}"
    )
    if layer.shrinks and layer.eigen_residual > _FAR:
        return Finding(
            "warning",
            f"{layer.layer} shrinks a direction that is not an eigenvector",
            detail,
            "RUNPool(…, num_steps=2) or more, or start='mean' for features after a ReLU.",
        )
    if after.leading_share > _DOMINANT:
        remedy = "RUNPool(…, eta=1.0, start='mean')" if layer.shrinks else "RUNPool, or a root"
        return Finding(
            "warning", f"One direction dominates the output of {layer.layer}", detail, remedy
        )
    if layer.cost is not None and layer.cost.value > _COSTLY and not layer.shrinks:
        return Finding(
            "note",
            f"{layer.layer} takes {wording.percent(layer.cost.value)} of a training step",
            detail,
            "RUNPool shrinks only the leading direction, at a few per cent of plain pooling.",
        )
    return Finding("good", f"No direction dominates the output of {layer.layer}", detail)


def _condition(spectrum: MatrixSpectrum) -> str:
    return f"{wording.known(spectrum.condition)} (rank {spectrum.rank:.0f})"


def _direction(layer: SecondOrderPooling) -> str:
    verb = "shrinks" if layer.shrinks else "would shrink"
    return (
        f"The direction that RUN {verb} carries {wording.percent(layer.direction_share)} of the "
        f"energy; its eigen-residual is {wording.known(layer.eigen_residual)} (0 for an "
        "eigenvector)."
    )


def _cost(layer: SecondOrderPooling) -> str:
    if layer.cost is None:
        return ""
    return (
        f" The layer takes {wording.percent(layer.cost.value)} ± "
        f"{wording.percent(layer.cost.error, 1)} of a forward and backward pass."
    )
