"""What a report says, whatever it is written on: the verdict, merged blocks, rankings."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import groupby

from equipoise.diagnosis.record import Block, Checkup, Comparison
from equipoise.probes.conditioning import LayerConditioning
from equipoise.probes.gradient_growth import LayerGradients
from equipoise.records.estimate import Estimate
from equipoise.records.finding import Severity
from equipoise.report import wording

# A colour is never the only signal: each severity has a mark and a word.
MARKS: dict[Severity, str] = {"critical": "✖", "warning": "▲", "note": "●", "good": "✔"}

# Below this distance of a rate from 1, `wording.factor` would print ×1.00.
_LEVEL = 0.005
# Squared norms that differ by e^16 end what trains, as everywhere in reports.
_EXPONENT = 16.0
# Predicted rates within two per cent of each other draw a straight line.
_ALIKE = 1.02


@dataclass(frozen=True, slots=True)
class Verdict:
    """The report in two lines.

    Args:
        severity: The worst finding's; ``None`` without findings.
        sentence: What gradients do.
        depths: Trainable depth against the model's.
        trainable_depth: Predicted, where theory applies.
    """

    severity: Severity | None
    sentence: str
    depths: str
    trainable_depth: float | None


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


def verdict(checkup: Checkup) -> Verdict:
    """Put the check-up in two lines."""
    ranks = [list(MARKS).index(finding.severity) for finding in checkup.findings]
    trainable = trainable_depth(checkup.blocks)
    comparison = rate_comparison(checkup)
    if trainable is not None and comparison is not None and not comparison.agrees:
        # Where theory is wrong about the model, what was measured decides.
        distance = abs(math.log(comparison.measured.value))
        trainable = _EXPONENT / distance if distance else math.inf
    model = f"model depth {checkup.depth:,}"
    limit = _strictest(checkup.blocks)
    if trainable is not None:
        model = f"trainable depth {_limit(trainable)}, {model}"
    elif limit is not None:
        model += f"; its plain blocks alone could be stacked to depth {_limit(limit)}"
    return Verdict(
        severity=list(MARKS)[min(ranks)] if ranks else None,
        sentence=_sentence(checkup),
        depths=model[0].upper() + model[1:],
        trainable_depth=trainable,
    )


def trainable_depth(blocks: Iterable[Block]) -> float | None:
    """Return the strictest block's limit, or ``None`` where theory does not cover them all."""
    blocks = list(blocks)
    return None if any(block.max_depth is None for block in blocks) else _strictest(blocks)


def _strictest(blocks: Iterable[Block]) -> float | None:
    limits = [block.max_depth for block in blocks if block.max_depth is not None]
    return min((limit for limit in limits if not math.isnan(limit)), default=None)


def _limit(depth: float) -> str:
    return "unlimited" if math.isinf(depth) else wording.depth(depth)


def rate_comparison(checkup: Checkup) -> Comparison | None:
    """Find the comparison whose measurement is the gradients' growth."""
    if checkup.growth is None or checkup.growth.rate is None:
        return None
    rate = checkup.growth.rate
    for comparison in checkup.comparisons:
        if comparison.measured is rate or comparison.measured == rate:
            return comparison
    return None


def predicted_rate(checkup: Checkup) -> Estimate | None:
    """Return the predicted growth per layer that measurements were compared with."""
    comparison = rate_comparison(checkup)
    return None if comparison is None else comparison.predicted


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


def answer(comparison: Comparison) -> str:
    """Say in a word how a comparison ended."""
    if math.isnan(comparison.z):
        return "unclear"
    return "agrees" if comparison.agrees else "differs"


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


def _sentence(checkup: Checkup) -> str:
    growth = checkup.growth
    if growth is not None and growth.rate is not None:
        if not math.isfinite(growth.rate.value):
            return "Gradients are not finite: their growth could not be measured"
        return "Gradients " + _behaviour(growth.rate.value)
    predicted = [block.rate for block in checkup.blocks if block.rate is not None]
    if predicted:
        steepest = max((rate.value for rate in predicted), key=_log_distance)
        if growth is None:
            return "Gradients were not measured; theory says that they " + _behaviour(steepest)
        return f"Too few layers for a fit; theory says that gradients {_behaviour(steepest)}"
    if growth is not None:
        return "Too few layers to measure how gradients grow"
    return "Gradients were not measured"


def _behaviour(rate: float) -> str:
    if abs(rate - 1) < _LEVEL:
        return "keep their size from layer to layer"
    return f"{'grow' if rate > 1 else 'shrink'} {wording.factor(rate)} per layer"


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
    return -1.0 if block.rate is None else _log_distance(block.rate.value)


def _log_distance(rate: float) -> float:
    return abs(math.log(rate)) if math.isfinite(rate) and rate > 0 else math.inf
