"""How a model takes a batch, and how a hook finds the input of a module."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn


def run_on_batch(model: nn.Module, batch: Any) -> Any:
    """Run a model on a batch.

    Args:
        model: Any module.
        batch: A mapping is passed as keywords; of a tuple or list, the first element is the
            input; anything else is the input itself.

    Examples:
        >>> import torch
        >>> run_on_batch(nn.Identity(), (torch.ones(1), torch.zeros(1)))
        tensor([1.])
    """
    if isinstance(batch, Mapping):
        return model(**batch)
    return model(batch[0] if isinstance(batch, tuple | list) else batch)


def first_tensor(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor | None:
    """The input of a module call, given by position or by keyword."""
    return next((v for v in (*args, *kwargs.values()) if isinstance(v, Tensor)), None)
