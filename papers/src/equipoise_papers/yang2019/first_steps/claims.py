"""The source's sentences about the first steps, checked on profiles."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import partial

import numpy as np
from numpy.typing import NDArray

from equipoise.report import wording
from equipoise_papers.experiments.verdict import Check
from equipoise_papers.judging import positive
from equipoise_papers.yang2019.first_steps.training import Group, Quantity, profiles
from equipoise_papers.yang2019.samples import agrees, log_slopes, sample_mean, width_effect

Array = NDArray[np.float64]
# What was found, and whether the sentence holds.
Answer = tuple[str, bool | None]

# The source's panels b and c.
_GRADIENTS: tuple[tuple[Quantity, str], ...] = (("signals", "∂E/∂h"), ("gradients", "∂E/∂W"))

# The first layers still carry the images' covariance.
_SETTLING = 2
# In a squared norm that has grown tenfold, the step makes up nine tenths.
_GROWN = math.log(10)
# Fewest layers that a slope is fitted to.
_FEWEST = 5
# Gradients count as stable if they grow at less than this share of the rate at initialisation.
_STABLE = 0.5
# After this step, the source's figure hardly changes.
_LATE = 4
# Relative size of a step below which weights count as unchanged.
_STILL = 1e-3


def at_first(depth: int, group: Group) -> list[Check]:
    """Check step 0: flat weights, and gradients that grow as theory predicts."""
    slope = math.log(group[0][1].rate.value)
    allowance = width_effect(group[0][0].width)

    def growth(name: str, quantity: Quantity, expected: float, allowed: float) -> Check:
        found = sample_mean(-log_slopes(profiles(group, quantity, 0)[:, _SETTLING:]))
        return agrees(f"depth {depth}, step 0: {name}", found, expected, allowed)

    return [
        growth("weights are flat over layers: slope =", "weights", 0.0, 0.0),
        *(
            growth(f"{name} grow towards the input by ln λ_G =", quantity, slope, allowance)
            for quantity, name in _GRADIENTS
        ),
    ]


def after_a_step(depth: int, by_rate: Mapping[float, Group], *, decisive: float) -> list[Check]:
    """Check what the source says about the first step.

    Args:
        depth: The networks' depth.
        by_rate: Networks by learning rate.
        decisive: The rate that decides whether a sentence holds; the others are reported.
    """
    sentences: list[tuple[str, Callable[[Group], Answer]]] = [
        ("after one step weights grow exponentially towards the input", _weights_grow)
    ]
    for quantity, name in _GRADIENTS:
        sentences += [
            (f"after one step {name} {does}", partial(ask, quantity=quantity))
            for does, ask in (
                ("are stable from the output to a threshold", _stable_above),
                ("vanish exponentially beyond the threshold", _vanish_below),
            )
        ]
        changes = f"the first step changes {name} more than steps 5 to 10 together"
        sentences.append((changes, partial(_settled, quantity=quantity)))
    checks = []
    for sentence, ask in sentences:
        answers = {rate: ask(group) for rate, group in by_rate.items()}
        found = "; ".join(f"rate {rate:g}: {text}" for rate, (text, _) in answers.items())
        checks.append(Check(f"depth {depth}: {sentence}", found, answers[decisive][1]))
    return checks


def still(depth: int, group: Group) -> Check:
    """Check that weights of the lower quarter hardly change any more."""
    cell = group[0][0]
    last, quarter = cell.steps[-1], depth // 4
    # Squares of a step's size relative to the weights'.
    moved = profiles(group, "gradients", last) - profiles(group, "weights", last)
    moved += 2 * math.log(cell.rate) - math.log(cell.width)
    low, high = (
        float(np.exp(part.mean() / 2)) for part in (moved[:, :quarter], moved[:, -quarter:])
    )
    return Check(
        f"depth {depth}, step {last}: a step changes weights of the lower quarter by less than "
        f"{_STILL:g} of their size",
        f"by {wording.number(low, 2)}, those of the upper quarter by {wording.number(high, 2)}",
        low < _STILL,
    )


def _weights_grow(group: Group) -> Answer:
    """Whether weights that the step dominates grow on a line towards the input."""
    weights = profiles(group, "weights", 1)
    grown = np.flatnonzero(weights.mean(0)[_SETTLING:] > _GROWN)
    if len(grown) < _FEWEST:
        return f"{len(grown)} layers grew tenfold", False
    slopes = sample_mean(-log_slopes(weights[:, _SETTLING : _SETTLING + len(grown)]))
    contiguous = bool(grown[-1] == len(grown) - 1)
    text = f"{len(grown)} layers grew tenfold, by {wording.spread(slopes)} per layer"
    return text, positive(slopes.value, 3 * slopes.error) if contiguous else False


def _stable_above(group: Group, quantity: Quantity) -> Answer:
    """Whether gradients no longer explode between the output and the largest one."""
    after, peak = _with_peak(group, quantity)
    if after.shape[1] - peak < _FEWEST:
        return f"the largest is in layer {peak + 1}, too near to the output to tell", None
    slope = sample_mean(-log_slopes(after[:, peak:]))
    whole = math.log(group[0][1].rate.value)
    text = f"they grow by {wording.spread(slope)} per layer up to layer {peak + 1}"
    calm = positive(_STABLE * whole - slope.value, 3 * slope.error)
    return f"{text}, {slope.value / whole:.2f} of ln λ_G", calm


def _vanish_below(group: Group, quantity: Quantity) -> Answer:
    """Whether gradients fall from the largest one towards the input."""
    after, peak = _with_peak(group, quantity)
    if peak - _SETTLING < _FEWEST:
        return f"the largest is in layer {peak + 1}, at the input", False
    slope = sample_mean(log_slopes(after[:, _SETTLING : peak + 1]))
    text = f"they fall by {wording.spread(slope)} per layer below layer {peak + 1}"
    return text, positive(slope.value, 3 * slope.error)


def _settled(group: Group, quantity: Quantity) -> Answer:
    """Whether gradients have reached an equilibrium, after which little changes."""
    first = _change(group, quantity, 0, 1)
    rest = _change(group, quantity, _LATE, group[0][0].steps[-1])
    ahead = sample_mean(first - rest)
    text = f"by {first.mean():.2f} against {rest.mean():.2f} (rms of ln)"
    return text, positive(ahead.value, 3 * ahead.error)


def _with_peak(group: Group, quantity: Quantity) -> tuple[Array, int]:
    """Profiles after one step, and the settled layer where their mean is largest."""
    after = profiles(group, quantity, 1)
    return after, _SETTLING + int(after.mean(0)[_SETTLING:].argmax())


def _change(group: Group, quantity: Quantity, before: int, after: int) -> Array:
    """Root mean square over layers of the change between two steps, one per seed."""
    change = profiles(group, quantity, after) - profiles(group, quantity, before)
    return np.asarray(np.sqrt(np.square(change).mean(1)))
