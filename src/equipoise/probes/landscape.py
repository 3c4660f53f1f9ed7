"""The loss and its gradient along a line through the parameters, on one batch.

Between two points only the parameters differ: the batch, the noise, the mode and the buffers are
the same. Separate training runs with several learning rates measure something else.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from equipoise.instrument.observers import observers_paused
from equipoise.instrument.replay import Replay
from equipoise.instrument.snapshot import parameters_restored
from equipoise.instrument.types import LossFunction
from equipoise.numerics.options import named_options
from equipoise.numerics.vectors import Reference, length
from equipoise.probes.record import Direction, Landscape


@named_options
def landscape(
    model: nn.Module,
    loss_fn: LossFunction,
    batch: Any,
    *,
    steps: Iterable[float],
    direction: Direction | Sequence[Tensor] = "gradient",
    generator: torch.Generator | None = None,
    gradients: bool = True,
) -> Landscape:
    r"""Loss, gradient change and effective smoothness along a direction.

    With θ all trainable parameters, :math:`g = \nabla\mathcal L(\theta)`, and steps that are not
    normalised, :math:`\theta_\eta = \theta - \eta d` with d = g by default,

    .. math:: \mathcal L(\theta_\eta), \quad \|\nabla\mathcal L(\theta_\eta) - g\|, \quad
              \cos(\nabla\mathcal L(\theta_\eta), g), \quad
              \beta = \max_\eta \frac{\|\nabla\mathcal L(\theta_\eta) - g\|}{\|\eta d\|} .

    Parameters are moved in place, from one saved copy of them. Parameters, buffers, gradients,
    modes and random states are left bit-identical, whatever happens.

    Args:
        model: Any module, in the mode that it is trained in; a compiled one runs uncompiled.
        loss_fn: ``loss_fn(model, batch)`` returns a scalar.
        batch: What the user's loader yields.
        steps: η, finite numbers; 0 and negative ones are allowed. Multiples of the learning
            rate, such as 8 to 12 points in geometric spacing from ½ to 4 times, show how far the
            gradient can be trusted.
        direction: d: ``"gradient"`` for g; ``"random"`` for a Gaussian vector scaled as a whole
            to the norm of g; or one tensor for each trainable parameter.
        generator: Source of the random direction.
        gradients: Whether gradients are measured at every step, not only losses.

    Returns:
        One number per step in every field. Losses and gradients that overflow are kept. Along a
        zero gradient the landscape is flat, β is ``nan`` and ``zero_gradient`` is set.

    Raises:
        TypeError: If a direction holds something else than tensors.
        ValueError: If ``loss_fn`` returns anything but a tensor with one real number and a graph,
            if the model has no trainable parameter or split or lazy ones, or if steps, direction
            or generator are invalid.

    Note:
        A loss that keeps state of its own, or draws from a generator that the model does not
        own, cannot be replayed.

    Examples:
        >>> model = nn.ParameterList([torch.tensor([3.0, 0.0])])
        >>> bowl = lambda model, curvature: 0.5 * (curvature * model[0] ** 2).sum()
        >>> found = landscape(model, bowl, torch.tensor([2.0, 1.0]), steps=[0.25, 0.5, 1.0])
        >>> found.initial_loss, found.losses, found.beta
        (9.0, (2.25, 0.0, 9.0), 2.0)

    References:
        [santurkar2018], Section 3.2 and Figure 4.
    """
    etas = _checked_steps(steps)
    if not isinstance(direction, str):
        direction = _tensors(direction)
    replay = Replay(model, loss_fn, batch)
    kind = _checked_direction(direction, generator, replay)
    with observers_paused(model), parameters_restored(model) as saved:
        loss, gradient = replay.gradient()
        reference = Reference(gradient)
        along = _direction(direction, reference, generator, replay.parameters)
        points = []
        for eta in etas:
            saved.move(replay.parameters, along, eta)
            points.append(_point(replay, reference if gradients else None))
        parameter_norm = length(saved.values(replay.parameters))
    losses, changes, cosines = zip(*points, strict=True)
    return Landscape(
        direction=kind,
        steps=etas,
        losses=losses,
        gradient_changes=changes if gradients else None,
        cosines=cosines if gradients else None,
        initial_loss=float(loss),
        gradient_norm=reference.length,
        direction_norm=reference.length if kind == "gradient" else length(along),
        parameter_norm=parameter_norm,
        relative_floor=resolution((loss, *replay.parameters)),
        zero_gradient=reference.length == 0,
    )


def resolution(tensors: Iterable[Tensor]) -> float:
    """Machine epsilon of the coarsest floating-point type."""
    return max(torch.finfo(t.dtype).eps for t in tensors)


def _point(replay: Replay, reference: Reference | None) -> tuple[float, float, float]:
    """Loss, gradient change and cosine at the parameters' present values."""
    if reference is None:
        return float(replay.loss(graph=False)), math.nan, math.nan
    loss, gradient = replay.gradient()
    found = reference.compare(gradient)
    return float(loss), found.distance, found.cosine


