"""Check RUN's arguments once and bring them into one shape."""

from __future__ import annotations

from typing import Literal, TypeAlias

import torch
from torch import Tensor

from equipoise.numerics.checks import check_size, check_within
from equipoise.numerics.precision import check_floating
from equipoise.pooling.matrices import check_boolean
from equipoise.pooling.run.iteration import unit

Start: TypeAlias = Tensor | Literal["mean", "ones"]

DEFAULT_ETA = 0.5


def gaussian_start(num_features: int, generator: torch.Generator) -> Tensor:
    r"""Draw a start :math:`v_0 \sim \mathcal N(0, I)`, the paper's choice.

    Draw once and keep it, as a buffer for example: at ``num_steps = 1`` another draw changes the
    result by tens of per cent.

    Args:
        num_features: Channels D, at least 1.
        generator: What to draw from; decides the device.

    Returns:
        ``[D]``, float32.

    Raises:
        ValueError: If there is no channel.

    Examples:
        >>> v_0 = gaussian_start(512, torch.Generator().manual_seed(0))
        >>> v_0.shape, bool(abs(v_0.norm() - 512**0.5) < 3)
        (torch.Size([512]), True)

    References:
        [yu2020], Theorem 1.
    """
    check_size(num_features=num_features)
    return torch.randn(
        num_features, generator=generator, device=generator.device, dtype=torch.float32
    )


def first_vector(
    start: Start, features: Tensor, *, fallback: Tensor | None = None
) -> Tensor | None:
    """A start or a fallback as unit rows ``[batch, 1, D]``; None for a mean start without one.

    Raises:
        TypeError: If it is neither a known word nor a floating point tensor.
        ValueError: If its shape or device is not that of the features, or a fallback has no use.
    """
    if fallback is not None and not is_mean(start):
        raise ValueError("fallback replaces a mean that vanishes: use it with start='mean'.")
    kind = torch.promote_types(features.dtype, torch.float32)
    if isinstance(start, Tensor):
        chosen = _checked_vector("start", start, features)
    elif start == "ones":
        chosen = torch.ones(features.shape[-1], dtype=kind, device=features.device)
    elif start != "mean":
        raise TypeError(
            f"start must be a tensor, 'mean' or 'ones'; got {start!r}. For a Gaussian start pass "
            "gaussian_start(num_features, generator)."
        )
    elif fallback is None:
        return None
    else:
        chosen = _checked_vector("fallback", fallback, features).detach()
    rows, _ = unit(chosen.to(kind))
    # Expanded, not copied: one vector in memory for the whole batch.
    return as_batch(rows[..., None, :].expand(*features.shape[:-2], 1, -1))


def as_batch(tensor: Tensor) -> Tensor:
    """Leading dimensions as one: ``[..., N, D]`` becomes ``[batch, N, D]``, a view if possible."""
    return tensor[None] if tensor.ndim == 2 else tensor.flatten(0, -3)


def batch_mask(mask: Tensor | None, features: Tensor) -> Tensor | None:
    """A mask as ``[batch, N]``.

    Raises:
        TypeError: If it is not boolean.
        ValueError: If it does not broadcast to the positions.
    """
    if mask is None:
        return None
    positions = features.shape[:-1]
    check_boolean(mask)
    if not _broadcasts(mask.shape, positions):
        raise ValueError(
            f"mask must broadcast to the positions {tuple(positions)} of the features; got shape "
            f"{tuple(mask.shape)}."
        )
    return mask.expand(positions).reshape(-1, positions[-1])


def check_features(features: Tensor, name: str = "features", *, square: bool = False) -> None:
    """Refuse anything but a batch of real matrices.

    Raises:
        TypeError: If it is not floating point.
        ValueError: If it is not ``[..., N, D]``, or ``[..., D, D]`` where that is needed.
    """
    check_floating(name, features)
    shape = tuple(features.shape)
    if len(shape) < 2 or shape[-1] == 0:
        raise ValueError(f"{name} must have shape [..., N, D] with D at least 1; got {shape}.")
    if square and shape[-1] != shape[-2]:
        raise ValueError(
            f"{name} must have shape [..., D, D]; got {shape}. For features [..., N, D] use "
            "run_factor."
        )


def is_mean(start: Start) -> bool:
    """Whether the start is the word for the mean start."""
    return isinstance(start, str) and start == "mean"


def check_steps(num_steps: int, start: Start) -> None:
    """Refuse a number of steps after which the direction ignores the features.

    Raises:
        ValueError: If it is negative, or 0 without the mean start.
    """
    if num_steps < (0 if is_mean(start) else 1):
        raise ValueError(
            f"num_steps must be at least 1; got {num_steps}. Without a step the direction would "
            "ignore the features; only start='mean' allows 0."
        )


def check_eta(eta: float, *, extended_range: bool = False) -> None:
    """Refuse a strength outside its range.

    Raises:
        ValueError: If η is not in [0, 1], or in [0, 2] on request.
    """
    check_within(
        "eta",
        eta,
        "[0, 2]" if extended_range else "[0, 1]",
        "Above 1 singular values grow again and the direction's sign flips: extended_range=True "
        "allows up to 2.",
    )


def _checked_vector(name: str, vector: Tensor, features: Tensor) -> Tensor:
    wanted = (*features.shape[:-2], features.shape[-1])
    if not vector.is_floating_point():
        raise TypeError(f"{name} must be floating point; got {vector.dtype}. Use .float().")
    if vector.shape[-1:] != wanted[-1:] or not _broadcasts(vector.shape, wanted):
        raise ValueError(
            f"{name} must have shape [{wanted[-1]}] or {list(wanted)}, as the features have shape "
            f"{tuple(features.shape)}; got {tuple(vector.shape)}."
        )
    if vector.device != features.device:
        raise ValueError(
            f"{name} is on {vector.device}, the features are on {features.device}. Move it there."
        )
    return vector


def _broadcasts(shape: tuple[int, ...], wanted: tuple[int, ...]) -> bool:
    pairs = zip(reversed(shape), reversed(wanted), strict=False)
    return len(shape) <= len(wanted) and all(mine in (1, other) for mine, other in pairs)
