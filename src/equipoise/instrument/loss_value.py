"""What a loss has to be: one real number."""

from __future__ import annotations

import torch
from torch import Tensor

from equipoise.instrument.batches import oddity

_TYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


class UnfitLossError(ValueError):
    """A loss is not one real number."""


def checked_loss(loss: object) -> Tensor:
    """Refuse anything but one real number, which need not be finite.

    Args:
        loss: What the user's function returned.

    Raises:
        UnfitLossError: If it is anything else.

    Examples:
        >>> checked_loss(torch.tensor([0.5]))
        tensor([0.5000])
        >>> checked_loss(torch.tensor(0.5 + 1j))
        Traceback (most recent call last):
        equipoise.instrument.loss_value.UnfitLossError: the loss must be a floating-point tensor...
    """
    got = ""
    if not isinstance(loss, Tensor):
        got = type(loss).__name__
    elif found := oddity(loss):
        got = f"one that is {found}"
    elif loss.dtype not in _TYPES:
        got = f"one of {loss.dtype}"
    if got or not isinstance(loss, Tensor):
        raise UnfitLossError(
            f"the loss must be a floating-point tensor with one number, got {got}."
            + (" Return the tensor itself, without .item()." if isinstance(loss, float) else "")
        )
    if loss.numel() != 1:
        raise UnfitLossError(
            "the loss must be a floating-point tensor with one number, got shape "
            f"{tuple(loss.shape)}. Take its mean or sum."
        )
    return loss
