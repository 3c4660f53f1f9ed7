"""Findings about width: whether learning rates carry over, and which layers stand in the way."""

from __future__ import annotations

import math
from collections.abc import Sequence

from equipoise.diagnosis.width.record import CoordinateCheck, LayerOverWidth, WidthTrend
from equipoise.records import wording
from equipoise.records.finding import Finding

_NAMED = 4


def conclude_coordinate_check(found: CoordinateCheck | None) -> list[Finding]:
    """Turn the record into findings."""
    if found is None:
        return []
    lost = _with(found, "not finite")
    if lost:
        return [_diverged(found, lost)]
    if found.transfers:
        return [_transfers(found)]
    findings = [*_outputs(found), *_own_changes(found)]
    if not findings and found.transfers is False:
        findings = [_together(found)]
    return findings or [_undecided(found)]


def _transfers(found: CoordinateCheck) -> Finding:
    steepest = max(found.layers, key=lambda layer: abs(layer.change.slope.value))
    return Finding(
        "good",
        "A learning rate found at one width holds at another",
        f"{_conditions(found)}: no layer's output or change depends on the width. The steepest "
        f"change is {steepest.layer}'s, {_power(steepest.change)}.",
    )


def _diverged(found: CoordinateCheck, lost: Sequence[LayerOverWidth]) -> Finding:
    sizes = zip(found.widths, lost[0].change.sizes, strict=True)
    widths = [f"{width}" for width, size in sizes if not size < float("inf")]
    return Finding(
        "critical",
        "Training diverges within a few steps",
        f"{_conditions(found)}: {lost[0].layer} is no longer finite at width "
        f"{', '.join(widths) or 'of some seed'}.",
        "Take a lower rate: optimizer=lambda model: torch.optim.Adam(model.parameters(), lr=1e-4)",
    )


def _outputs(found: CoordinateCheck) -> list[Finding]:
    """Layers whose output depends on width before any step."""
    moving = [
        layer
        for layer in found.layers
        if layer.output.trend == "grows"
        or (layer.output.trend == "vanishes" and not layer.is_last)
    ]
    if not moving:
        return []
    verb = "grow" if moving[0].output.trend == "grows" else "vanish"
    exponent = -moving[0].output.slope.value
    return [
        Finding(
            "warning",
            f"Activations {verb} with width before training",
            f"At initialisation: {_listed(moving, 'output')}.",
            f"Multiply the initial weights of {moving[0].layer} by width ** {exponent:.2g}; then "
            "check again, because later layers inherit its size.",
        )
    ]


def _own_changes(found: CoordinateCheck) -> list[Finding]:
    """Layers whose learning rate has to follow the width."""
    findings = []
    groups = (
        ("grows", "Wider models need a smaller learning rate: {} with a change that grows"),
        ("vanishes", "Some layers learn less and less in wider models: {}"),
    )
    for trend, title in groups:
        moving = [layer for layer in found.layers if layer.own_change.trend == trend]
        if not moving:
            continue
        detail = (
            f"{_conditions(found)}. By their own weights, outputs change as "
            f"{_listed(moving, 'own_change')}.{_predicted(found, moving)}"
            f"{_inherited(found, trend)}"
        )
        count = wording.count(len(moving), "layer")
        findings.append(Finding("warning", title.format(count), detail, _rates(found, moving)))
    return findings


def _rates(found: CoordinateCheck, layers: Sequence[LayerOverWidth]) -> str:
    """Groups of parameters for the optimiser, as code."""
    base = found.widths[0]
    groups = [
        f"{{'params': model.get_submodule('{layer.layer}').parameters(), "
        f"'lr': lr * (width / {base}) ** {layer.rate_exponent:g}}}"
        for layer in layers[:_NAMED]
    ]
    return f"{found.optimizer}([{', '.join(groups)}, …])"


def _predicted(found: CoordinateCheck, layers: Sequence[LayerOverWidth]) -> str:
    if found.unpredicted:
        return f" No prediction: {found.unpredicted}."
    known = [
        x
        for x in layers
        if not math.isnan(x.first_step.predicted_slope + x.first_step.slope.value)
    ]
    if not known:
        return ""
    steps = [
        f"{x.layer}: {wording.number(x.first_step.predicted_slope, 2)} (measured "
        f"{wording.spread(x.first_step.slope)})"
        for x in known
    ]
    return f" Exponents that theory gives for the first step: {wording.listed(steps, _NAMED)}."


def _inherited(found: CoordinateCheck, trend: str) -> str:
    """Layers that change more or less because of others."""
    others = [x for x in found.layers if x.change.trend == trend and x.own_change.trend != trend]
    return f" With what earlier layers add: {_listed(others, 'change')}." if others else ""


def _together(found: CoordinateCheck) -> Finding:
    moving = [x for x in found.layers if x.change.trend in ("grows", "vanishes")]
    return Finding(
        "warning",
        "Changes depend on width, though no layer's own change does",
        f"{_conditions(found)}: {_listed(moving, 'change')}. Changes of earlier layers add up "
        "differently at each width.",
        "Let the last layer start smaller: torch.nn.init.normal_(head.weight, std=1 / width).",
    )


def _undecided(found: CoordinateCheck) -> Finding:
    unclear = _with(found, "undecided")
    return Finding(
        "note",
        "Too uncertain to tell whether learning rates carry over",
        f"{_conditions(found)}: {_listed(unclear, 'change')}.",
        "coordinate_check(build, data, widths=(64, 128, 256, 512, 1024), seeds=8).",
    )


def _with(found: CoordinateCheck, trend: str) -> list[LayerOverWidth]:
    return [
        layer
        for layer in found.layers
        if trend in (layer.output.trend, layer.own_change.trend, layer.change.trend)
    ]


def _conditions(found: CoordinateCheck) -> str:
    widths = ", ".join(map(str, found.widths))
    return (
        f"{wording.count(found.steps, 'step')} of {found.optimizer} at widths {widths}, "
        f"{wording.count(found.seeds, 'seed')} each"
    )


def _listed(layers: Sequence[LayerOverWidth], size: str) -> str:
    return wording.listed([f"{x.layer}: {_power(getattr(x, size))}" for x in layers], _NAMED)


def _power(trend: WidthTrend) -> str:
    return f"∝ width^({wording.spread(trend.slope)})"
