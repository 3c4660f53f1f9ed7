"""What a report says about remedies: the answer, one row an arm, and the conditions."""

from __future__ import annotations

import math
from dataclasses import dataclass

from equipoise.diagnosis.fix.record import Arm, Fix
from equipoise.diagnosis.fix.words import in_words
from equipoise.records import wording
from equipoise.records.estimate import Estimate


@dataclass(frozen=True, slots=True)
class ArmRow:
    """One arm in words."""

    name: str
    predicted: str
    rate: str
    loss: str
    held_out: str
    gap: str
    accuracy: str
    step: str
    verdict: str


def rows(fix: Fix) -> list[ArmRow]:
    """Describe every arm that was trained, the model as it is first."""
    return [_row(arm, fix) for arm in fix.arms if arm.reason is None]


def answer(fix: Fix) -> str:
    """What to do, in one sentence."""
    winner, plain = fix.winner, fix.unchanged
    if winner is None or plain is None:
        if fix.interrupted:
            return "Stopped before remedies could be judged."
        if not fix.gains:
            return "No remedy could be judged."
        ahead = _first_ahead(fix)
        if ahead is None or plain is None:
            return "No remedy trains this model measurably better."
        return (
            f"No remedy is better beyond chance over {wording.count(fix.seeds, 'seed')}; ahead is "
            f"{_gained(ahead, plain, fix)}"
        )
    doubt = "" if fix.is_sure else " Over so few seeds that may be chance."
    return f"{wording.capital(_gained(winner, plain, fix))}{doubt}"


def _first_ahead(fix: Fix) -> Arm | None:
    """The arm of the best rank whose mean is better, though that may be chance."""
    ahead = {gain.name for gain in fix.gains if gain.ahead}
    return next((arm for arm in fix.arms if arm.name in ahead and not arm.diverged), None)


def _gained(arm: Arm, plain: Arm, fix: Fix) -> str:
    after, before = wording.spread(_value(arm, fix)), wording.spread(_value(plain, fix))
    return f"{arm.name}: {_ranked(fix)} {after} instead of {before}."


def conditions(fix: Fix, *, gap: bool = True) -> str:
    """Say how the arms were trained and compared, and what the gap is, if it is shown."""
    held = ""
    if fix.held_out:
        minus = "; gap: that minus the training loss" if gap else ""
        held = f"Evaluation: loss on {fix.held_out:,} held-out samples in evaluation mode{minus}. "
    return (
        f"{fix.steps} steps of {fix.optimizer_name}, {wording.count(fix.seeds, 'seed')}; every "
        "arm has the same weights where shapes allow, the same batches, and its own best learning "
        f"rate, chosen on another seed. Training: loss over the last quarter of the steps. {held}"
        "Predicted: from theory and one pass of the changed model. "
        f"Arms without ± left the race early. Better: by the {fix.judged_by} loss, seed by seed, "
        "beyond Student's t interval of 9 in 10 cases."
    )


def not_tried(fix: Fix) -> list[str]:
    """Arms that could not be trained, and why."""
    return [f"{wording.capital(a.name)}: {a.reason}" for a in fix.arms if a.reason is not None]


def further(fix: Fix) -> list[str]:
    """Other proposals with what theory says of them, the likeliest first."""
    tried = {arm.name for arm in fix.arms}
    rest = [one for one in fix.proposals if in_words(one.remedy) not in tried]
    ranked = sorted(rest, key=lambda one: -(one.predicted or 0.0))
    return [f"{in_words(one.remedy)} ({_chance(one.predicted)})" for one in ranked]


def _row(arm: Arm, fix: Fix) -> ArmRow:
    gains = {gain.name: gain for gain in fix.gains}
    gain = gains.get(arm.name)
    rate = "–" if math.isnan(arm.rate) else wording.plain(arm.rate)
    diverged = f"{arm.diverged} of {max(arm.seeds, 1)} diverged"
    return ArmRow(
        name=arm.name,
        predicted=_chance(arm.predicted if arm.measured is None else arm.measured),
        rate=f"≥ {rate}" if arm.at_edge and arm.rates and arm.rate == arm.rates[-1][0] else rate,
        loss=diverged if arm.diverged else _spread(arm.loss),
        held_out="–" if arm.diverged else _spread(arm.held_out),
        gap="–" if arm.diverged else _signed(arm.gap),
        accuracy="–" if arm.accuracy is None else wording.percent(arm.accuracy.value),
        step=f"{1000 * arm.step_seconds:.3g} ms",
        verdict="–" if gain is None else _verdict(gain.helps, arm, fix),
    )


def _verdict(helps: bool | None, arm: Arm, fix: Fix) -> str:
    if helps is None:
        return "unclear"
    if arm.remedy == fix.best:
        return "best" if helps else "ahead"
    return "better" if helps else "not better"


def _ranked(fix: Fix) -> str:
    if fix.judged_by == "held-out":
        return "loss in evaluation mode on held-out data"
    return "training loss"


def _value(arm: Arm, fix: Fix) -> Estimate:
    return arm.held_out if fix.judged_by == "held-out" else arm.loss


def _signed(value: float) -> str:
    if math.isnan(value):
        return "–"
    return ("+" if value > 0 else "") + wording.number(value, 2)


def _spread(value: Estimate) -> str:
    if math.isnan(value.value):
        return "–"
    return wording.number(value.value) if math.isnan(value.error) else wording.spread(value)


def _chance(probability: float | None) -> str:
    return "–" if probability is None else wording.percent(probability)
