"""What the probes of the loss around a point report."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

Direction = Literal["gradient", "random", "given"]


@dataclass(frozen=True, slots=True)
class Landscape:
    r"""Loss and gradient along a line through the parameters.

    The points are :math:`\theta_\eta = \theta - \eta d`. Numbers that overflow stay in, as ``inf``
    or ``nan``.

    Args:
        direction: What d is: the loss's own gradient g, a random vector of the same length, or
            one that the caller gave.
        steps: η, in the caller's order.
        losses: :math:`\mathcal L(\theta_\eta)` at every step.
        gradient_changes: :math:`\|\nabla\mathcal L(\theta_\eta) - g\|` at every step; ``None``
            if only losses were asked for.
        cosines: Between :math:`\nabla\mathcal L(\theta_\eta)` and g; ``nan`` where one is zero.
        initial_loss: :math:`\mathcal L(\theta)`.
        gradient_norm: :math:`\|g\|`.
        direction_norm: :math:`\|d\|`.
        parameter_norm: :math:`\|\theta\|`.
        relative_floor: Resolution of the coarsest type among parameters and loss. A gradient
            change of less than this times the gradient's norm is rounding.
        zero_gradient: Whether g is exactly zero.
    """

    direction: Direction
    steps: tuple[float, ...]
    losses: tuple[float, ...]
    gradient_changes: tuple[float, ...] | None
    cosines: tuple[float, ...] | None
    initial_loss: float
    gradient_norm: float
    direction_norm: float
    parameter_norm: float
    relative_floor: float
    zero_gradient: bool

    @property
    def distances(self) -> tuple[float, ...]:
        r""":math:`\|\eta d\|` at every step."""
        return tuple(abs(step) * self.direction_norm if step else 0.0 for step in self.steps)

    @property
    def betas(self) -> tuple[float, ...] | None:
        r""":math:`\|\nabla\mathcal L(\theta_\eta) - g\| / \|\eta d\|`; ``nan`` at distance 0."""
        if self.gradient_changes is None:
            return None
        pairs = zip(self.gradient_changes, self.distances, strict=True)
        return tuple(change / distance if distance else math.nan for change, distance in pairs)

    @property
    def beta(self) -> float:
        r"""Effective β-smoothness: the largest of :attr:`betas`.

        Points at distance 0 do not count; ``nan`` without any other, or if one is ``nan``.
        """
        moved = [b for b, d in zip(self.betas or (), self.distances, strict=False) if d]
        return _extremes(moved)[1] if moved else math.nan

    @property
    def loss_band(self) -> tuple[float, float]:
        """Smallest and largest loss over the steps; both ``nan`` if one loss is."""
        return _extremes(self.losses)

    @property
    def gradient_change_band(self) -> tuple[float, float] | None:
        """Smallest and largest gradient change over the steps; both ``nan`` if one is."""
        if self.gradient_changes is None:
            return None
        return _extremes(self.gradient_changes)

    @property
    def step_errors(self) -> tuple[float, ...]:
        """Bound on the error of each step from rounding the moved parameters, relative to it.

        At 1 or more the step may be lost altogether, as small steps in half precision are.
        """
        unit = self.relative_floor / 2
        return tuple(
            unit * (1 + self.parameter_norm / distance) if distance else 0.0
            for distance in self.distances
        )


@dataclass(frozen=True, slots=True)
class LayerShift:
    r"""How far the gradient of one layer moves when all earlier layers take their step.

    Args:
        layer: Name of the layer in the model.
        kind: Its class.
        parameters: How many trainable numbers it holds; shared ones count in the first layer
            that uses them.
        l2: :math:`\|G_i - G_i'\|`.
        cosine: Between :math:`G_i` and :math:`G_i'`, ideally 1; ``nan`` where one is zero.
        gradient_norm: :math:`\|G_i\|`, before the earlier layers moved.
        moved_gradient_norm: :math:`\|G_i'\|`, after.
        zero_gradient: Whether one of the two is exactly zero.
    """

    layer: str
    kind: str
    parameters: int
    l2: float
    cosine: float
    gradient_norm: float
    moved_gradient_norm: float
    zero_gradient: bool


@dataclass(frozen=True, slots=True)
class CovariateShift:
    """Internal covariate shift of every layer, for one batch and one step of the optimiser.

    Args:
        layers: In the order in which they are applied.
        loss: Before the step.
        relative_floor: Resolution of the coarsest type among parameters and loss. A difference
            of less than this times the gradient's norm is rounding.
        shared_prefix: Whether the passes shared the work of the layers that had moved already.
    """

    layers: tuple[LayerShift, ...]
    loss: float
    relative_floor: float
    shared_prefix: bool


def _extremes(values: Sequence[float]) -> tuple[float, float]:
    """Smallest and largest; ``nan`` if one value is, which ``min`` and ``max`` would hide."""
    if any(map(math.isnan, values)):
        return math.nan, math.nan
    return min(values), max(values)
