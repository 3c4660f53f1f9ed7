"""Hooks of others that gather statistics from training, and must not see a probe's passes.

A preconditioner, for one, counts the rows of every pass that ends in a gradient. Such a hook is
asked to look away: it is an object, or a method of one, with ``while_probed()``, which returns a
context manager. Hooks without it, among them those that are part of the function, run as ever.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any

from torch import nn

Pause = Callable[[], AbstractContextManager[Any]]

_HOOKS = ("_forward_pre_hooks", "_forward_hooks", "_backward_pre_hooks", "_backward_hooks")


@contextmanager
def observers_paused(model: nn.Module, others: Iterable[Pause] = ()) -> Iterator[None]:
    """Let a model's observers, and others that hooks do not show, look away inside the block.

    Args:
        model: Whose hooks are asked.
        others: More context managers to enter, each given as a function that makes one.

    Examples:
        >>> import torch
        >>> class Count:
        ...     calls, awake = 0, True
        ...     def __call__(self, *_):
        ...         self.calls += self.awake
        ...     @contextmanager
        ...     def while_probed(self):
        ...         self.awake = False
        ...         yield
        ...         self.awake = True
        >>> layer, count = nn.ReLU(), Count()
        >>> _ = layer.register_forward_hook(count)
        >>> with observers_paused(layer):
        ...     _ = layer(torch.ones(1))
        >>> _ = layer(torch.ones(1))
        >>> count.calls
        1
    """
    with ExitStack() as stack:
        for pause in (*_pauses(model), *others):
            stack.enter_context(pause())
        yield


def _pauses(model: nn.Module) -> list[Pause]:
    owners: dict[int, Any] = {}
    for module in model.modules():
        for kind in _HOOKS:
            for hook in getattr(module, kind).values():
                owner = getattr(hook, "__self__", hook)
                owners[id(owner)] = owner
    asked = (getattr(owner, "while_probed", None) for owner in owners.values())
    return [pause for pause in asked if callable(pause)]
