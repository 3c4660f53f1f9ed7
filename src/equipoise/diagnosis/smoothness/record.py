"""How far a gradient is reliable: at initialisation, and along a short training."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from equipoise.records.estimate import Estimate

_OPTIMIZER_NAMES = {"sgd": "SGD without momentum", "adam": "Adam", "adamw": "AdamW"}


@dataclass(frozen=True, slots=True)
class SmoothnessMeasurement:
    r"""The loss along one step of the optimiser, on one batch.

    The points are :math:`\theta_\eta = \theta - \eta d`. At η = learning rate this is the
    optimiser's own step; for plain SGD, d is the gradient g. Numbers may be infinite or NaN.

    Args:
        step: Steps of training taken before.
        loss: :math:`\mathcal L(\theta)`.
        gradient_norm: :math:`\|g\|`.
        steps: η, rising.
        losses: :math:`\mathcal L(\theta_\eta)` at every step.
        gradient_changes: :math:`\|\nabla\mathcal L(\theta_\eta) - g\|` at every step.
        beta: Effective smoothness, the largest gradient change over :math:`\|\eta d\|`.
        shift_cosine: Internal covariate shift: mean cosine between a layer's gradient before and
            after the earlier layers took their step, over all layers with weights but the first.
            1 means no shift, ``nan`` not measured.
    """

    step: int
    loss: float
    gradient_norm: float
    steps: tuple[float, ...]
    losses: tuple[float, ...]
    gradient_changes: tuple[float, ...]
    beta: float
    shift_cosine: float = math.nan

    @property
    def loss_band(self) -> tuple[float, float]:
        """Smallest and largest loss over the points; both ``nan`` if one is."""
        return _band(self.losses)

    @property
    def gradient_change_band(self) -> tuple[float, float]:
        """Smallest and largest gradient change over the points; both ``nan`` if one is."""
        return _band(self.gradient_changes)

    @property
    def reliable_step(self) -> float:
        """Step at which the gradient has changed by 100 %; see :func:`reliable_step`."""
        return reliable_step(self.steps, self.gradient_changes, self.gradient_norm)


@dataclass(frozen=True, slots=True)
class SmoothnessRun:
    """One initialisation and order of batches.

    Args:
        seed: Seed of both.
        measurements: Measurements, in the order of steps.
        loss: Mean training loss of the last quarter of the steps; infinite if training diverged,
            ``nan`` if there was none.
    """

    seed: int
    measurements: tuple[SmoothnessMeasurement, ...]
    loss: float


@dataclass(frozen=True, slots=True)
class SmoothnessArm:
    """One variant of the model, trained or measured at initialisation.

    Args:
        name: What is changed.
        rate: Learning rate whose multiples the points are; ``nan`` if every rate diverged.
        rates: Every rate that was tried, with its loss; empty if the rate was given.
        at_edge: Whether a rate beyond those tried might be better.
        runs: One per seed.
        loss: Final loss, mean over seeds with its standard error.
        reason: Why the variant was not tried; ``None`` if it was.
    """

    name: str
    rate: float
    rates: tuple[tuple[float, ...], ...]
    at_edge: bool
    runs: tuple[SmoothnessRun, ...]
    loss: Estimate
    reason: str | None = None


@dataclass(frozen=True, slots=True)
class Smoothness:
    """Loss and gradient along a step, for the unchanged model and for variants of it.

    Args:
        optimizer: Whose step the points lie along.
        steps: Steps of training; 0 if only the initialisation was measured.
        seeds: Initialisations and data orders, the same for every arm.
        arms: One per variant, the unchanged model first.
    """

    optimizer: str
    steps: int
    seeds: int
    arms: tuple[SmoothnessArm, ...]

    @property
    def optimizer_name(self) -> str:
        """The optimiser as a reader knows it."""
        return _OPTIMIZER_NAMES.get(self.optimizer, self.optimizer)


def reliable_step(
    steps: Sequence[float], gradient_changes: Sequence[float], gradient_norm: float
) -> float:
    r"""Step η at which the gradient has changed by 100 %, its own length.

    The first crossing of :math:`\|\nabla\mathcal L(\theta - \eta g) - g\| = \|g\|`, on straight
    lines between the points. Before it :math:`\langle\nabla\mathcal L(\theta - \eta g), g\rangle
    > 0`: moving further against g still lowers the loss.

    Args:
        steps: η, rising from above zero.
        gradient_changes: At every step.
        gradient_norm: :math:`\|g\|`.

    Returns:
        The step. The first of ``steps``, as an upper bound, if the gradient has changed so much
        already there; infinity if it has not at the last; ``nan`` if the gradient is zero or not
        finite.

    Examples:
        >>> reliable_step((0.5, 1.0), (1.0, 3.0), gradient_norm=2.0)
        0.75
    """
    if not 0 < gradient_norm < math.inf:
        return math.nan
    near, low = steps[0], gradient_changes[0]
    if not low < gradient_norm:  # true for NaN too
        return near
    for step, change in zip(steps, gradient_changes, strict=True):
        if not change < gradient_norm:
            share = (gradient_norm - low) / (change - low)
            return near + (step - near) * (0.0 if math.isnan(share) else share)
        near, low = step, change
    return math.inf


def _band(values: Sequence[float]) -> tuple[float, float]:
    if not values or any(map(math.isnan, values)):
        return math.nan, math.nan
    return min(values), max(values)
