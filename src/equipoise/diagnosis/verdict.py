"""The check-up in two lines: how gradients behave, and how deep such networks can train."""

from __future__ import annotations

import math
from collections.abc import Iterable

from equipoise.diagnosis.comparison import is_straight
from equipoise.diagnosis.record import GROWTH, Comparison, Verdict
from equipoise.probes.gradient_growth import GradientGrowth
from equipoise.records import wording
from equipoise.records.finding import SEVERITIES, Finding
from equipoise.theory.batch_norm.explosion import max_trainable_depth

# A rate closer to 1 than this would be printed as ×1.00.
_LEVEL = 0.005


def conclude(
    growth: GradientGrowth | None,
    comparisons: Iterable[Comparison],
    findings: Iterable[Finding],
    depth: int,
) -> Verdict:
    """Summarise a check-up in two lines.

    Args:
        growth: Measured gradients, if any.
        comparisons: Predictions joined with measurements.
        findings: All findings; the worst one gives the severity.
        depth: Layers of the model.
    """
    severities = [finding.severity for finding in findings]
    trainable = _trainable_depth(growth, comparisons)
    depths = f"model depth {depth:,}"
    if trainable is not None:
        depths = f"trainable depth {_limit(trainable)}, {depths}"
    return Verdict(
        severity=min(severities, key=SEVERITIES.index, default=None),
        sentence=_sentence(growth),
        depths=wording.capital(depths),
        trainable_depth=trainable,
    )


def _trainable_depth(
    growth: GradientGrowth | None, comparisons: Iterable[Comparison]
) -> float | None:
    """How many such layers can train, where all change gradients by one factor."""
    compared = next((one for one in comparisons if one.quantity == GROWTH), None)
    if growth is None or growth.rate is None or not is_straight(growth):
        return None
    # Where theory is silent or wrong about the model, the measurement decides.
    if compared is None:
        return max_trainable_depth(growth.rate)
    decides = compared.measured if compared.outcome == "differs" else compared.predicted
    return max_trainable_depth(decides)


def _limit(depth: float) -> str:
    return "unlimited" if math.isinf(depth) else wording.depth(depth)


def _sentence(growth: GradientGrowth | None) -> str:
    if growth is None:
        return "Gradients were not measured"
    if growth.rate is None:
        return "Too few layers to measure how gradients grow"
    if not math.isfinite(growth.rate.value):
        return "Gradients are not finite: their growth could not be measured"
    return f"Gradients {_behaviour(growth.rate.value)}"


def _behaviour(rate: float) -> str:
    if abs(rate - 1) < _LEVEL:
        return "keep their size from layer to layer"
    return f"{'grow' if rate > 1 else 'shrink'} {wording.factor(rate)} per layer"
