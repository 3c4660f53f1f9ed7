"""Decide what a tracker measures, from what the user wants and what is given."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import nn
from torch.optim import Optimizer

from equipoise.instrument import modules
from equipoise.instrument.normalisers import is_normaliser
from equipoise.instrument.snapshot import untouched
from equipoise.instrument.types import LossFunction
from equipoise.numerics.checks import check_positive, check_whole, is_whole

# What each measurement needs.
_NEEDS = {
    "landscape": ("loss_fn", "lr"),
    "ics": ("loss_fn", "optimizer"),
    "growth": ("loss_fn", "layers"),
    "activations": ("layers",),
    "conditioning": ("layers",),
    "updates": ("optimizer",),
}
_MEANING = {
    "loss_fn": "loss_fn, a function of the model and a batch",
    "optimizer": "optimizer, the one whose steps are tracked",
    "lr": "the optimizer, or lr=",
    "layers": "a model with linear, convolutional or normalising layers",
}


@dataclass(frozen=True, slots=True)
class Plan:
    """What is measured at every sample.

    Args:
        landscape: Loss and gradient along the gradient.
        ics: Internal covariate shift of the next step.
        growth: Gradients layer by layer.
        activations: Moments of layer inputs.
        conditioning: Condition numbers of layer inputs.
        updates: Lengths of gradients and of the next step.
        steps: Steps of the landscape, in learning rates.
        lr: The learning rate; ``None`` for the optimiser's.
    """

    landscape: bool
    ics: bool
    growth: bool
    activations: bool
    conditioning: bool
    updates: bool
    steps: tuple[float, ...]
    lr: float | None

    @property
    def uses_batches(self) -> bool:
        """Whether anything depends on a batch."""
        return self.uses_loss or self.activations or self.conditioning

    @property
    def uses_loss(self) -> bool:
        """Whether anything depends on the loss."""
        return self.landscape or self.ics or self.growth

    def etas(self, optimizer: Optimizer | None) -> list[float]:
        """Steps along the gradient at the present learning rate."""
        lr: Any = self.lr
        if lr is None and optimizer is not None:
            lr = optimizer.param_groups[0]["lr"]  # may be a tensor
        return [] if lr is None else [multiple * float(lr) for multiple in self.steps]


def planned(
    model: nn.Module,
    loss_fn: LossFunction | None,
    optimizer: Optimizer | None,
    wishes: Mapping[str, bool | None],
    *,
    steps: Sequence[float],
    lr: float | None,
) -> Plan:
    """Decide what is measured; a wish of ``None`` means yes if it can be measured.

    Raises:
        ValueError: If a wanted measurement lacks what it needs, nothing is to be measured, or
            steps or rate are out of range.
    """
    given = {
        "loss_fn": loss_fn is not None,
        "optimizer": optimizer is not None,
        "lr": optimizer is not None or lr is not None,
        "layers": _has_layers(model),
    }
    decided = {}
    for name, wish in wishes.items():
        missing = [need for need in _NEEDS[name] if not given[need]]
        if wish and missing:
            raise ValueError(f"track({name}=True) needs {_MEANING[missing[0]]}.")
        decided[name] = not missing if wish is None else wish
    if not any(decided.values()):
        raise ValueError(
            "track has nothing to measure: give it a loss_fn and the optimizer, and leave "
            "something switched on."
        )
    return Plan(**decided, steps=_checked_steps(steps), lr=_checked_rate(lr))


def _has_layers(model: nn.Module) -> bool:
    with untouched(model):  # a parametrised weight is computed when it is read
        return any(modules.is_parametrised(m) or is_normaliser(m) for m in modules.names(model))


def _checked_steps(steps: Sequence[float]) -> tuple[float, ...]:
    found = tuple(float(step) for step in steps)
    if not found or not all(math.isfinite(step) for step in found):
        raise ValueError(
            f"steps must be finite multiples of the learning rate, at least one; got {found}."
        )
    return found


def _checked_rate(lr: float | None) -> float | None:
    if lr is not None:
        check_positive(lr=lr)
    return lr


def due(every: int | Iterable[int]) -> Callable[[int], bool]:
    """A function that says whether to take a sample at a step.

    Args:
        every: Steps from one sample to the next, or the steps to sample.

    Raises:
        TypeError: If it is neither a whole number nor several.
        ValueError: If a number is out of range.

    Examples:
        >>> [step for step in range(10) if due(4)(step)]
        [0, 4, 8]
        >>> [step for step in range(10) if due((0, 1, 5))(step)]
        [0, 1, 5]
    """
    if is_whole(every):
        interval = check_whole("every", every, 1)
        return lambda step: step % interval == 0
    if isinstance(every, bool | str | float) or not isinstance(every, Iterable):
        raise TypeError(
            f"every must be a number of steps, or the steps themselves, got {every!r}."
        )
    chosen: frozenset[Any] = frozenset(every)
    if not chosen or not all(is_whole(step) and step >= 0 for step in chosen):
        raise ValueError(
            f"every must name steps, whole numbers from 0; got {sorted(chosen, key=str)[:5]}."
        )
    return lambda step: step in chosen
