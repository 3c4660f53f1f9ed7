"""What a report says about smoothness."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from equipoise.diagnosis.smoothness.record import Smoothness, SmoothnessArm, SmoothnessMeasurement
from equipoise.records import wording


@dataclass(frozen=True, slots=True)
class StartRow:
    """One variant at initialisation, in words."""

    name: str
    loss: str
    gradient: str
    reliable: str
    change: str
    beta: str


@dataclass(frozen=True, slots=True)
class MeasurementRow:
    """One variant after some steps, in words; medians over seeds."""

    step: str
    loss: str
    losses: str
    changes: str
    reliable: str
    beta: str
    shift: str


def tried(found: Smoothness) -> list[SmoothnessArm]:
    """List the variants that were measured."""
    return [arm for arm in found.arms if arm.reason is None and arm.runs]


def start_rows(found: Smoothness) -> list[StartRow]:
    """Describe every variant at initialisation."""
    return [_start(arm, arm.runs[0].measurements[0]) for arm in tried(found)]


def _start(arm: SmoothnessArm, measurement: SmoothnessMeasurement) -> StartRow:
    nearest = min(
        range(len(measurement.steps)), key=lambda i: abs(measurement.steps[i] - arm.rate)
    )
    length = measurement.gradient_norm or math.nan
    return StartRow(
        name=arm.name,
        loss=wording.number(measurement.loss),
        gradient=wording.number(measurement.gradient_norm, 2),
        reliable=reliable(measurement.reliable_step, 1.0, measurement.steps),
        change=wording.percent(measurement.gradient_changes[nearest] / length),
        beta=wording.number(measurement.beta, 2),
    )


def start_rate(found: Smoothness) -> str:
    """Write the learning rate that variants are compared at."""
    return wording.plain(tried(found)[0].rate)


def measurement_rows(arm: SmoothnessArm) -> list[MeasurementRow]:
    """Describe a variant's measurements, up to the last that every seed reached."""
    return [
        _row(arm, measurements)
        for measurements in zip(*(run.measurements for run in arm.runs), strict=False)
    ]


def _row(arm: SmoothnessArm, measurements: Sequence[SmoothnessMeasurement]) -> MeasurementRow:
    first = measurements[0]
    return MeasurementRow(
        step=f"{first.step:,}",
        loss=wording.number(_median(m.loss for m in measurements)),
        losses=_range(m.loss_band for m in measurements),
        changes=_range(m.gradient_change_band for m in measurements),
        reliable=reliable(_median(m.reliable_step for m in measurements), arm.rate, first.steps),
        beta=wording.number(_median(m.beta for m in measurements), 2),
        shift=wording.known(_median(m.shift_cosine for m in measurements)),
    )


def _range(bands: Iterable[tuple[float, float]]) -> str:
    """Write the medians of both ends, with as many digits as tell them apart."""
    low, high = map(_median, zip(*bands, strict=True))
    digits = next((n for n in (2, 3, 4) if wording.number(low, n) != wording.number(high, n)), 4)
    return f"{wording.number(low, digits)} … {wording.number(high, digits)}"


def _median(values: Iterable[float]) -> float:
    known = [value for value in values if not math.isnan(value)]
    return statistics.median(known) if known else math.nan


def reliable(step: float, unit: float, steps: Sequence[float]) -> str:
    """Write a reliable step in a unit, or as a bound if it lies outside all points."""
    if math.isnan(step):
        return "–"
    if math.isinf(step):
        return f"> {wording.plain(steps[-1] / unit)}"
    if step <= steps[0]:
        return f"< {wording.plain(step / unit)}"
    return wording.number(step / unit, 2)


def arm_line(arm: SmoothnessArm, found: Smoothness) -> str:
    """Say at which learning rate a variant was trained, and its final loss."""
    if math.isnan(arm.rate):
        rate = f"diverged at every learning rate down to {wording.plain(arm.rates[0][0])}"
    else:
        edge = arm.at_edge and arm.rate == arm.rates[-1][0]
        rate = f"learning rate {'≥ ' if edge else ''}{wording.plain(arm.rate)}"
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
    rates = "its own best learning rate (chosen on another seed)" if own else "the given rate"
    several = f"medians over {found.seeds} seeds" if found.seeds > 1 else "one seed"
    along = "the gradient" if found.optimizer == "sgd" else "the optimiser's own step"
    return (
        f"{found.steps} steps of {found.optimizer_name}; every variant has the same weights and "
        f"batches, and {rates}; {several}. Each row measures loss and gradient on a separate "
        f"batch, along {along}, from {_multiples(tried(found))} times the learning rate. "
        "Reliable: steps until the gradient has changed by 100 %. β (effective smoothness): "
        "largest gradient change divided by the distance. Shift: mean cosine between a layer’s "
        "gradients before and after the earlier layers take their step; 1 means no internal "
        "covariate shift."
    )


def _start_conditions(found: Smoothness) -> str:
    arms = tried(found)
    if not arms:
        return "Nothing could be measured."
    steps, rate = arms[0].runs[0].measurements[0].steps, start_rate(found)
    return (
        f"At initialisation (one seed, one batch), along the gradient, for steps from "
        f"{wording.plain(steps[0])} to {wording.plain(steps[-1])}; smaller ones are lost in "
        "rounding. Reliable: the step at which the gradient has changed by 100 %. Change at "
        f"{rate}: how much it has changed at {rate}, a common learning rate of SGD. β (effective "
        "smoothness): largest gradient change divided by the distance."
    )


def _multiples(arms: Sequence[SmoothnessArm]) -> str:
    for arm in arms:
        if not math.isnan(arm.rate) and arm.runs[0].measurements:
            steps = arm.runs[0].measurements[0].steps
            low, high = (wording.plain(step / arm.rate) for step in (steps[0], steps[-1]))
            return f"{low} to {high}"
    return "½ to 4"
