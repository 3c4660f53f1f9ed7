"""Findings about remedies: whether one trains the model better."""

from __future__ import annotations

from equipoise.diagnosis.fix.record import Fix, Gain
from equipoise.records import wording
from equipoise.records.finding import Finding


def conclude_fix(fix: Fix | None) -> list[Finding]:
    """Turn the record into findings."""
    if fix is None or fix.unchanged is None:
        return []
    findings = [_outcome(fix), *_of_batches(fix)]
    return [finding for finding in findings if finding is not None]


def proved(fix: Fix | None) -> str:
    """What to do about a model that will not train, if a race has shown it; else nothing."""
    winner = None if fix is None else fix.winner
    if fix is None or winner is None or not fix.is_sure:
        return ""
    gain = next(gain for gain in fix.gains if gain.name == winner.name)
    return (
        f"{wording.capital(winner.name)}: beside the model as it is, its {fix.judged_by} loss "
        f"differs by {wording.spread(gain.difference)} after {fix.steps} steps."
    )


def _outcome(fix: Fix) -> Finding | None:
    winner = fix.winner
    if winner is not None:
        gain = next(gain for gain in fix.gains if gain.name == winner.name)
        if not fix.is_sure:
            return Finding(
                "note",
                f"{wording.capital(winner.name)} is ahead, perhaps by chance",
                _numbers(gain, fix),
                "Take it, or give the race a larger budget: fix.py and remedy.json lie beside "
                "the report.",
            )
        return Finding(
            "good",
            f"A remedy trains this model better: {winner.name}",
            _numbers(gain, fix),
            "Make the change: fix.py and remedy.json lie beside the report.",
        )
    if not fix.gains:
        return None
    if all(gain.helps is None for gain in fix.gains):
        title = "One seed is too few to tell whether a remedy helps"
        return Finding("note", title, _numbers(fix.gains[0], fix), "Give it a larger budget.")
    best = min(fix.gains, key=lambda gain: gain.difference.value)
    title = "No remedy trains this model measurably better"
    return Finding("note", title, f"The best was {best.name}. {_numbers(best, fix)}")


def _numbers(gain: Gain, fix: Fix) -> str:
    words = (
        f"Its {fix.judged_by} loss after {fix.steps} steps of {fix.optimizer_name} differs from "
        f"that of the model as it is by {wording.spread(gain.difference)}, seed by seed"
    )
    if gain.low == gain.low:
        ends = f"{wording.number(gain.low, 2)} to {wording.number(gain.high, 2)}"
        words += f" (9 of 10 cases: {ends})"
    return f"{words}; {wording.count(fix.seeds, 'seed')}, each arm at its own best rate."


def _of_batches(fix: Fix) -> list[Finding]:
    """A larger batch is not trained, as it would see other data; theory says what it would do."""
    found = next((one for one in fix.proposals if "batch" in one.remedy.kinds), None)
    plain = fix.unchanged
    if found is None or found.predicted is None or plain is None or plain.measured is None:
        return []
    if found.predicted < plain.measured + 0.1:
        return []
    size = found.remedy.edits[0].value or 0.0
    return [
        Finding(
            "note",
            f"Batches of {size:g} samples would help, accumulated gradients would not",
            "By theory the model then trains with a probability of "
            f"{wording.percent(found.predicted)} instead of {wording.percent(plain.measured)}. "
            "Batch norm sees only the samples of one pass: "
            "accumulating gradients over passes leaves its statistics as they are.",
        )
    ]
