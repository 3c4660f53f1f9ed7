"""Pause hooks that gather statistics from training while a probe runs the model.

A preconditioner, for one, counts the rows of every pass that ends in a gradient. Such a hook is an
object, or a method of one, with a method ``while_probed()`` that returns a context manager, inside
which it ignores all passes. Hooks without that method, such as those that are part of the model,
run in probes as well.
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
    """Pause a model's observers, and others that are no hooks of it, inside the block.

    Args:
        model: Its hooks with ``while_probed()`` are paused.
        others: More context managers to enter, each given as a function that makes one.

    Examples:
        >>> import torch
        >>> class Count:
        ...     calls, paused = 0, False
        ...     def __call__(self, *_):
        ...         self.calls += not self.paused
        ...     @contextmanager
        ...     def while_probed(self):
        ...         self.paused = True
        ...         yield
        ...         self.paused = False
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
    pauses = (getattr(owner, "while_probed", None) for owner in owners.values())
    return [pause for pause in pauses if callable(pause)]
