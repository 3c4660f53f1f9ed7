"""Findings about a trial: whether preconditioning trains the model better."""

from __future__ import annotations

from equipoise.diagnosis.trial.measure import BNP_NAME, STANDARDISED
from equipoise.diagnosis.trial.record import Arm, Gain, Trial
from equipoise.records import wording
from equipoise.records.finding import Finding


def conclude_trial(trial: Trial | None) -> list[Finding]:
    """Turn the record into findings."""
    if trial is None:
        return []
    arms = {arm.name: arm for arm in trial.arms}
    plain = trial.arms[0]
    gains = {gain.name: gain for gain in trial.gains}
    bnp = gains.get(BNP_NAME)
    if bnp is None:
        reason = arms[BNP_NAME].reason or plain.reason or "it did not run"
        return [Finding("note", "Preconditioning could not be tried", reason)]
    control = gains.get(STANDARDISED)
    findings = [_outcome(bnp, arms[BNP_NAME], plain, trial)]
    if bnp.helps and control is not None and control.helps:
        findings.append(_control(control, arms[control.name], bnp))
    return findings


def _outcome(gain: Gain, arm: Arm, plain: Arm, trial: Trial) -> Finding:
    seeds = wording.count(trial.seeds, "seed")
    numbers = (
        f"Mean loss over the last quarter of {trial.steps} steps of {trial.optimizer_name}, "
        f"{seeds}, best learning rates: {wording.spread(plain.loss)} unchanged (rate "
        f"{wording.plain(plain.rate)}), {wording.spread(arm.loss)} with BNP (rate "
        f"{wording.plain(arm.rate)}); difference {wording.spread(gain.difference)}. A step with "
        f"BNP takes {arm.step_seconds / plain.step_seconds:.2f} times as long."
    )
    if gain.helps:
        if gain.steps is not None and gain.seconds is not None:
            seconds = trial.steps * plain.step_seconds
            numbers += (
                f" With BNP the final loss of the unchanged model is reached after {gain.steps} "
                f"of {trial.steps} steps, in {wording.number(gain.seconds, 2)} of "
                f"{wording.number(seconds, 2)} seconds."
            )
        advice = "bnp = equipoise.BNP(model).attach(optimizer), with a newly tuned learning rate."
        return Finding("good", "Preconditioning trains this model better", numbers, advice)
    if gain.helps is None:
        title = "One seed is too few to tell whether preconditioning helps"
        return Finding("note", title, numbers, "Try more seeds.")
    title = "Preconditioning does not train this model measurably better"
    return Finding("note", title, numbers)


def _control(control: Gain, arm: Arm, bnp: Gain) -> Finding:
    share = wording.percent(control.difference.value / bnp.difference.value)
    return Finding(
        "note",
        "Standardised inputs alone help too",
        f"They reach a loss of {wording.spread(arm.loss)} at no cost per step: {share} of what "
        "preconditioning gains.",
        "Standardise the features of the data first.",
    )
