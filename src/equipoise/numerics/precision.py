"""Compute in float32 or better, whatever the type of the input and autocast."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor


def at_least_float32(x: Tensor) -> Tensor:
    """Widen float16 and bfloat16 to float32; keep float32 and float64.

    Raises:
        TypeError: If the values are not real floating-point numbers.

    Examples:
        >>> at_least_float32(torch.ones(1, dtype=torch.bfloat16)).dtype
        torch.float32
    """
    if not x.is_floating_point():
        raise TypeError(f"need real floating-point values, got {x.dtype}; convert with .float().")
    return x.to(torch.promote_types(x.dtype, torch.float32))


def without_autocast(device: torch.device) -> AbstractContextManager[object]:
    """Switch autocast off, so that widened tensors are not multiplied in half precision."""
    if torch.amp.is_autocast_available(device.type):
        return torch.autocast(device.type, enabled=False)
    return nullcontext()
