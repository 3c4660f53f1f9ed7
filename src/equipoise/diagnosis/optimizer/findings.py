"""Findings about the user's own optimiser."""

from __future__ import annotations

import math
from collections.abc import Sequence

from equipoise.diagnosis.optimizer.record import OptimizerCheck, RateTrial
from equipoise.records import wording
from equipoise.records.finding import Finding
from equipoise.training.rates import rounded

# Weight decay that halves weights in fewer steps outweighs what is learned.
_FAST_DECAY = 100
# What is advised: at a product of rate and decay of 0.001, plain SGD halves weights in this many.
_SLOW_DECAY = 700
# Share of half-precision weights that rounding may leave as they were.
_ROUNDED = 0.7
_NAMES = 3
_GIVE_SCHEDULE = "give it as well: optimizer=([optimizer], [scheduler])."


def conclude_optimizer(found: OptimizerCheck | None) -> list[Finding]:
    """What the user's optimiser holds, and what its steps do."""
    if found is None:
        return []
    return [*_held(found), *_settings(found), *_steps(found)]


def _held(found: OptimizerCheck) -> list[Finding]:
    if found.is_of_another_model:
        return [
            Finding(
                "critical",
                "The optimiser holds none of the model's parameters",
                f"{found.optimizer} steps {wording.count(found.held, 'tensor')}, and none is one "
                f"of the model's {wording.count(len(found.parameters), 'parameter')}: it was made "
                "of another model, or before this one was copied, rebuilt or given new weights.",
                "Make the optimiser last, of the model that is trained: "
                f"{found.optimizer}(model.parameters(), ...)",
            )
        ]
    if not found.left_out:
        return []
    forgotten = [name for name in found.left_out if name not in found.of_others]
    if not forgotten:
        return [
            Finding(
                "note",
                _leaves_out(found, found.of_others),
                f"Its steps do not change {wording.listed(found.of_others, _NAMES)}. The loss "
                "does not depend on these, or they are whole networks of a model without a "
                "forward() of its own: another optimiser is to step them.",
            )
        ]
    return [
        Finding(
            "warning",
            _leaves_out(found, forgotten),
            f"Its steps do not change {wording.listed(forgotten, _NAMES)}. Layers that are "
            "added after the optimiser was made are left out like this.",
            "Give it model.parameters(). If these are meant to stay, requires_grad_(False) says "
            "so and saves their gradients.",
        )
    ]


def _leaves_out(found: OptimizerCheck, names: Sequence[str]) -> str:
    of_all = wording.count(len(found.parameters), "trainable parameter")
    return f"The optimiser leaves out {len(names)} of {of_all}"


def _settings(found: OptimizerCheck) -> list[Finding]:
    findings = []
    if found.rate == 0 and not found.is_of_another_model:
        findings.append(
            Finding(
                "critical",
                "The learning rate is zero",
                f"No group of {found.optimizer} has a rate above zero, nor has its schedule set "
                "one: nothing moves.",
                "Give it a learning rate, such as 0.001 for Adam or 0.1 for SGD.",
            )
        )
    if found.climbs:
        findings.append(
            Finding(
                "warning",
                "The optimiser maximises",
                f"{found.optimizer} was made with maximize=True: its steps raise the loss.",
                "Leave maximize away, unless what the loss function returns is to grow.",
            )
        )
    if found.half_life < _FAST_DECAY and found.schedule != "assumed":
        steps = wording.count(max(1, round(found.half_life)), "step")
        times = rounded(_SLOW_DECAY / found.half_life)
        findings.append(
            Finding(
                "warning",
                f"Weight decay halves weights in {steps}",
                f"At a learning rate of {wording.plain(found.rate)} decay alone takes weights to "
                "half of their size that fast; what a step learns is gone as soon.",
                f"Divide weight_decay or the learning rate by {wording.plain(times)} or more.",
            )
        )
    if found.unmoved > _ROUNDED:
        findings.append(
            Finding(
                "warning",
                "Rounding swallows most steps of weights in half precision",
                f"{wording.percent(found.unmoved)} of the weights that have a gradient are what "
                f"they were after {wording.count(found.trials[0].steps, 'step')}: a step is "
                "smaller than half of the distance between neighbouring numbers.",
                "Keep weights in float32 and let torch.autocast round, or give the optimiser "
                "float32 copies of them.",
            )
        )
    return findings


