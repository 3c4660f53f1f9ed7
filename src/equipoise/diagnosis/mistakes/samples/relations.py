"""Batches whose rows are related to each other, as the nodes of a graph are."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from equipoise.diagnosis.mistakes.traced_pass import TracedPass
from equipoise.instrument.recording.graph import Given


def holds_pairs(traced: TracedPass, given: Sequence[Tensor], count: int) -> bool:
    """Whether there is a number for each pair of rows, or a list of pairs, as of one graph.

    Args:
        traced: A pass.
        given: Tensors of its batch.
        count: How many rows there are.
    """
    if any(tuple(x.shape) == (count, count) for x in given):
        return True
    constants = (x for node in traced.graph.nodes for x in node.inputs if isinstance(x, Given))
    held = [
        *traced.model.buffers(),
        *(v for m in traced.model.modules() for v in vars(m).values()),
        *(x.value for x in constants if x.kind == "data"),
    ]
    return any(
        isinstance(x, Tensor) and (tuple(x.shape[-2:]) == (count, count) or _are_edges(x, count))
        for x in held
    )


def _are_edges(x: Tensor, count: int) -> bool:
    """Whether it has two rows of many numbers of samples."""
    if x.dtype not in (torch.int32, torch.int64) or x.ndim != 2 or len(x) != 2:
        return False
    return x.shape[1] >= count and bool((x >= 0).all()) and int(x.max()) == count - 1
