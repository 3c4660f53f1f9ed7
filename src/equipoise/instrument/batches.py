"""What a batch is: a pair of tensors, or any nest of tensors that a loader yields."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import is_dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree


def plain(batch: Any) -> Any:
    """Make plain dictionaries of mappings, such as a tokenizer's, and tensors of arrays.

    Examples:
        >>> from collections import UserDict
        >>> plain(UserDict(a=[1, 2]))
        {'a': [1, 2]}
    """
    if isinstance(batch, Mapping):
        return {key: plain(value) for key, value in batch.items()}
    if isinstance(batch, tuple) and hasattr(batch, "_fields"):
        return type(batch)(*map(plain, batch))
    if isinstance(batch, tuple | list):
        return type(batch)(map(plain, batch)) if type(batch) in (tuple, list) else batch
    if type(batch).__module__ == "numpy" and bool(getattr(batch, "ndim", 0)) and _is_number(batch):
        backwards = any(stride < 0 for stride in batch.strides)  # as of array[::-1]
        return torch.as_tensor(batch.copy() if backwards else batch)
    return batch


def _is_number(array: Any) -> bool:
    return array.dtype.kind in "biufc"


def fields(batch: Any) -> dict[str, Any] | None:
    """The parts of a batch that have names; None if they have none.

    Examples:
        >>> fields({"image": 1}), fields((1, 2))
        ({'image': 1}, None)
    """
    if isinstance(batch, Mapping):
        return dict(batch)
    if isinstance(batch, tuple) and hasattr(batch, "_fields"):
        return dict(zip(batch._fields, batch, strict=True))
    if is_dataclass(batch) and not isinstance(batch, type):
        return dict(vars(batch)) if hasattr(batch, "__dict__") else None
    if isinstance(batch, Tensor | tuple | list):
        return None
    keys = getattr(batch, "keys", None)  # graphs of PyTorch Geometric
    if callable(keys) and hasattr(batch, "__getitem__"):
        # Some come from a set, in another order in every process.
        return {str(key): batch[key] for key in sorted(keys(), key=str)}
    return None


def tensors(batch: Any) -> list[Tensor]:
    """Every tensor in a batch, in order."""
    found = [leaf for leaf in pytree.tree_leaves(batch) if isinstance(leaf, Tensor)]
    if not found and (named := fields(batch)) is not None:
        found = [leaf for leaf in pytree.tree_leaves(named) if isinstance(leaf, Tensor)]
    return found


def oddity(tensor: Tensor) -> str:
    """In which way a tensor is not one of plain real numbers, and what makes it one; or nothing.

    Examples:
        >>> oddity(torch.ones(2).to_sparse()), oddity(torch.ones(2))
        ('sparse (take .to_dense())', '')
    """
    if tensor.is_meta:
        return "on the meta device, without numbers (load it on a real device)"
    if tensor.is_nested:
        return "nested (take torch.nested.to_padded_tensor(x, 0.0))"
    if tensor.is_quantized:
        return "quantised (take .dequantize())"
    if tensor.layout is not torch.strided:
        return "sparse (take .to_dense())"
    return "complex (take .real, .abs() or torch.view_as_real(x))" if tensor.is_complex() else ""


def is_pair(batch: Any) -> bool:
    """Whether a batch is an (input, target) pair of tensors."""
    return (
        isinstance(batch, tuple) and len(batch) == 2 and all(isinstance(x, Tensor) for x in batch)
    )


def samples(batch: Any) -> int:
    """How many samples a batch holds; 0 if it has no tensors.

    Of a detector's batch, a list of images beside a list of dictionaries, the images are counted;
    a graph that knows how many it was joined from says so, and any other has as many as nodes.

    Examples:
        >>> samples((torch.ones(8, 3), torch.ones(8)))
        8
        >>> samples(([torch.ones(3, 5), torch.ones(3, 7)], [{"boxes": torch.ones(4)}, {}]))
        2
    """
    for name in ("num_graphs", "num_nodes"):
        if isinstance(found := getattr(batch, name, None), int):
            return found
    if isinstance(batch, tuple | list) and len(batch) == 2:
        first, second = batch
        if _is_listed(first, Tensor) and _is_listed(second, Mapping) and len(first) == len(second):
            return len(first)
    return next((len(tensor) for tensor in tensors(batch) if tensor.ndim), 0)


def rows(batch: Any) -> tuple[int, ...]:
    """How many samples it holds, and how many nodes, if they are graphs that were joined."""
    nodes = getattr(batch, "num_nodes", None)
    return (samples(batch), nodes) if isinstance(nodes, int) else (samples(batch),)


def _is_listed(values: Any, kind: type) -> bool:
    return isinstance(values, tuple | list) and all(isinstance(value, kind) for value in values)


def mapped(change: Callable[[Tensor], Tensor], batch: Any) -> Any:
    """Change every tensor of a batch."""
    return pytree.tree_map_only(Tensor, change, batch)


def moved(batch: Any, device: torch.device) -> Any:
    """Move a batch to a device."""

    def move(leaf: Any) -> Any:
        to = getattr(leaf, "to", None)
        return to(device) if callable(to) else leaf

    return pytree.tree_map(move, batch)


def cast(batch: Any, dtype: torch.dtype) -> Any:
    """Give every real floating-point tensor of a batch a type."""
    return mapped(lambda x: x.to(dtype) if x.is_floating_point() else x, batch)


def shape_of(tensor: Tensor) -> str:
    """A tensor's shape in words; one that is nested may have none."""
    nested = tensor.is_nested and tensor.layout is torch.strided
    return f"[{tensor.size(0)}, …]" if nested else str(list(tensor.shape))


def shapes(batch: Any) -> str:
    """The shapes of a batch's tensors in words, of the first four at most.

    Examples:
        >>> shapes((torch.ones(8, 3), torch.ones(8)))
        '[8, 3] and [8]'
    """
    listed = [shape_of(tensor) for tensor in tensors(batch)]
    more = len(listed) - 4
    if more > 0:
        return ", ".join(listed[:4]) + f" and {more} more"
    return (
        " and ".join([", ".join(listed[:-1]), listed[-1]]) if len(listed) > 1 else "".join(listed)
    )