def _steps(found: OptimizerCheck) -> list[Finding]:
    name = found.optimizer
    match found.outcome:
        case "fails":
            return [
                Finding(
                    "critical",
                    f"Steps of {name} fail",
                    f"{wording.capital(found.reason)} The first steps of a training fail like "
                    "this.",
                )
            ]
        case "falls":
            best = max(_at_own_rate(found), key=lambda one: one.fall)
            return [Finding("good", "The optimiser's steps lower the loss", _told(best, name))]
        case "too large":
            return [_too_large(found)]
        case "too small":
            return [_too_small(found)]
        case "undecided" if all(math.isinf(one.after) for one in found.trials):
            return [
                Finding(
                    "critical",
                    f"Steps of {name} make the loss infinite or nan",
                    f"{_told(found.trials[0], name)} {_range(found, 'do the same')}".rstrip(),
                    "Look for a division by zero in the optimiser's step, such as by an eps of "
                    "1e-8 in float16, and for gradients that overflow: keep weights in float32.",
                )
            ]
        case "undecided" if not (found.unmoved > _ROUNDED or found.half_life < _FAST_DECAY):
            return [
                Finding(
                    "note",
                    "Whether the optimiser's steps lower the loss is undecided",
                    f"{_told(found.trials[0], name)} {_range(found, 'show no more')}A loss that "
                    "is mostly noise does this, and one whose gradient is not its own.",
                )
            ]
    return []


def _too_large(found: OptimizerCheck) -> Finding:
    rate, best = wording.plain(found.rate), _best(found)
    details = f"{_longest(found)} {_told(best)}"
    begin = (
        f"Begin with a learning rate of {wording.plain(best.rate)}, and warm it up if it is to "
        "become larger."
    )
    if found.schedule != "assumed":
        title = f"The learning rate {rate} of {found.optimizer} is too large"
        return Finding("critical", title, details, begin)
    return Finding(
        "warning",
        f"The learning rate {rate} of {found.optimizer} is too large if its schedule reaches it",
        details,
        f"{begin} If the schedule stays far below, {_GIVE_SCHEDULE}",
    )


def _too_small(found: OptimizerCheck) -> Finding:
    rate, best = wording.plain(found.rate), _best(found)
    low, high = wording.plain(rounded(best.rate / 10)), wording.plain(best.rate)
    known = found.schedule == "known"
    return Finding(
        "warning" if known else "note",
        f"The learning rate {rate} of {found.optimizer} is very small",
        f"{_longest(found)} {_told(best)}",
        f"Try a learning rate of {low} to {high}."
        + ("" if known else f" If the schedule raises it, {_GIVE_SCHEDULE}"),
    )


def _best(found: OptimizerCheck) -> RateTrial:
    return max((one for one in found.trials if one.everywhere), key=lambda one: one.fall)


def _longest(found: OptimizerCheck) -> str:
    """What the most steps at the own rate did."""
    return _told(max(_at_own_rate(found), key=lambda one: one.steps), found.optimizer)


def _range(found: OptimizerCheck, verb: str) -> str:
    rates = [one.rate for one in found.trials]
    low, high = wording.plain(min(rates)), wording.plain(max(rates))
    return "" if low == high else f"Rates from {low} to {high} {verb}. "


def _at_own_rate(found: OptimizerCheck) -> list[RateTrial]:
    return [one for one in found.trials if one.rate == found.trials[0].rate]


def _told(trial: RateTrial, name: str = "") -> str:
    """What steps at one rate did, in a sentence."""
    of = f" of {name}" if name else ""
    steps = f"In {wording.count(trial.steps, 'step')}{of} at {wording.plain(trial.rate)}"
    if math.isinf(trial.after):
        return f"{steps} the loss becomes infinite or nan."
    before, after = _loss(trial.before), _loss(trial.after)
    if before != after or trial.fall == 0:
        return f"{steps} the loss goes from {before} to {after}."
    verb = "falls" if trial.fall > 0 else "rises"
    return f"{steps} the loss {verb} by {wording.number(abs(trial.fall))} from {before}."


def _loss(value: float) -> str:
    return wording.number(value, 4)
