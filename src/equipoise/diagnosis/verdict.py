"""The check-up in two lines: whether the model will train, and why."""

from __future__ import annotations

import math
from collections.abc import Iterable

from equipoise.diagnosis.record import Verdict
from equipoise.diagnosis.trainability.record import Trainability
from equipoise.diagnosis.trainability.words import depth_in_words, forecast
from equipoise.probes.gradient_growth import GradientGrowth
from equipoise.records import wording
from equipoise.records.finding import SEVERITIES, Finding

# A rate closer to 1 than this would be printed as ×1.00.
_LEVEL = 0.005


def conclude(
    growth: GradientGrowth | None,
    trainability: Trainability | None,
    findings: Iterable[Finding],
) -> Verdict:
    """Summarise a check-up in two lines.

    Args:
        growth: Measured gradients, if any.
        trainability: How probably the model trains, if that is known.
        findings: All findings; the worst one gives the severity.
    """
    severities = [finding.severity for finding in findings]
    if trainability is None:
        sentence, details = _growth(growth), []
    else:
        sentence = forecast(trainability)
        details = [trainability.reason or _growth(growth)]
        if trainability.depth is not None:
            details.append(depth_in_words(trainability.depth))
    return Verdict(
        severity=min(severities, key=SEVERITIES.index, default=None),
        sentence=sentence,
        details=". ".join(map(wording.capital, details)),
        trainability=trainability,
    )


def _growth(growth: GradientGrowth | None) -> str:
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
