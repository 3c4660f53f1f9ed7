"""What a report says about smoothness, whatever it is written on."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from equipoise.diagnosis.smoothness.record import Smoothness, SmoothnessArm, SmoothnessLook
from equipoise.records import wording

_NAMES = {"sgd": "SGD without momentum", "adam": "Adam", "adamw": "AdamW"}


@dataclass(frozen=True, slots=True)
class StartRow:
    """One arm at the start, in words."""

    name: str
    loss: str
    gradient: str
    trusted: str
    change: str
    beta: str


@dataclass(frozen=True, slots=True)
class LookRow:
    """One arm at one step, in words; medians where there are several seeds."""

    step: str
    loss: str
    losses: str
    changes: str
    trusted: str
    beta: str
    shift: str


def tried(found: Smoothness) -> list[SmoothnessArm]:
    """List the arms that were looked at."""
    return [arm for arm in found.arms if arm.reason is None and arm.runs]


def start_rows(found: Smoothness) -> list[StartRow]:
    """Put the first look of every arm in words."""
    return [_start(arm, arm.runs[0].looks[0]) for arm in tried(found)]


def _start(arm: SmoothnessArm, look: SmoothnessLook) -> StartRow:
    nearest = min(range(len(look.steps)), key=lambda i: abs(look.steps[i] - arm.rate))
    length = look.gradient_norm or math.nan
    return StartRow(
        name=arm.name,
        loss=wording.number(look.loss),
        gradient=wording.number(look.gradient_norm, 2),
        trusted=trusted(look.trusted_step, 1.0, look.steps),
        change=f"×{wording.number(look.gradient_changes[nearest] / length, 2)}",
        beta=wording.number(look.beta, 2),
    )


def start_rate(found: Smoothness) -> str:
    """Write the rate that first looks are compared at."""
    return plain(tried(found)[0].rate)


def look_rows(arm: SmoothnessArm) -> list[LookRow]:
    """Put an arm's looks in words, as far as every seed came."""
    return [_row(arm, looks) for looks in zip(*(run.looks for run in arm.runs), strict=False)]


def _row(arm: SmoothnessArm, looks: Sequence[SmoothnessLook]) -> LookRow:
    def middle(pick: Callable[[SmoothnessLook], float]) -> float:
        known = [pick(look) for look in looks if not math.isnan(pick(look))]
        return statistics.median(known) if known else math.nan

    return LookRow(
        step=f"{looks[0].step:,}",
        loss=wording.number(middle(lambda look: look.loss)),
        losses=_range(
            middle(lambda look: look.loss_band[0]), middle(lambda look: look.loss_band[1])
        ),
        changes=_range(
            middle(lambda look: look.gradient_change_band[0]),
            middle(lambda look: look.gradient_change_band[1]),
        ),
        trusted=trusted(middle(lambda look: look.trusted_step), arm.rate, looks[0].steps),
        beta=wording.number(middle(lambda look: look.beta), 2),
        shift=known(middle(lambda look: look.shift_cosine)),
    )


def _range(low: float, high: float) -> str:
    return f"{wording.number(low, 2)} … {wording.number(high, 2)}"


def known(value: float) -> str:
    """Write a cosine, or a dash where there is none."""
    return "–" if math.isnan(value) else wording.number(value, 2)


def trusted(step: float, unit: float, steps: Sequence[float]) -> str:
    """Write a trusted step in units of the rate, or on which side of all points it lies."""
    if math.isnan(step):
        return "–"
    if math.isinf(step):
        return f"> {plain(steps[-1] / unit)}"
    if step <= steps[0]:
        return f"< {plain(step / unit)}"
    return wording.number(step / unit, 2)


def plain(value: float) -> str:
    """Write a number that was chosen, not measured."""
    return f"{value:.3g}" if 1e-4 < value < 1e4 else wording.number(value, 1)


def arm_line(arm: SmoothnessArm, found: Smoothness) -> str:
    """Say at which rate an arm was trained, and where it ended."""
    if math.isnan(arm.rate):
        rate = f"diverged at every rate, the least {plain(arm.rates[0][0])}"
    else:
        edge = arm.at_edge and arm.rate == arm.rates[-1][0]
        rate = f"rate {'≥ ' if edge else ''}{plain(arm.rate)}"
    if math.isinf(arm.loss.value):
        diverged = sum(math.isinf(run.loss) for run in arm.runs)
        return f"{rate}, {diverged} of {found.seeds} seeds diverged"
    loss = arm.loss
    final = wording.spread(loss) if math.isfinite(loss.error) else wording.number(loss.value)
    return f"{rate}, final loss {final}"


def conditions(found: Smoothness) -> str:
    """Say what was measured, and how."""
    if not found.steps:
        return _start_conditions(found)
    own = all(arm.rates for arm in tried(found))
    rates = "each way at its best rate (chosen on another seed)" if own else "at the given rate"
    several = f"medians over {found.seeds} seeds" if found.seeds > 1 else "one seed"
    along = "the gradient" if found.optimizer == "sgd" else "the optimiser's own step"
    steps = _multiples(tried(found))
    return (
        f"{found.steps} steps of {_NAMES.get(found.optimizer, found.optimizer)}, {rates}, on the "
        f"same weights and batches; {several}. At each look, loss and gradient on one batch kept "
        f"for it, along {along}, from {steps} times the rate. Trusted: steps until the gradient "
        "has changed by its own length. β: largest gradient change over distance. Shift: mean "
        "cosine between a layer’s gradient before and after earlier layers took their step; 1 is "
        "no internal covariate shift."
    )


def _start_conditions(found: Smoothness) -> str:
    arms = tried(found)
    if not arms:
        return "Nothing could be measured."
    steps, rate = arms[0].runs[0].looks[0].steps, plain(arms[0].rate)
    return (
        f"New weights of one initialisation, one batch, steps along the gradient from "
        f"{plain(steps[0])} to {plain(steps[-1])}, less those that rounding swallows. Trusted: "
        f"step at which the gradient has changed by its own length. At {rate}: how much it has "
        f"changed there, in lengths; {rate} is a common rate of SGD. β: largest gradient change "
        "over distance."
    )


def _multiples(arms: Sequence[SmoothnessArm]) -> str:
    for arm in arms:
        if not math.isnan(arm.rate) and arm.runs[0].looks:
            steps = arm.runs[0].looks[0].steps
            low, high = (plain(step / arm.rate) for step in (steps[0], steps[-1]))
            return f"{low} to {high}"
    return "½ to 4"
