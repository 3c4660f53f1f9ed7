"""What a report says about a side-by-side training."""

from __future__ import annotations

import math
from dataclasses import dataclass

from equipoise.diagnosis.trial.record import Arm, Gain, Trial
from equipoise.records import wording


@dataclass(frozen=True, slots=True)
class TrialRow:
    """One variant in words."""

    name: str
    rate: str
    loss: str
    after: str
    step: str
    verdict: str


def rows(trial: Trial) -> list[TrialRow]:
    """Describe every variant that was tried, compared with the unchanged model."""
    gains = {gain.name: gain for gain in trial.gains}
    return [_row(arm, trial, gains.get(arm.name)) for arm in trial.arms if arm.reason is None]


def conditions(trial: Trial) -> str:
    """Say how the variants were trained and compared."""
    return (
        f"{trial.steps} steps of {trial.optimizer_name}, "
        f"{wording.count(trial.seeds, 'seed')}; every variant has the same batches, the same "
        "weights, and its own best learning rate (chosen on another seed). Final loss: mean over "
        "the last quarter of the steps. Catches up: steps, and part of the time, after which the "
        "mean loss reaches the unchanged model's final loss. Better: in a one-sided t-test over "
        "seeds at 95 %."
    )


def _row(arm: Arm, trial: Trial, gain: Gain | None) -> TrialRow:
    plain = trial.arms[0].step_seconds
    rate = "–" if math.isnan(arm.rate) else wording.plain(arm.rate)
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
