"""What a report says about the user's own optimiser."""

from __future__ import annotations

import math
from dataclasses import dataclass

from equipoise.diagnosis.optimizer.record import OptimizerCheck
from equipoise.records import wording


@dataclass(frozen=True, slots=True)
class TrialRow:
    """Some steps at one learning rate, in words."""

    rate: str
    steps: str
    before: str
    after: str
    lowered: str


def trial_rows(found: OptimizerCheck) -> list[TrialRow]:
    """Describe every trial, by rising learning rate."""
    return [
        TrialRow(
            rate=wording.plain(trial.rate) + (", yours" if trial.rate == own else ""),
            steps=f"{trial.steps}",
            before=wording.number(trial.before, 4),
            after="∞" if math.isinf(trial.after) else wording.number(trial.after, 4),
            lowered="on every batch" if trial.everywhere else "no",
        )
        for own in (found.trials[0].rate if found.trials else math.nan,)
        for trial in sorted(found.trials, key=lambda one: (one.rate, one.steps))
    ]


def conditions(found: OptimizerCheck) -> str:
    """Say what was tried, or why nothing was."""
    if found.outcome == "fails":
        return f"Steps of {found.optimizer} failed: {found.reason}"
    if found.reason:
        return f"Steps of {found.optimizer} were not tried: {found.reason}."
    return (
        f"Steps of {found.optimizer} by copies of the model, over the batches of this check-up "
        "again and again; losses are means over these batches, with the same noise before and "
        "after. Other learning rates are tried only where the loss does not fall clearly at yours."
    )
