"""Calls of chosen modules and autograd functions, seen from outside."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from threading import RLock
from typing import Any

import torch
from torch import nn

# Classes of modules, and autograd functions, whose calls are recorded as one operation. Subclasses
# are not: they may compute something else.
OPAQUE: set[type] = set()
_TURN = RLock()

# Runs a forward pass: of a class, for a module or none, with these arguments.
Around = Callable[
    [type, nn.Module | None, Callable[..., Any], tuple[Any, ...], dict[str, Any]], Any
]


@contextmanager
def around_opaque_calls(model: nn.Module, around: Around) -> Iterator[None]:
    """Let ``around`` run the forward passes of opaque modules and functions inside the block.

    Threads take turns, as the forward pass of a function is replaced for all of them.
    """
    with ExitStack() as stack:
        if OPAQUE:
            stack.enter_context(_TURN)
        for module in model.modules():
            if type(module) in OPAQUE:
                stack.enter_context(_replaced_forward(module, _of_module(module, around)))
        for kind in tuple(OPAQUE):
            if issubclass(kind, torch.autograd.Function):
                forward = staticmethod(_of_function(kind, around))
                stack.enter_context(_replaced_forward(kind, forward))
        yield


def _of_module(module: nn.Module, around: Around) -> Callable[..., Any]:
    original = module.forward

    def forward(*arguments: Any, **keywords: Any) -> Any:
        return around(type(module), module, original, arguments, keywords)

    return forward


def _of_function(kind: type[torch.autograd.Function], around: Around) -> Callable[..., Any]:
    original = kind.forward

    def forward(*arguments: Any) -> Any:
        # The context comes first, unless the function has a `setup_context`.
        own = [a for a in arguments[:1] if isinstance(a, torch._C._FunctionBase)]
        if own and getattr(own[0], "_forward_cls", kind) is not kind:  # of a subclass
            return original(*arguments)
        return around(kind, None, partial(original, *own), arguments[len(own) :], {})

    return forward


@contextmanager
def _replaced_forward(owner: Any, forward: Any) -> Iterator[None]:
    before = vars(owner).get("forward")
    owner.forward = forward
    try:
        yield
    finally:
        if before is None:
            del owner.forward
        else:
            owner.forward = before
