"""Circular padding as one choice of elements for each axis, while a model is traced."""

from __future__ import annotations

from typing import Any

import torch
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode


class CircularPadding(TorchFunctionMode):
    """Circular padding by indices; PyTorch writes it into an empty tensor piece by piece."""

    def __torch_function__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        if func is not F.pad:
            return func(*args, **kwargs)
        named = {**dict(zip(("input", "pad", "mode", "value"), args, strict=False)), **kwargs}
        x, pad = named["input"], list(named["pad"])
        sizes = reversed(x.shape[x.ndim - len(pad) // 2 :])
        pairs = zip(pad[::2], pad[1::2], sizes, strict=False)
        fits = all(min(a, b) >= 0 and max(a, b) <= size for a, b, size in pairs)
        if named.get("mode") != "circular" or not fits:
            return func(*args, **kwargs)
        for i, (before, after) in enumerate(zip(pad[::2], pad[1::2], strict=True)):
            axis = x.ndim - 1 - i
            size = x.shape[axis]
            index = torch.arange(-before, size + after, device=x.device) % size
            x = x.index_select(axis, index)
        return x