def _direction(
    direction: Direction | Sequence[Tensor],
    gradient: Reference,
    generator: torch.Generator | None,
    parameters: Sequence[Tensor],
) -> Sequence[Tensor]:
    if direction == "gradient":
        return gradient.vector
    if direction == "random":
        assert generator is not None
        drawn = [_normal(p, generator) for p in parameters]
        scale = gradient.length / length(drawn)
        return [d * scale for d in drawn]
    given: Sequence[Any] = direction
    return [d.detach().to(p) for d, p in zip(given, parameters, strict=True)]


def _normal(like: Tensor, generator: torch.Generator) -> Tensor:
    """Draw on the generator's device, so that the numbers do not depend on the model's device."""
    drawn = torch.randn(like.shape, generator=generator, device=generator.device, dtype=like.dtype)
    return drawn.to(like.device)


def _checked_steps(steps: Iterable[float]) -> tuple[float, ...]:
    etas = tuple(float(step) for step in steps)
    if not etas:
        raise ValueError("steps must hold at least one number, got none.")
    if not all(math.isfinite(eta) for eta in etas):
        raise ValueError(f"steps must be finite numbers, got {etas}.")
    return etas


def _tensors(direction: Any) -> tuple[Tensor, ...]:
    given = tuple(direction) if isinstance(direction, Iterable) else (direction,)
    others = [type(d).__name__ for d in given if not isinstance(d, Tensor)]
    if others:
        raise TypeError(
            "direction must be 'gradient', 'random' or a sequence of tensors, got "
            f"{others[0]}. Give one for each trainable parameter, such as "
            "torch.as_tensor(array)."
        )
    return given


def _checked_direction(
    direction: Direction | Sequence[Tensor], generator: torch.Generator | None, replay: Replay
) -> Direction:
    if isinstance(direction, str):
        if direction not in ("gradient", "random"):
            raise ValueError(
                "direction must be 'gradient', 'random' or a sequence of tensors, got "
                f"{direction!r}."
            )
        if direction == "random" and generator is None:
            raise ValueError(
                "a random direction needs generator=, such as torch.Generator().manual_seed(0)."
            )
        return direction
    wanted = [tuple(p.shape) for p in replay.parameters]
    given = [tuple(d.shape) for d in direction]
    if given != wanted:
        at = next((i for i, (g, w) in enumerate(zip(given, wanted, strict=False)) if g != w), None)
        which = (
            f"{len(given)} tensors for {len(wanted)} parameters"
            if at is None
            else f"shape {given[at]} for {replay.names[at]!r} of shape {wanted[at]}"
        )
        raise ValueError(
            f"direction must hold one tensor per trainable parameter, in order; got {which}."
        )
    return "given"
