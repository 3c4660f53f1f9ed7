"""Passes through activation checkpoints that every derivative can be taken of.

PyTorch's reentrant checkpoint (``use_reentrant=True``) runs a backward pass inside another one and
refuses :func:`torch.autograd.grad`. Its other kind computes the same and refuses nothing.
"""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

_MODULE = "torch.utils.checkpoint"
_LOCK = threading.Lock()
_blocks = 0


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
    if kind is None:  # not loaded
        yield
        return
    _enter(kind)
    try:
        yield
    finally:
        _leave(kind)


def _enter(kind: type) -> None:
    global _blocks
    with _LOCK:
        _blocks += 1
        if _blocks == 1:
            kind.apply = classmethod(_apply)  # type: ignore[attr-defined]


def _leave(kind: type) -> None:
    global _blocks
    with _LOCK:
        _blocks -= 1
        if not _blocks:
            del kind.apply  # type: ignore[attr-defined]


def _apply(cls: type, *arguments: Any) -> Any:
    module = sys.modules[_MODULE]
    if cls is not module.CheckpointFunction:  # a class of the user's that is made from it
        return super(module.CheckpointFunction, cls).apply(*arguments)
    function, preserve, *inputs = arguments
    if not any(isinstance(value, Tensor) and value.requires_grad for value in inputs):
        with torch.no_grad():
            return function(*inputs)
    return module.checkpoint(function, *inputs, use_reentrant=False, preserve_rng_state=preserve)
