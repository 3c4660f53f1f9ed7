"""Conclusions about second-order pooling: what it does to the spectrum, at what cost."""

from __future__ import annotations

from collections.abc import Sequence

from equipoise.diagnosis.second_order.record import MatrixSpectrum, SecondOrderPooling
from equipoise.records.finding import Finding

# One direction with more of the energy than this is what normalisation is for.
_DOMINANT = 0.5
# A direction further than this from an eigenvector depends on the start.
_FAR = 0.3
# A layer that takes more of a pass than this is worth a cheaper one.
_COSTLY = 0.25


def conclude_second_order(layers: Sequence[SecondOrderPooling]) -> list[Finding]:
    """Turn the records into findings, one per layer."""
    return [_finding(layer) for layer in layers]


def _finding(layer: SecondOrderPooling) -> Finding:
    before, after = layer.before, layer.after
    if before is None or after is None:
        return Finding("note", f"Pooling layer {layer.layer} was not measured", layer.reason or "")
    detail = (
        f"Over {layer.samples} samples of {layer.positions} positions × {layer.channels} channels "
        f"the leading eigenvalue is {before.leading_share:.0%} of the spectrum before "
        f"normalisation and {after.leading_share:.0%} after; condition number {_number(before)} "
        f"before and {_number(after)} after, medians. {_direction(layer)}{_cost(layer)}"
    )
    if layer.shrinks and layer.eigen_residual > _FAR:
        return Finding(
            "warning",
            f"{layer.layer} shrinks a direction that is no eigenvector",
            detail,
            "RUNPool(…, num_steps=2) or more, or start='mean' for features after a ReLU.",
        )
    if after.leading_share > _DOMINANT:
        remedy = "RUNPool(…, eta=1.0, start='mean')" if layer.shrinks else "RUNPool, or a root"
        return Finding(
            "warning", f"One direction dominates what {layer.layer} passes on", detail, remedy
        )
    if layer.cost is not None and layer.cost.value > _COSTLY and not layer.shrinks:
        return Finding(
            "note",
            f"{layer.layer} takes {layer.cost.value:.0%} of a training step",
            detail,
            "RUNPool shrinks the leading direction alone, at a few per cent of plain pooling.",
        )
    return Finding("good", f"{layer.layer} pools a spectrum that no direction dominates", detail)


def _number(spectrum: MatrixSpectrum) -> str:
    return f"{spectrum.condition:.2g} (rank {spectrum.rank:.0f})"


def _direction(layer: SecondOrderPooling) -> str:
    verb = "shrinks" if layer.shrinks else "would shrink"
    return (
        f"The direction that RUN {verb} carries {layer.direction_share:.0%} of the energy, with "
        f"an eigen-residual of {layer.eigen_residual:.2g}."
    )


def _cost(layer: SecondOrderPooling) -> str:
    if layer.cost is None:
        return ""
    return (
        f" The layer takes {layer.cost.value:.0%} ± {layer.cost.error:.0%} of a forward and "
        "backward pass."
    )
