"""Conclusions about preconditioning: what it would do to layers, and what a trial showed."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

from equipoise.diagnosis.preconditioning.record import LayerPreconditioning
from equipoise.diagnosis.trial.record import Arm, Gain, Trial
from equipoise.records.finding import Finding

# A change of the condition number by less than this is not worth a finding.
_WORTHWHILE = 10.0
# A promise that is off by less than this is as good as kept.
_OFF = 10.0


def conclude_preconditioning(
    layers: Sequence[LayerPreconditioning], trial: Trial | None
) -> list[Finding]:
    """Turn the records about preconditioning into findings."""
    findings = _layers(layers)
    if trial is not None:
        findings += _trial(trial)
    return findings


def _layers(layers: Sequence[LayerPreconditioning]) -> list[Finding]:
    measured = [layer for layer in layers if math.isfinite(layer.hessian)]
    better = [layer for layer in measured if layer.gain > _WORTHWHILE]
    if not better:
        return []
    best = max(better, key=lambda layer: layer.gain)
    detail = (
        f"The Hessian of one unit of {best.layer} has condition number {best.hessian:.2g}, and "
        f"{best.hessian_after:.2g} preconditioned, on a range of {best.hessian_rank} of "
        f"{best.columns} directions. Median gain {_median_gain(measured):.2g} over "
        f"{len(measured)} layers."
    )
    over = [layer for layer in measured if layer.promised > _OFF * layer.gain]
    if over:
        worst = max(over, key=lambda layer: layer.promised / layer.gain)
        detail += (
            f" The gain is not κ(D)², which would promise {worst.promised:.2g} at {worst.layer}, "
            f"where it is {worst.gain:.2g}."
        )
    return [
        Finding(
            "note",
            f"Preconditioning would improve the conditioning of {len(better)} of "
            f"{len(measured)} layers more than {_WORTHWHILE:.0f}-fold",
            detail,
            "See by training whether it pays: equipoise checkup … --try bnp.",
        )
    ]


def _median_gain(layers: Sequence[LayerPreconditioning]) -> float:
    return statistics.median(layer.gain for layer in layers)


def _trial(trial: Trial) -> list[Finding]:
    arms = {arm.name: arm for arm in trial.arms}
    plain = trial.arms[0]
    gains = {gain.name: gain for gain in trial.gains}
    bnp = gains.get("BNP")
    if bnp is None:
        reason = arms["BNP"].reason or plain.reason or "it did not run"
        return [Finding("note", "Preconditioning could not be tried", reason)]
    control = gains.get("standardised inputs")
    findings = [_outcome(bnp, arms["BNP"], plain, trial)]
    if bnp.helps and control is not None and control.helps:
        findings.append(_control(control, arms[control.name], bnp))
    return findings


def _outcome(gain: Gain, arm: Arm, plain: Arm, trial: Trial) -> Finding:
    runs = f"{trial.steps} steps of {trial.optimizer}, {trial.seeds} seeds, best rates"
    numbers = (
        f"Mean loss over the last quarter of {runs}: {plain.loss} as it is (rate "
        f"{plain.rate:.2g}), {arm.loss} with BNP (rate {arm.rate:.2g}); difference "
        f"{gain.difference}. A step takes {arm.step_seconds / plain.step_seconds:.2f} times as "
        "long."
    )
    if gain.helps:
        if gain.steps is not None and gain.seconds is not None:
            seconds = trial.steps * plain.step_seconds
            numbers += (
                f" It is at the final loss of the model as it is after {gain.steps} of "
                f"{trial.steps} steps and {gain.seconds:.2g} of {seconds:.2g} seconds."
            )
        advice = "bnp = equipoise.BNP(model).attach(optimizer), with a newly tuned rate."
        return Finding("good", "Preconditioning trains this model better", numbers, advice)
    if gain.helps is None:
        title, advice = "One seed cannot tell whether preconditioning helps", "Try more seeds."
        return Finding("note", title, numbers, advice)
    title = "Preconditioning does not train this model measurably better"
    return Finding("note", title, numbers)


def _control(control: Gain, arm: Arm, bnp: Gain) -> Finding:
    share = control.difference.value / bnp.difference.value
    return Finding(
        "note",
        "Standardised inputs alone help too",
        f"They reach {arm.loss} at no cost per step: {share:.0%} of what preconditioning gains.",
        "Standardise the features of the data first.",
    )
