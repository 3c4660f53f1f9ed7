"""Report of BNP: which layers it preconditions, and with which scales."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class LayerReport:
    """One layer.

    Args:
        name: In the model; empty for the model itself.
        kind: Class of the module.
        used: Whether its gradients are preconditioned.
        reason: Why it is not used, or a remark.
        condition: κ(D), ratio of the largest to the smallest scale; None before the first update.
        row_scale: q; None before the first update.
        updates: Steps that entered the statistics.
        non_finite: Steps left out of the statistics because activations were infinite or NaN.
    """

    name: str
    kind: str
    used: bool
    reason: str = ""
    condition: float | None = None
    row_scale: float | None = None
    updates: int = 0
    non_finite: int = 0


@dataclass(frozen=True, slots=True)
class Report:
    """All layers; prints as a table."""

    layers: tuple[LayerReport, ...]

    def __getitem__(self, name: str) -> LayerReport:
        for layer in self.layers:
            if layer.name == name:
                return layer
        known = ", ".join(layer.name or "''" for layer in self.layers)
        raise KeyError(f"{name!r}; layers are {known}")

    @property
    def used(self) -> tuple[str, ...]:
        """Names of the preconditioned layers."""
        return tuple(layer.name for layer in self.layers if layer.used)

    def __str__(self) -> str:
        rows: list[tuple[str, ...]] = [("layer", "kind", "used", "κ(D)", "q", "updates", "remark")]
        rows += [_row(layer) for layer in self.layers]
        widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
        lines = (
            "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
            for row in rows
        )
        return "\n".join(lines)


def _row(layer: LayerReport) -> tuple[str, ...]:
    remark = layer.reason
    if layer.non_finite:
        remark = "; ".join([remark] * bool(remark) + [f"{layer.non_finite} steps not finite"])
    return (
        layer.name or "(model)",
        layer.kind,
        "yes" if layer.used else "no",
        "" if layer.condition is None else f"{layer.condition:.1f}",
        "" if layer.row_scale is None else f"{layer.row_scale:.3g}",
        str(layer.updates) if layer.used else "",
        remark,
    )
