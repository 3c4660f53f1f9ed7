"""Findings about smoothness: how far the gradient is reliable, and what normalisers change."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterator, Sequence
from operator import attrgetter

from equipoise.diagnosis.short_training import UNCHANGED
from equipoise.diagnosis.smoothness.measure import START_RATE
from equipoise.diagnosis.smoothness.record import Smoothness, SmoothnessArm, SmoothnessMeasurement
from equipoise.diagnosis.smoothness.variants import WITHOUT
from equipoise.records import wording
from equipoise.records.finding import Finding

# A loss that has fallen by less than this part is still on the plateau of its start, where
# gradients are short and hardly change.
_FALLEN = 0.1
# Mention that the gradient is longer than without normalisers from this ratio on.
_MUCH_LONGER = 10.0


def conclude_smoothness(found: Smoothness | None) -> list[Finding]:
    """Turn the record into findings."""
    if found is None:
        return []
    if not found.steps:
        return _at_start(found.arms)
    plain, *others = found.arms
    if plain.reason is not None:
        return [Finding("note", "Smoothness could not be measured", plain.reason)]
    if math.isinf(plain.loss.value):
        return [_diverged(plain, found)]
    findings = _reliability(plain, found)
    for other in others:
        findings += _compared(plain, other, found)
    return findings


def _at_start(arms: Sequence[SmoothnessArm]) -> list[Finding]:
    """Only where a common learning rate is too large for the first gradient."""
    plain, *others = arms
    if plain.reason is not None:
        return []
    first = plain.runs[0].measurements[0]
    if not first.reliable_step < START_RATE:
        return []
    size = wording.number(first.reliable_step, 2)
    step = f"A step of {size} along the gradient changes it by 100 %"
    if first.reliable_step <= first.steps[0]:
        step = f"Even the smallest step, {size}, changes the gradient by 100 % or more"
    detail = (
        f"{step} (one batch, one initialisation). A common learning rate of SGD is "
        f"{START_RATE:g}.{''.join(map(_reliable_in, others))}"
    )
    ratios = {o.name: _times_longer(first, o) for o in others if o.reason is None}
    longer = [(name, ratio) for name, ratio in ratios.items() if ratio > _MUCH_LONGER]
    if longer:
        name, ratio = longer[0]
        detail += (
            f" The gradient is {float(f'{ratio:.2g}'):,.0f} times as long as {name}; short "
            "gradients on a plateau hardly change."
        )
    return [
        Finding(
            "note",
            f"At initialisation the gradient is reliable only for steps below {size}",
            detail,
            "To see how far it is reliable during training, at the best learning rate: "
            "a check-up with smoothness=SmoothnessOptions().",
        )
    ]


def _reliable_in(arm: SmoothnessArm) -> str:
    """How far the first gradient of another variant is reliable, as a sentence."""
    if arm.reason is not None:
        return ""
    name, first = wording.capital(arm.name), arm.runs[0].measurements[0]
    if math.isnan(first.reliable_step):
        return f" {name} there is no gradient."
    if math.isinf(first.reliable_step):
        return f" {name} it is reliable for steps up to {first.steps[-1]:g}."
    return f" {name} it is reliable for steps below {wording.number(first.reliable_step, 2)}."


def _times_longer(first: SmoothnessMeasurement, other: SmoothnessArm) -> float:
    length = other.runs[0].measurements[0].gradient_norm
    return first.gradient_norm / length if length else math.nan


def _reliability(plain: SmoothnessArm, found: Smoothness) -> list[Finding]:
    """Whether the gradient is reliable for a whole step of the optimiser."""
    reach = {
        step: [m.reliable_step / plain.rate for m in measurements]
        for step, measurements in _by_step(plain)
        if not any(math.isnan(m.reliable_step) for m in measurements)
    }
    if not reach or math.isnan(plain.rate):
        return []
    short = [step for step, values in reach.items() if max(values) < 1]
    long = [step for step, values in reach.items() if min(values) >= 1]
    run = f"{_conditions(found)}, learning rate {wording.plain(plain.rate)}"
    if len(long) == len(reach):
        title = "The gradient is reliable for a whole step of the optimiser"
        detail = f"{run}: at every measurement, one step changes it by less than 100 %."
        return [Finding("good", title, detail)]
    if not short:
        return []
    earliest = min(statistics.median(reach[step]) for step in short)
    detail = (
        f"{run}: {_when(short)}, the gradient of a batch changes by 100 % within one step, at the "
        f"earliest after {_part(earliest, found)} of a step"
        f"{' (median over seeds)' if found.seeds > 1 else ''}."
    )
    if found.optimizer == "sgd":
        product = _median(plain, attrgetter("beta")) * plain.rate
        detail += (
            f" Effective smoothness β times the learning rate is {wording.number(product, 2)}; "
            "around 2, training runs at the edge of stability, which is usual at the best rate."
        )
    where = "At initialisation the gradient" if short == [0] else "The gradient"
    title = f"{where} is reliable for less than one step of {found.optimizer_name}"
    advice = "This may still be the best learning rate. If training is unstable, lower it first."
    return [Finding("note", title, detail, advice)]


def _when(steps: Sequence[int]) -> str:
    later = [str(step) for step in steps if step]
    start = ["at initialisation"] if 0 in steps else []
    return " and ".join(start + ([f"after {', '.join(later)} steps"] if later else []))


def _part(earliest: float, found: Smoothness) -> str:
    first = found.arms[0].runs[0].measurements[0].steps[0] / found.arms[0].rate
    is_bound = earliest <= first * 1.001
    return f"less than {wording.plain(first)}" if is_bound else wording.number(earliest, 2)


def _compared(plain: SmoothnessArm, other: SmoothnessArm, found: Smoothness) -> list[Finding]:
    if other.reason is not None:
        return []
    if math.isinf(other.loss.value):
        return [_diverged(other, found)]
    if _is_stuck(other):
        return [_stuck(plain, other, found)]
    pairs = list(_pairs(plain, other, attrgetter("beta")))
    smoother = sum(a < b for a, b in pairs)
    rougher = sum(a > b for a, b in pairs)
    if not pairs:
        return []
    verdict = None if smoother < len(pairs) > rougher else smoother == len(pairs)
    a, b = (wording.number(_median(arm, attrgetter("beta")), 2) for arm in (plain, other))
    detail = (
        "Effective smoothness β along the step, median of the measurements after initialisation: "
        f"{a} as it is, {b} {other.name}. It is smaller as it is in {smoother} of {len(pairs)} "
        f"pairs of measurements at the same step. {_conditions(found)}; learning rates "
        f"{wording.plain(plain.rate)} and {wording.plain(other.rate)}, final losses "
        f"{_loss(plain)} and {_loss(other)}.{_shift(plain, other)}"
    )
    return [Finding("note", _title(other, verdict, found), detail)]


def _title(other: SmoothnessArm, plain_is_smoother: bool | None, found: Smoothness) -> str:
    if other.name == WITHOUT:
        titles = {
            True: "The normalisers smooth the loss along the step",
            False: "The normalisers do not smooth the loss along the step",
            None: "Whether the normalisers smooth the loss along the step is unclear",
        }
    else:
        titles = {
            True: f"The loss along the step is less smooth {other.name}",
            False: f"The loss along the step is smoother {other.name}",
            None: f"Whether the loss along the step is smoother {other.name} is unclear",
        }
    title = titles[plain_is_smoother]
    return title if found.seeds > 1 else f"In one run: {title[0].lower()}{title[1:]}"


def _diverged(arm: SmoothnessArm, found: Smoothness) -> Finding:
    seeds = sum(math.isinf(run.loss) for run in arm.runs)
    where = "" if seeds == found.seeds else f" in {seeds} of {found.seeds} seeds"
    tried = [wording.plain(rate) for rate, _ in arm.rates]
    rates = f"learning rates tried on another seed: {', '.join(tried)}"
    if not tried:
        rates = f"at the given learning rate {wording.plain(arm.rate)}"
    title = "training diverges" if arm.name == UNCHANGED else f"{arm.name} training diverges"
    return Finding("note", f"{wording.capital(title)}{where}", f"{_conditions(found)}; {rates}.")


def _stuck(plain: SmoothnessArm, other: SmoothnessArm, found: Smoothness) -> Finding:
    start = statistics.fmean(run.measurements[0].loss for run in other.runs)
    return Finding(
        "note",
        f"{wording.capital(other.name)} the loss hardly falls: smoothness cannot be compared",
        f"{_conditions(found)}: {other.name} the loss goes from {wording.number(start)} to "
        f"{_loss(other)} at learning rate {wording.plain(other.rate)}; that of the model as it is "
        f"ends at {_loss(plain)}. On a plateau gradients are short and hardly change, which says "
        "nothing about training.",
    )


def _is_stuck(arm: SmoothnessArm) -> bool:
    start = statistics.fmean(run.measurements[0].loss for run in arm.runs)
    return arm.loss.value > start - _FALLEN * abs(start)


def _shift(plain: SmoothnessArm, other: SmoothnessArm) -> str:
    a, b = (_median(arm, attrgetter("shift_cosine")) for arm in (plain, other))
    if math.isnan(a) or math.isnan(b):
        return ""
    return f" Internal covariate shift (cosine; 1 means none): {a:.2f} and {b:.2f}."


def _by_step(arm: SmoothnessArm) -> Iterator[tuple[int, list[SmoothnessMeasurement]]]:
    """Measurements of all seeds at one step, as long as no seed has diverged."""
    for measurements in zip(*(run.measurements for run in arm.runs), strict=False):
        yield measurements[0].step, list(measurements)


def _pairs(
    plain: SmoothnessArm, other: SmoothnessArm, pick: Callable[[SmoothnessMeasurement], float]
) -> Iterator[tuple[float, float]]:
    """Both variants' numbers at the same step of the same seed, after initialisation."""
    for one, two in zip(plain.runs, other.runs, strict=True):
        for a, b in zip(one.measurements[1:], two.measurements[1:], strict=False):
            if math.isfinite(pick(a)) and math.isfinite(pick(b)):
                yield pick(a), pick(b)


def _median(arm: SmoothnessArm, pick: Callable[[SmoothnessMeasurement], float]) -> float:
    """Median over seeds and measurements after initialisation."""
    known = [pick(x) for run in arm.runs for x in run.measurements[1:] if not math.isnan(pick(x))]
    return statistics.median(known) if known else math.nan


def _conditions(found: Smoothness) -> str:
    seeds = wording.count(found.seeds, "seed")
    return f"{found.steps} steps of {found.optimizer_name}, {seeds}"


def _loss(arm: SmoothnessArm) -> str:
    is_known = math.isfinite(arm.loss.error)
    return wording.spread(arm.loss) if is_known else wording.number(arm.loss.value)
