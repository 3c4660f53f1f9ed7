"""Weights that are split over processes: the transformation acts on the rows that are here.

Weight and bias are split alike by rows (output units), the maps act on columns, so each shard
transforms itself without communication.
"""

from __future__ import annotations

from torch import Tensor, nn


def is_sharded(tensor: Tensor) -> bool:
    """Whether the tensor is a ``DTensor`` (FSDP2, tensor parallelism)."""
    # The type is looked at first because asking a tensor for an attribute it lacks is slow.
    return type(tensor) not in (Tensor, nn.Parameter) and hasattr(tensor, "_local_tensor")


def local(tensor: Tensor) -> Tensor:
    """The rows that this process holds, sharing memory."""
    # Only a DTensor gets here, and Tensor does not declare its attribute.
    here: Tensor = tensor._local_tensor if is_sharded(tensor) else tensor  # type: ignore[attr-defined]
    return here


def split_by_columns(tensor: Tensor) -> bool:
    """Whether a process lacks some columns of its rows."""
    if not is_sharded(tensor):
        return False
    return any(
        not (placement.is_replicate() or placement.is_shard(0))
        for placement in tensor.placements  # type: ignore[attr-defined]
    )
