"""Copies of models, also of those that keep tensors of a graph, and what they start with."""

from __future__ import annotations

import copy
from typing import Any

from torch import Tensor, nn

from equipoise.instrument.saved_objects import OF_EVERY_MODULE, reachable

# Types of what a module notes of itself.
_FLAGS = (bool, int, float, type(None))


def copied(model: nn.Module, memo: dict[int, Any] | None = None) -> nn.Module:
    """Copy a model as ``copy.deepcopy`` does, with their values in the place of computed tensors.

    ``deepcopy`` refuses what was computed from weights: the weight that
    ``torch.nn.utils.weight_norm`` computes anew in every pass, or a loss that the last one left.

    Args:
        model: Any module.
        memo: What stands in the copy for objects, by their id, as ``deepcopy`` takes it.

    Examples:
        >>> layer = nn.Linear(2, 1)
        >>> layer.last = layer.weight.sum()
        >>> copied(layer).last.requires_grad
        False
    """
    memo = {} if memo is None else memo
    for _, value in reachable([("model", model)], set(memo)):
        if isinstance(value, Tensor) and not value.is_leaf:
            memo[id(value)] = value.detach().clone()
    return copy.deepcopy(model, memo)


def take_over(model: nn.Module, other: nn.Module) -> None:
    """Let a model have what another one of its kind starts with: weights, buffers, and flags.

    Layers that initialise themselves by their first batch, as those of NODE, may note in an
    attribute that they have; with new weights they are to do so again.

    Examples:
        >>> model, other = nn.Linear(1, 1), nn.Linear(1, 1)
        >>> model.is_initialised, other.is_initialised = True, False
        >>> take_over(model, other)
        >>> model.is_initialised, bool(model.weight == other.weight)
        (False, True)
    """
    model.load_state_dict(other.state_dict())
    others = dict(other.named_modules())
    for name, module in model.named_modules():
        for key, value in vars(others[name]).items() if name in others else ():
            if type(value) in _FLAGS and key not in OF_EVERY_MODULE:
                vars(module)[key] = value
