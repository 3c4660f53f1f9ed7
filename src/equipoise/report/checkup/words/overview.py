"""What a report says: merged blocks, rankings, reasons, times."""

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

# Predicted rates within two per cent of each other are drawn as one slope.
_ALIKE = 1.02


@dataclass(frozen=True, slots=True)
class BlockGroup:
    """Consecutive blocks that look the same in the report.

    Args:
        first: Name of the first block's normaliser.
        last: Name of the last one's.
        size: Number of blocks.
        block: The one with the steepest predicted rate.
        weight_variance: Smallest and largest in the group.
    """

    first: str
    last: str
    size: int
    block: Block
    weight_variance: tuple[float, float]

    @property
    def name(self) -> str:
        """The first and the last layer, and how many there are."""
        if self.size == 1:
            return self.first
        return f"{self.first} … {self.last} ({self.size} ×)"

    @property
    def chain(self) -> str:
        """The block's layers; the closing layer is only named for a single block."""
        block = self.block
        closing = block.following if self.size == 1 else ""
        return " → ".join(filter(None, (block.kind, block.activation, closing)))


def predicted_steps(checkup: Checkup) -> tuple[float, ...]:
    """Predicted growth from layer to layer, if it is known and not the same everywhere."""
    rates = [block.rate for block in checkup.blocks[:-1]]
    known = [rate.value for rate in rates if rate is not None]
    layers = [layer.layer for layer in checkup.growth.layers] if checkup.growth else []
    if len(known) < max(1, len(rates)) or layers != [block.layer for block in checkup.blocks]:
        return ()
    return tuple(known) if max(known) > _ALIKE * min(known) else ()


def total_factor(layers: Sequence[LayerGradients]) -> float | None:
    """The first layer's gradient over the last layer's, if both are finite."""
    if len(layers) < 2:
        return None
    first, last = layers[0].gradient.value, layers[-1].gradient.value
    if not (math.isfinite(first) and math.isfinite(last) and last > 0):
        return None
    return first / last


def merge_blocks(blocks: Sequence[Block]) -> list[BlockGroup]:
    """Merge consecutive blocks that look the same in the report."""
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
    """Collect the names of blocks under each reason and caveat of their predictions."""
    pairs: list[tuple[str | None, str]] = []
    for group in groups:
        block = group.block
        pairs += [(text, group.name) for text in (block.reason, *block.caveats)]
        if block.rate is not None and block.rate.stable is False:
            text = "the prediction's fixed point is unstable, so that networks leave it"
            pairs.append((text, group.name))
    return by_reason(pairs)


def worst_first(conditioning: Sequence[LayerConditioning]) -> list[LayerConditioning]:
    """Sort the measured layers by raw condition number, the largest or not finite ones first."""
    measured = [layer for layer in conditioning if layer.skipped is None]
    return sorted(
        measured,
        key=lambda layer: layer.raw if math.isfinite(layer.raw) else math.inf,
        reverse=True,
    )


def skipped_by_reason(conditioning: Sequence[LayerConditioning]) -> dict[str, list[str]]:
    """Collect the names of unmeasured layers under each reason."""
    return by_reason((layer.skipped, layer.layer) for layer in conditioning)


def by_reason(pairs: Iterable[tuple[str | None, str]]) -> dict[str, list[str]]:
    """Collect names under each reason; a name without a reason is left out.

    Examples:
        >>> by_reason([("large", "fc1"), (None, "fc2"), ("large", "fc3")])
        {'large': ['fc1', 'fc3']}
    """
    reasons: dict[str, list[str]] = {}
    for reason, name in pairs:
        if reason is not None:
            reasons.setdefault(reason, []).append(name)
    return reasons


def verification(verified: bool | None) -> str:
    """Say whether a remedy helped."""
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
    # Compared as printed: the variance of random weights, and so the rate at ε > 0, differ a
    # little between blocks of one design.
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
