"""The check-up in two lines: whether the model will train, and why."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from equipoise.diagnosis.broken import Broken
from equipoise.diagnosis.forgotten import Forgotten
from equipoise.diagnosis.initialisation.stuck import Stuck
from equipoise.diagnosis.record import Verdict
from equipoise.diagnosis.trainability.record import Trainability
from equipoise.diagnosis.trainability.words import depth_in_words, forecast
from equipoise.probes.record import GradientGrowth
from equipoise.records import wording
from equipoise.records.finding import SEVERITIES, Finding

# A rate closer to 1 than this would be printed as ×1.00.
_LEVEL = 0.005
_NAMES = 3


def conclude(
    growth: GradientGrowth | None,
    trainability: Trainability | None,
    findings: Iterable[Finding],
    *,
    unknown: str = "",
    obstacle: Broken | Stuck | Forgotten | None = None,
    mistake: Finding | None = None,
    rest: Finding | None = None,
    zeros: Sequence[str] = (),
) -> Verdict:
    """Summarise a check-up in two lines.

    Args:
        growth: Measured gradients, if any.
        trainability: How probably the model trains, if that is known.
        findings: All findings; the worst one gives the severity.
        unknown: Why it is not.
        obstacle: What keeps it from training, whatever theory says; may be empty.
        mistake: A critical one in the use of the model: it may well train, but not to any good.
        rest: Why most of it will not train, whatever the forecast for the other part.
        zeros: Matrices that start at zero, and are moved by training.
    """
    found = sorted(findings, key=lambda finding: SEVERITIES.index(finding.severity))
    if obstacle:
        sentence, details = obstacle.sentence, [obstacle.words]
    elif mistake is not None:
        sentence = f"Not ready to train: {_as_clause(mistake.title)}"
        details = [(mistake.remedy or mistake.detail).rstrip(".")]
        if trainability is not None:
            details.append(f"but for that, it {_as_clause(forecast(trainability))}")
    elif rest is not None:
        sentence, details = "Most of it will not train", [_as_clause(rest.title)]
        if trainability is not None:
            details.append(f"what is left of it {_as_clause(forecast(trainability))}")
    elif trainability is None:
        sentence = "Whether it will train is unknown"
        details = [part for part in (_growth(growth, zeros), unknown.rstrip(".")) if part]
    else:
        sentence = forecast(trainability)
        details = [trainability.reason or _growth(growth, zeros)]
        if zeros and _is_of_first_steps(trainability):
            details.append("It is judged as after the first steps")
        if trainability.depth is not None:
            details.append(depth_in_words(trainability.depth))
    if not (obstacle or mistake or rest) and not (trainability and trainability.reason):
        details += [f"found as well: {one.title}" for one in _serious(found, sentence)[:1]]
    return Verdict(
        severity=found[0].severity if found else None,
        sentence=sentence,
        details=". ".join(map(wording.capital, details)),
        trainability=trainability,
    )


def _as_clause(sentence: str) -> str:
    return sentence[:1].lower() + sentence[1:]


def _serious(findings: Sequence[Finding], sentence: str) -> list[Finding]:
    """What is to be mended, beside what the verdict's own sentence says."""
    return [
        finding
        for finding in findings
        if finding.severity in ("critical", "warning") and finding.title != sentence
    ]


def _is_of_first_steps(trainability: Trainability) -> bool:
    """Whether weights that have no gradient yet were judged as those that have one later."""
    predicted, measured = trainability.predicted, trainability.measured
    return predicted is not None and predicted.silence < measured.silence


def _growth(growth: GradientGrowth | None, zeros: Sequence[str] = ()) -> str:
    if growth is None:
        return "Gradients were not measured"
    norms = [layer.gradient.value for layer in growth.layers]
    numbers = norms if growth.rate is None else [*norms, growth.rate.value]
    if not all(map(math.isfinite, numbers)):
        return "Gradients are not finite: their growth could not be measured"
    if growth.rate is None and norms and not any(norms):
        if zeros:
            start = "start" if len(zeros) > 1 else "starts"
            have = "have" if len(zeros) > 1 else "has"
            which = wording.listed(zeros, _NAMES)
            return (
                f"No layer before gets a gradient until {which} {have} moved, which {start} at "
                "zero, as is often meant"
            )
        return "No layer gets a gradient as yet"
    if growth.rate is None:
        few = wording.count(sum(norm > 0 for norm in norms), "layer")
        return f"{few} with a gradient: too few to measure its growth"
    return f"Gradients {_behaviour(growth.rate.value)}"


def _behaviour(rate: float) -> str:
    if abs(rate - 1) < _LEVEL:
        return "keep their size from layer to layer"
    return f"{'grow' if rate > 1 else 'shrink'} {wording.factor(rate)} per layer"
