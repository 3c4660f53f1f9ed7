"""Which layers of a model pool second moments, and which matrices they work on."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from equipoise.pooling.heads.base import MatrixHead, PoolingHead
from equipoise.pooling.heads.compact import CompactBilinearPool
from equipoise.pooling.matrices import bilinear
from equipoise.pooling.run.direction import LeadingDirection, leading_direction
from equipoise.pooling.run.inputs import as_batch, batch_mask
from equipoise.pooling.run.layer import RUN

Layer = PoolingHead | RUN

# From the mean, two steps of power iteration converge on rectified features.
_STEPS = 2


@dataclass(frozen=True, slots=True, eq=False)
class Call:
    """One call of a layer.

    Args:
        args: What it was called with.
        features: Rows ``[B, N, D]`` that are pooled, after reduction and centring.
        mask: Valid positions, or None.
        output: What it returned, with its graph.
    """

    args: tuple[Tensor, ...]
    features: Tensor
    mask: Tensor | None
    output: Tensor


def pooling_layers(model: nn.Module) -> dict[str, Layer]:
    """Heads, and RUN layers outside of heads, by name in the model's order."""
    inside = {
        id(part)
        for head in model.modules()
        if isinstance(head, PoolingHead)
        for part in head.modules()
        if part is not head
    }
    return {
        name or type(module).__name__: module
        for name, module in model.named_modules()
        if isinstance(module, PoolingHead | RUN) and id(module) not in inside
    }


@contextmanager
def recorded_calls(layers: Sequence[Layer]) -> Iterator[dict[Layer, list[Call]]]:
    """Inside the block, record every call of the layers."""
    found: dict[Layer, list[Call]] = {layer: [] for layer in layers}
    rows: dict[Layer, tuple[Tensor, Tensor | None]] = {}
    handles = []
    for layer in layers:
        if isinstance(layer, PoolingHead):
            # An attribute of the instance hides the method of its class.
            layer.__dict__["pool"] = _keeping_rows(layer, rows)
        handles.append(layer.register_forward_hook(_recorder(found, rows)))
    try:
        yield found
    finally:
        for handle in handles:
            handle.remove()
        for layer in layers:
            layer.__dict__.pop("pool", None)


def _keeping_rows(
    head: PoolingHead, rows: dict[Layer, tuple[Tensor, Tensor | None]]
) -> Callable[[Tensor, Tensor | None], Tensor]:
    pool = head.pool

    def keep_rows(features: Tensor, mask: Tensor | None) -> Tensor:
        rows[head] = features.detach(), mask
        return pool(features, mask)

    return keep_rows


def _recorder(
    found: dict[Layer, list[Call]], rows: dict[Layer, tuple[Tensor, Tensor | None]]
) -> Callable[[Layer, tuple[Tensor, ...], Tensor], None]:
    def record(layer: Layer, args: tuple[Tensor, ...], output: Tensor) -> None:
        features, mask = rows.pop(layer) if layer in rows else _as_rows(*args)
        found[layer].append(Call(args, features, mask, output))

    return record


def _as_rows(features: Tensor, mask: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
    return as_batch(features.detach()), batch_mask(mask, features)


@torch.no_grad()
def matrices(layer: Layer, features: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor]:
    """The features' second moments, and the matrix that the layer makes of them."""
    before = bilinear(features, mask=mask)
    match layer:
        case MatrixHead():
            return before, layer.matrix(features, mask)
        case CompactBilinearPool():
            run = layer.run
        case RUN():
            run = layer
        case _:
            raise ValueError(f"{type(layer).__name__} has no matrix to measure.")
    if run is None:
        return before, before
    return before, run.bilinear(features, mask)


def direction(layer: Layer, features: Tensor, mask: Tensor | None) -> LeadingDirection:
    """The direction that the layer's own RUN shrinks, or that RUN would shrink from the mean."""
    run = own_run(layer)
    if run is None:
        return leading_direction(features, "mean", num_steps=_STEPS, mask=mask)
    vector, steps = run.start_vector, run.num_steps
    if run.start == "mean":
        fallback = vector if steps else None
        return leading_direction(features, "mean", num_steps=steps, mask=mask, fallback=fallback)
    if vector is None:
        return leading_direction(features, "ones", num_steps=steps, mask=mask)
    return leading_direction(features, vector, num_steps=steps, mask=mask)


def own_run(layer: Layer) -> RUN | None:
    """The layer's RUN, if it has one."""
    if isinstance(layer, RUN):
        return layer
    return next((part for part in layer.modules() if isinstance(part, RUN)), None)
