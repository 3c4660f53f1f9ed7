"""What a report says, whatever it is written on: the verdict, merged blocks, rankings."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import groupby

from equipoise.diagnosis.record import Block, Checkup
from equipoise.diagnosis.verdict import distance_from_one
from equipoise.probes.conditioning import LayerConditioning
from equipoise.probes.gradient_growth import LayerGradients
from equipoise.records import wording

# Predicted rates within two per cent of each other draw a straight line.
_ALIKE = 1.02


@dataclass(frozen=True, slots=True)
class BlockGroup:
    """Consecutive blocks that a reader cannot tell apart.

    Args:
        first: Name of the first block's normaliser.
        last: Name of the last one's.
        size: Number of blocks.
        block: The one with the steepest predicted rate.
        weight_variance: Least and largest in the group.
    """

    first: str
    last: str
    size: int
    block: Block
    weight_variance: tuple[float, float]

    @property
    def name(self) -> str:
        """The layers in words."""
        if self.size == 1:
            return self.first
        return f"{self.first} … {self.last} ({self.size} ×)"

    @property
    def chain(self) -> str:
        """The block in words; a following layer's name only where it is unambiguous."""
        block = self.block
        closing = block.following if self.size == 1 else ""
        return " → ".join(filter(None, (block.kind, block.activation, closing)))


def predicted_steps(checkup: Checkup) -> tuple[float, ...]:
    """Return predicted growth from layer to layer, where it is known and not all the same."""
    rates = [block.rate for block in checkup.blocks[:-1]]
    known = [rate.value for rate in rates if rate is not None]
    layers = [layer.layer for layer in checkup.growth.layers] if checkup.growth else []
    if len(known) < max(1, len(rates)) or layers != [block.layer for block in checkup.blocks]:
        return ()
    return tuple(known) if max(known) > _ALIKE * min(known) else ()


def total_factor(layers: Sequence[LayerGradients]) -> float | None:
    """Return the first layer's gradient over the last one's, where both are finite."""
    if len(layers) < 2:
        return None
    first, last = layers[0].gradient.value, layers[-1].gradient.value
    if not (math.isfinite(first) and math.isfinite(last) and last > 0):
        return None
    return first / last


def merge_blocks(blocks: Sequence[Block]) -> list[BlockGroup]:
    """Merge consecutive blocks that differ in nothing that the report would show."""
    groups = []
    for _, members in groupby(blocks, key=_appearance):
        group = list(members)
        variances = [block.weight_variance for block in group]
        groups.append(
            BlockGroup(
                first=group[0].layer,
                last=group[-1].layer,
                size=len(group),
                block=max(group, key=_steepness),
                weight_variance=(min(variances), max(variances)),
            )
        )
    return groups


def remarks(groups: Iterable[BlockGroup]) -> dict[str, list[str]]:
    """Collect the names of blocks under what weakens or prevents their predictions."""
    found: dict[str, list[str]] = {}
    for group in groups:
        block = group.block
        unstable = block.rate is not None and block.rate.stable is False
        texts = [block.reason, *block.caveats]
        if unstable:
            texts.append("the fixed point behind the prediction is unstable")
        for text in filter(None, texts):
            found.setdefault(text, []).append(group.name)
    return found


def worst_first(conditioning: Sequence[LayerConditioning]) -> list[LayerConditioning]:
    """Sort the measured layers by raw condition number; what is not finite is worst."""
    measured = [layer for layer in conditioning if layer.skipped is None]
    return sorted(
        measured,
        key=lambda layer: layer.raw if math.isfinite(layer.raw) else math.inf,
        reverse=True,
    )


def skipped_by_reason(conditioning: Sequence[LayerConditioning]) -> dict[str, list[str]]:
    """Collect the names of unmeasured layers under each reason."""
    reasons: dict[str, list[str]] = {}
    for layer in conditioning:
        if layer.skipped is not None:
            reasons.setdefault(layer.skipped, []).append(layer.layer)
    return reasons


def verification(verified: bool | None) -> str:
    """Say in words whether a remedy did what it promised."""
    if verified is None:
        return "not tried"
    return "verified" if verified else "not verified"


def moment(created: str) -> str:
    """Write an ISO 8601 time for people.

    Examples:
        >>> moment("2026-11-21T10:39:12+00:00")
        '2026-11-21 10:39 UTC'
        >>> moment("yesterday")
        'yesterday'
    """
    try:
        time = datetime.fromisoformat(created)
    except ValueError:
        return created
    return f"{time:%Y-%m-%d %H:%M} {time.tzname() or ''}".rstrip()


def sampling(checkup: Checkup) -> str:
    """Say how much was measured."""
    seeds = wording.count(checkup.seeds, "initialisation")
    return f"{seeds} × {wording.count(checkup.batches, 'batch')}"


def _appearance(block: Block) -> tuple[object, ...]:
    # Weights are random, so their variance, and with it ε's effect on the rate, differ a
    # little between blocks of one design: exact equality would merge nothing.
    return (
        block.kind,
        block.activation,
        block.batch_size,
        block.features,
        wording.number(block.eps),
        wording.number(block.gamma),
        wording.number(block.beta),
        None if block.rate is None else (wording.number(block.rate.value), block.rate.stable),
        block.reason,
        block.caveats,
    )


def _steepness(block: Block) -> float:
    return -1.0 if block.rate is None else distance_from_one(block.rate.value)
