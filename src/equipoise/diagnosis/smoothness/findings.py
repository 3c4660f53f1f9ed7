"""Conclusions about smoothness: how far the gradient holds, and what normalisers change."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterator, Sequence

from equipoise.diagnosis.smoothness.measure import START_RATE
from equipoise.diagnosis.smoothness.record import Smoothness, SmoothnessArm, SmoothnessLook
from equipoise.diagnosis.smoothness.ways import WITHOUT
from equipoise.records.finding import Finding

# A loss that has fallen by less than this part is still on the plateau that it started on, where
# gradients are short and hardly change.
_FALLEN = 0.1
# A gradient that is so many times as long is worth a word.
_OTHER_LENGTH = 10.0

Look = SmoothnessLook


def conclude_smoothness(found: Smoothness | None) -> list[Finding]:
    """Turn the record into findings."""
    if found is None:
        return []
    if not found.steps:
        return _start(found.arms)
    plain, *others = found.arms
    if plain.reason is not None:
        return [Finding("note", "Smoothness could not be followed", plain.reason)]
    if math.isinf(plain.loss.value):
        return [_diverged(plain, found)]
    findings = _trust(plain, found)
    for other in others:
        findings += _compared(plain, other, found)
    return findings


def _start(arms: Sequence[SmoothnessArm]) -> list[Finding]:
    """Only where a common rate is too large for the first gradient."""
    plain, *others = arms
    if plain.reason is not None:
        return []
    first = plain.runs[0].looks[0]
    if not first.trusted_step < START_RATE:
        return []
    detail = (
        "On one batch, with the weights of one initialisation, the gradient has changed by its "
        f"own length at a step of {_size(first)} along it, where {START_RATE:g} is a common rate "
        f"of SGD.{''.join(map(_first_of, others))}"
    )
    longer = [o for o in others if o.reason is None and _times_longer(first, o) > _OTHER_LENGTH]
    if longer:
        times = float(f"{_times_longer(first, longer[0]):.2g}")
        detail += (
            f" The gradient is {times:,.0f} times as long as "
            f"{longer[0].name}: a short one on a plateau changes little."
        )
    return [
        Finding(
            "note",
            f"The first gradient holds for steps of {_size(first)} only",
            detail,
            "See how far it holds in training, at the best rate: equipoise checkup … "
            "--smoothness.",
        )
    ]


def _size(look: Look) -> str:
    below = "less than " if look.trusted_step <= look.steps[0] else ""
    return f"{below}{look.trusted_step:.2g}"


def _first_of(arm: SmoothnessArm) -> str:
    if arm.reason is not None:
        return ""
    look = arm.runs[0].looks[0]
    if math.isnan(look.trusted_step):
        return f" {_capital(arm.name)} there is no gradient."
    if math.isinf(look.trusted_step):
        return f" {_capital(arm.name)} it holds beyond {look.steps[-1]:g}."
    return f" {_capital(arm.name)} it holds to {_size(look)}."


def _times_longer(first: Look, other: SmoothnessArm) -> float:
    length = other.runs[0].looks[0].gradient_norm
    return first.gradient_norm / length if length else math.nan


def _trust(plain: SmoothnessArm, found: Smoothness) -> list[Finding]:
    """Whether the gradient holds for a whole step of the optimiser."""
    reach = {
        step: [look.trusted_step / plain.rate for look in looks]
        for step, looks in _by_step(plain)
        if not any(math.isnan(look.trusted_step) for look in looks)
    }
    if not reach or math.isnan(plain.rate):
        return []
    short = [step for step, values in reach.items() if max(values) < 1]
    long = [step for step, values in reach.items() if min(values) >= 1]
    run = f"{_conditions(found)}, rate {plain.rate:.2g}"
    if len(long) == len(reach):
        title = "The gradient holds for a whole step of the optimiser"
        detail = f"{run}: it changes by less than its own length within a step, at every look."
        return [Finding("good", title, detail)]
    if not short:
        return []
    least = min(statistics.median(reach[step]) for step in short)
    detail = (
        f"{run}: {_when(short)} the gradient of a batch changes by its own length within one "
        f"more, at the earliest after {_part(least, found)} of it"
        f"{' (median over seeds)' if found.seeds > 1 else ''}."
    )
    if found.optimizer == "sgd":
        product = _median(plain, lambda look: look.beta) * plain.rate
        detail += (
            f" The effective smoothness β times the rate is {product:.2g}; around 2, training "
            "runs at the edge of stability, which is usual at the best rate."
        )
    which = "The first gradient" if short == [0] else "The gradient"
    title = f"{which} is good for less than one step of {_name(found.optimizer)}"
    advice = "It may still train best so. If training is unstable, lower the rate first."
    return [Finding("note", title, detail, advice)]


def _when(steps: Sequence[int]) -> str:
    later = [str(step) for step in steps if step]
    start = ["at the start"] if 0 in steps else []
    return " and ".join(start + ([f"after {', '.join(later)} steps"] if later else []))


def _part(least: float, found: Smoothness) -> str:
    first = found.arms[0].runs[0].looks[0].steps[0] / found.arms[0].rate
    return f"less than {first:.2g}" if least <= first * 1.001 else f"{least:.2g}"


def _compared(plain: SmoothnessArm, other: SmoothnessArm, found: Smoothness) -> list[Finding]:
    if other.reason is not None:
        return []
    if math.isinf(other.loss.value):
        return [_diverged(other, found)]
    if _is_stuck(other):
        return [_stuck(plain, other, found)]
    pairs = list(_pairs(plain, other, lambda look: look.beta))
    smoother = sum(a < b for a, b in pairs)
    rougher = sum(a > b for a, b in pairs)
    if not pairs:
        return []
    verdict = None if smoother < len(pairs) > rougher else smoother == len(pairs)
    a, b = (_median(arm, lambda look: look.beta) for arm in (plain, other))
    detail = (
        f"Effective smoothness β along the step, median of the looks after the start: {a:.2g} as "
        f"it is, {b:.2g} {other.name}; smaller as it is in {smoother} of {len(pairs)} pairs of "
        f"looks at the same step. {_conditions(found)}, rates {plain.rate:.2g} and "
        f"{other.rate:.2g}, final losses {_loss(plain)} and {_loss(other)}.{_shift(plain, other)}"
    )
    return [Finding("note", _verdict(other, verdict, found), detail)]


def _verdict(other: SmoothnessArm, plain_is_smoother: bool | None, found: Smoothness) -> str:
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
    rates = ", ".join(f"{rate:.2g}" for rate, _ in arm.rates) or f"{arm.rate:.2g}"
    detail = f"{_conditions(found)}; rates that were tried on another seed: {rates}."
    if not arm.rates:
        detail = f"{_conditions(found)}, at the given rate {rates}."
    return Finding("note", f"{_capital(arm.name)} training diverges{where}", detail)


def _stuck(plain: SmoothnessArm, other: SmoothnessArm, found: Smoothness) -> Finding:
    start = statistics.fmean(run.looks[0].loss for run in other.runs)
    return Finding(
        "note",
        f"{_capital(other.name)} the loss hardly falls: smoothness cannot be compared",
        f"{_conditions(found)}: from {start:.3g} to {_loss(other)} at its rate "
        f"{other.rate:.2g}, and to {_loss(plain)} as it is. On a plateau gradients are short and "
        "change little, which says nothing about training.",
    )


def _is_stuck(arm: SmoothnessArm) -> bool:
    start = statistics.fmean(run.looks[0].loss for run in arm.runs)
    return arm.loss.value > start - _FALLEN * abs(start)


def _shift(plain: SmoothnessArm, other: SmoothnessArm) -> str:
    a, b = (_median(arm, lambda look: look.shift_cosine) for arm in (plain, other))
    if math.isnan(a) or math.isnan(b):
        return ""
    return f" Internal covariate shift (cosine; 1 is none): {a:.2f} and {b:.2f}."


def _by_step(arm: SmoothnessArm) -> Iterator[tuple[int, list[Look]]]:
    """Looks of all seeds at one step, where no seed had diverged."""
    for looks in zip(*(run.looks for run in arm.runs), strict=False):
        yield looks[0].step, list(looks)


def _pairs(
    plain: SmoothnessArm, other: SmoothnessArm, pick: Callable[[Look], float]
) -> Iterator[tuple[float, float]]:
    """Both arms' numbers at the same step of the same seed, after the start."""
    for one, two in zip(plain.runs, other.runs, strict=True):
        for a, b in zip(one.looks[1:], two.looks[1:], strict=False):
            if math.isfinite(pick(a)) and math.isfinite(pick(b)):
                yield pick(a), pick(b)


def _median(arm: SmoothnessArm, pick: Callable[[Look], float]) -> float:
    """Over seeds and the looks after the start."""
    known = [pick(x) for run in arm.runs for x in run.looks[1:] if not math.isnan(pick(x))]
    return statistics.median(known) if known else math.nan


def _conditions(found: Smoothness) -> str:
    seeds = "one seed" if found.seeds == 1 else f"{found.seeds} seeds"
    return f"{found.steps} steps of {_name(found.optimizer)}, {seeds}"


def _loss(arm: SmoothnessArm) -> str:
    known = math.isfinite(arm.loss.error)
    return str(arm.loss) if known else f"{arm.loss.value:.3g}"


def _name(optimizer: str) -> str:
    return "SGD without momentum" if optimizer == "sgd" else optimizer


def _capital(words: str) -> str:
    return words[0].upper() + words[1:]
