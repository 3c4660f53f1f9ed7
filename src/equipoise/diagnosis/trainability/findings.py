"""What follows from the probability that a model trains."""

from __future__ import annotations

from equipoise.diagnosis.trainability.record import Trainability
from equipoise.diagnosis.trainability.words import forecast
from equipoise.records import wording
from equipoise.records.finding import Finding, Severity

_CRITICAL, _DOUBTFUL, _LIKELY = 0.2, 0.65, 0.8


def conclude_trainability(found: Trainability | None, advice: str) -> list[Finding]:
    """One finding, whose severity is that of the verdict.

    Args:
        found: How probably the model trains; ``None`` if that is not known.
        advice: What to change if it does not.
    """
    if found is None:
        return []
    detail = (
        f"Of {found.alike:,} small networks that theory and one pass found as likely to train, "
        f"{wording.percent(found.alike_trained)} did (docs/trainability.md)."
    )
    if found.reason:
        detail = f"{wording.capital(found.reason)}. {detail}"
    if found.outside:
        detail += (
            f" None of them was as far out in {wording.listed(found.outside)}: the "
            "interval is wider for that."
        )
    severity: Severity = "note" if found.is_open else _severity(found.probability)
    return [Finding(severity, forecast(found), detail, None if severity == "good" else advice)]


def _severity(probability: float) -> Severity:
    if probability < _CRITICAL:
        return "critical"
    if probability < _DOUBTFUL:
        return "warning"
    return "note" if probability < _LIKELY else "good"
