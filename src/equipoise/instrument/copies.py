"""Copies of models, also of those that keep tensors of a graph."""

from __future__ import annotations

import copy
from typing import Any

from torch import Tensor, nn

from equipoise.instrument.saved_objects import reachable


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
