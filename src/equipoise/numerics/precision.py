"""Compute in float32 or better, whatever the type of the input and autocast."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor


def check_floating(name: str, x: object) -> None:
    """Refuse anything but a dense tensor of real floating-point numbers.

    Raises:
        TypeError: Naming what it is instead, and how to convert it.

    Examples:
        >>> check_floating("maps", torch.ones(2, dtype=torch.int64))
        Traceback (most recent call last):
        TypeError: maps must be floating point; got torch.int64. Use .float().
    """
    if not isinstance(x, Tensor):
        got = type(x).__name__
        raise TypeError(f"{name} must be a tensor; got {got}. Use torch.as_tensor().")
    _check_type(name, x)
    if x.layout is not torch.strided:
        raise TypeError(f"{name} must be dense; got {x.layout}. Use .to_dense().")


def _check_type(name: str, x: Tensor) -> None:
    if not x.is_floating_point():
        raise TypeError(f"{name} must be floating point; got {x.dtype}. Use .float().")


def at_least_float32(x: Tensor) -> Tensor:
    """Widen float16 and bfloat16 to float32; keep float32 and float64.

    Raises:
        TypeError: If the values are not real floating-point numbers.

    Examples:
        >>> at_least_float32(torch.ones(1, dtype=torch.bfloat16)).dtype
        torch.float32
    """
    _check_type("values", x)  # compiled backward passes know no layouts
    return x.to(torch.promote_types(x.dtype, torch.float32))


def widest(device: torch.device) -> torch.dtype:
    """The type of the most digits that a device has: Apple's have no float64.

    Examples:
        >>> widest(torch.device("cpu"))
        torch.float64
    """
    return torch.float32 if device.type == "mps" else torch.float64


def without_autocast(device: torch.device) -> AbstractContextManager[object]:
    """Switch autocast off, so that tensors are multiplied in their own type.

    Where it is off already, nothing is entered, which would take longer than a small operation;
    but a program that is traced may run under autocast later.
    """
    kind = device.type
    if torch.amp.is_autocast_available(kind) and (
        torch.compiler.is_compiling() or torch.is_autocast_enabled(kind)
    ):
        return torch.autocast(kind, enabled=False)
    return nullcontext()
