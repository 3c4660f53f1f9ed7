"""The maps of one layer applied to its gradients or to its steps, in any type and sharding."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from typing import TypeAlias

import torch
from torch import Tensor
from torch.nn.utils import clip_grads_with_norm_, get_total_norm

from equipoise.preconditioners.sharding import is_sharded, local
from equipoise.preconditioners.transform import Factors, Pair

Map: TypeAlias = Callable[..., Pair]


def mapped(mapping: Map, weight: Tensor, bias: Tensor | None, factors: Factors) -> Pair:
    """New tensors like weight and bias, holding what the map makes of them."""
    if _plain(weight, factors):
        return mapping(weight, bias, factors, inplace=False)
    pair = torch.empty_like(weight), None if bias is None else torch.empty_like(bias)
    _map_wide(mapping, (weight, bias), factors, pair)
    return pair


def map_in_place(mapping: Map, weight: Tensor, bias: Tensor | None, factors: Factors) -> None:
    """Replace weight and bias by what the map makes of them."""
    if _plain(weight, factors):
        mapping(weight, bias, factors, inplace=True)
    else:
        _map_wide(mapping, (weight, bias), factors, (weight, bias))


def _plain(weight: Tensor, factors: Factors) -> bool:
    return weight.dtype is factors.columns.dtype and not is_sharded(weight)


def _map_wide(mapping: Map, source: Pair, factors: Factors, target: Pair) -> None:
    """In the type of the statistics, since G − g μᵀ cancels, and on the rows held here."""
    dtype = factors.columns.dtype
    weight, bias = (None if t is None else local(t).to(dtype) for t in source)
    assert weight is not None
    for kept, new in zip(target, mapping(weight, bias, factors, inplace=False), strict=True):
        if kept is not None and new is not None:
            local(kept).copy_(new)


def exactly(device: torch.device) -> AbstractContextManager[object]:
    """No autocast, in case the optimizer steps inside it."""
    if torch.is_autocast_enabled(device.type):
        return torch.autocast(device.type, enabled=False)
    return nullcontext()


def clip(parameters: Iterable[Tensor], max_norm: float, scale: Tensor | None = None) -> None:
    """Bound the norm of all gradients together, without waiting for the device.

    Args:
        parameters: Those without a gradient are passed over.
        max_norm: The bound.
        scale: Of a gradient scaler, if the gradients still carry it.
    """
    having = [p for p in parameters if p.grad is not None]
    norm = get_total_norm([p.grad for p in having if p.grad is not None])
    clip_grads_with_norm_(having, max_norm, norm if scale is None else norm / scale)
