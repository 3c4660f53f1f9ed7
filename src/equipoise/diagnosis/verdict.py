"""The check-up in two lines: how gradients behave, and how deep such networks can train."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from equipoise.diagnosis.record import GROWTH, Block, Comparison, Verdict
from equipoise.probes.gradient_growth import GradientGrowth
from equipoise.records import wording
from equipoise.records.finding import SEVERITIES, Finding
from equipoise.theory.batch_norm.explosion import TRAINABLE_FACTOR

# A rate closer to 1 than this would be printed as ×1.00.
_LEVEL = 0.005


def conclude(
    growth: GradientGrowth | None,
    blocks: Sequence[Block],
    comparisons: Iterable[Comparison],
    findings: Iterable[Finding],
    depth: int,
) -> Verdict:
    """Summarise a check-up in two lines.

    Args:
        growth: Measured gradients, if any.
        blocks: Predictions.
        comparisons: Predictions joined with measurements.
        findings: All findings; the worst one gives the severity.
        depth: Layers of the model.
    """
    severities = [finding.severity for finding in findings]
    trainable = _trainable_depth(blocks)
    compared = {comparison.quantity: comparison for comparison in comparisons}
    growth_compared = compared.get(GROWTH)
    if (
        trainable is not None
        and growth_compared is not None
        and growth_compared.outcome == "differs"
    ):
        # Where theory is wrong about the model, the measurement decides.
        distance = abs(math.log(growth_compared.measured.value))
        trainable = TRAINABLE_FACTOR / distance if distance else math.inf
    depths = f"model depth {depth:,}"
    limit = _strictest(blocks)
    if trainable is not None:
        depths = f"trainable depth {_limit(trainable)}, {depths}"
    elif limit is not None:
        depths += f"; a stack of its plain blocks alone could train to depth {_limit(limit)}"
    return Verdict(
        severity=min(severities, key=SEVERITIES.index, default=None),
        sentence=_sentence(growth, blocks),
        depths=wording.capital(depths),
        trainable_depth=trainable,
    )


def _trainable_depth(blocks: Iterable[Block]) -> float | None:
    """The strictest block's limit, or ``None`` where theory does not cover all blocks."""
    blocks = list(blocks)
    return None if any(block.max_depth is None for block in blocks) else _strictest(blocks)


def _strictest(blocks: Iterable[Block]) -> float | None:
    limits = [block.max_depth for block in blocks if block.max_depth is not None]
    return min((limit for limit in limits if not math.isnan(limit)), default=None)


def _limit(depth: float) -> str:
    return "unlimited" if math.isinf(depth) else wording.depth(depth)


def _sentence(growth: GradientGrowth | None, blocks: Sequence[Block]) -> str:
    if growth is not None and growth.rate is not None:
        if not math.isfinite(growth.rate.value):
            return "Gradients are not finite: their growth could not be measured"
        return f"Gradients {_behaviour(growth.rate.value)}"
    predicted = [block.rate.value for block in blocks if block.rate is not None]
    if predicted:
        steepest = max(predicted, key=distance_from_one)
        if growth is None:
            return f"Gradients were not measured; theory predicts that they {_behaviour(steepest)}"
        return f"Too few layers for a fit; theory predicts that gradients {_behaviour(steepest)}"
    if growth is not None:
        return "Too few layers to measure how gradients grow"
    return "Gradients were not measured"


def _behaviour(rate: float) -> str:
    if abs(rate - 1) < _LEVEL:
        return "keep their size from layer to layer"
    return f"{'grow' if rate > 1 else 'shrink'} {wording.factor(rate)} per layer"


def distance_from_one(rate: float) -> float:
    """How far a rate is from 1 on a logarithmic scale; infinite if it is not a positive number."""
    return abs(math.log(rate)) if math.isfinite(rate) and rate > 0 else math.inf
