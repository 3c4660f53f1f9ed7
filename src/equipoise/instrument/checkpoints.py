"""Passes through activation checkpoints that every derivative can be taken of.

PyTorch's reentrant checkpoint (``use_reentrant=True``) runs a backward pass inside another one and
refuses :func:`torch.autograd.grad`. Its other kind computes the same and refuses nothing.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

_MODULE = "torch.utils.checkpoint"


@contextlib.contextmanager
def differentiable_checkpoints() -> Iterator[None]:
    """Inside the block reentrant checkpoints run as PyTorch's other kind.

    Where no input has a gradient, a reentrant checkpoint cuts the graph, and its parameters have
    none either; so it does here.

    Examples:
        >>> from torch.utils.checkpoint import checkpoint
        >>> x = torch.tensor(3.0, requires_grad=True)
        >>> with differentiable_checkpoints():
        ...     y = checkpoint(torch.square, x, use_reentrant=True)
        >>> torch.autograd.grad(y, x)
        (tensor(6.),)
    """
    kind = getattr(sys.modules.get(_MODULE), "CheckpointFunction", None)
    if kind is None or "apply" in vars(kind):  # not loaded, or inside such a block
        yield
        return
    kind.apply = _apply
    try:
        yield
    finally:
        del kind.apply


def _apply(function: Callable[..., Any], preserve: bool, *inputs: Any) -> Any:
    checkpoint = sys.modules[_MODULE].checkpoint
    if not any(isinstance(value, Tensor) and value.requires_grad for value in inputs):
        with torch.no_grad():
            return function(*inputs)
    return checkpoint(function, *inputs, use_reentrant=False, preserve_rng_state=preserve)
