"""What a report says about preconditioning, whatever it is written on."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from equipoise.diagnosis.preconditioning.record import LayerPreconditioning
from equipoise.diagnosis.trial.record import Arm, Gain, Trial
from equipoise.records import wording


@dataclass(frozen=True, slots=True)
class TrialRow:
    """One arm of a trial in words."""

    name: str
    rate: str
    loss: str
    after: str
    step: str
    verdict: str


def largest_gain_first(layers: Sequence[LayerPreconditioning]) -> list[LayerPreconditioning]:
    """Sort layers by gain; those whose Hessian was not measured come last."""
    measured = [layer for layer in layers if not math.isnan(layer.inputs)]
    return sorted(measured, key=lambda layer: (math.isnan(layer.hessian), -layer.gain))


def hessian_not_measured(layers: Sequence[LayerPreconditioning]) -> dict[str, list[str]]:
    """Collect the names of layers under the reason why their Hessian is unknown."""
    reasons: dict[str, list[str]] = {}
    for layer in layers:
        if layer.reason is not None:
            reasons.setdefault(layer.reason, []).append(layer.layer)
    return reasons


def known(value: float) -> str:
    """Write a number, or a dash where there is none."""
    return "–" if math.isnan(value) else wording.number(value, 2)


def trial_rows(trial: Trial) -> list[TrialRow]:
    """Put every arm in words, compared with the first."""
    gains = {gain.name: gain for gain in trial.gains}
    return [_row(arm, trial, gains.get(arm.name)) for arm in trial.arms if arm.reason is None]


def _row(arm: Arm, trial: Trial, gain: Gain | None) -> TrialRow:
    plain = trial.arms[0].step_seconds
    rate = "–" if math.isnan(arm.rate) else f"{arm.rate:.3g}"
    loss = wording.spread(arm.loss)
    if arm.diverged:
        loss = f"{arm.diverged} of {trial.seeds} diverged"
    return TrialRow(
        name=arm.name,
        rate=f"≥ {rate}" if arm.at_edge and arm.rate == arm.rates[-1][0] else rate,
        loss=loss,
        after=f"{trial.steps} (100 %)" if arm is trial.arms[0] else _after(gain, trial),
        step=f"×{arm.step_seconds / plain:.2f}",
        verdict=_verdict(gain),
    )


def _after(gain: Gain | None, trial: Trial) -> str:
    if gain is None or gain.steps is None or gain.seconds is None:
        return "never"
    share = gain.seconds / (trial.steps * trial.arms[0].step_seconds)
    return f"{gain.steps} ({100 * share:.0f} %)"


def _verdict(gain: Gain | None) -> str:
    if gain is None:
        return "–"
    if gain.helps is None:
        return "unclear"
    return "better" if gain.helps else "not better"


def trial_conditions(trial: Trial) -> str:
    """Say how the arms were trained and compared."""
    seeds = wording.count(trial.seeds, "seed")
    return (
        f"{trial.steps} steps of {trial.optimizer} on the same batches and weights, {seeds}, each "
        "way at its best rate (chosen on another seed). Final loss: mean of the last quarter; "
        "after how many steps, and what share of the time, the mean is there. "
        "Better: by more than Student's t at 95 %, seed by seed."
    )
