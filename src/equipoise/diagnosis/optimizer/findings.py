"""Findings about the user's own optimiser."""

from __future__ import annotations

import math

from equipoise.diagnosis.optimizer.record import OptimizerCheck, RateTrial
from equipoise.records import wording
from equipoise.records.finding import Finding
from equipoise.training.rates import rounded

# Weight decay that halves weights in fewer steps outweighs what is learned.
_FAST_DECAY = 100
# Share of half-precision weights that rounding may leave as they were.
_ROUNDED = 0.7
_NAMES = 3


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
                f"torch.optim.{found.optimizer}(model.parameters(), ...)",
            )
        ]
    if not found.left_out:
        return []
    of_all = wording.count(len(found.parameters), "trainable parameter")
    return [
        Finding(
            "warning",
            f"The optimiser leaves out {len(found.left_out)} of {of_all}",
            f"{wording.capital(wording.listed(found.left_out, _NAMES))} stay as they start. "
            "Layers that are added after the optimiser was made are left out like this.",
            "Give it model.parameters(). If these are meant to stay, requires_grad_(False) says "
            "so and saves their gradients.",
        )
    ]


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
    if found.half_life < _FAST_DECAY:
        steps = wording.count(max(1, round(found.half_life)), "step")
        findings.append(
            Finding(
                "warning",
                f"Weight decay halves weights in {steps}",
                f"At a learning rate of {wording.plain(found.rate)} decay alone takes weights to "
                "half of their size that fast; what a step learns is gone as soon.",
                "Lower weight_decay or the learning rate: their product should stay below 0.001.",
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
    name, rate = found.optimizer, wording.plain(found.rate)
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
            best = max((one for one in found.trials if one.everywhere), key=lambda one: one.fall)
            longest = max(_at_own_rate(found), key=lambda one: one.steps)
            return [
                Finding(
                    "critical",
                    f"The learning rate {rate} of {name} is too large",
                    f"{_told(longest, name)} {_told(best)}",
                    f"Begin with a learning rate of {wording.plain(best.rate)}, and warm it up if "
                    "it is to become larger.",
                )
            ]
        case "too small":
            fastest = max(
                (one for one in found.trials if one.everywhere), key=lambda one: one.fall
            )
            longest = max(_at_own_rate(found), key=lambda one: one.steps)
            return [
                Finding(
                    "warning",
                    f"The learning rate {rate} of {name} is very small",
                    f"{_told(longest, name)} {_told(fastest)}",
                    f"Try a learning rate of {wording.plain(rounded(fastest.rate / 10))} to "
                    f"{wording.plain(fastest.rate)}.",
                )
            ]
        case "undecided" if not found.unmoved > _ROUNDED:
            rates = [one.rate for one in found.trials]
            low, high = wording.plain(min(rates)), wording.plain(max(rates))
            others = "" if low == high else f" Rates from {low} to {high} show no more."
            return [
                Finding(
                    "note",
                    "Whether the optimiser's steps lower the loss is undecided",
                    f"{_told(found.trials[0], name)}{others} A loss that is mostly noise does "
                    "this, and one whose gradient is not its own.",
                )
            ]
    return []


def _at_own_rate(found: OptimizerCheck) -> list[RateTrial]:
    return [one for one in found.trials if one.rate == found.trials[0].rate]


def _told(trial: RateTrial, name: str = "") -> str:
    """What steps at one rate did, in a sentence."""
    of = f" of {name}" if name else ""
    steps = f"In {wording.count(trial.steps, 'step')}{of} at {wording.plain(trial.rate)}"
    if math.isinf(trial.after):
        return f"{steps} the loss becomes infinite or nan."
    return f"{steps} the loss goes from {_loss(trial.before)} to {_loss(trial.after)}."


def _loss(value: float) -> str:
    return wording.number(value, 4)
