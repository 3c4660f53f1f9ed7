"""Names of a model's modules, and which of them multiply by weights."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn
from torch.nn.utils import parametrize

from equipoise.instrument.normalisers import is_normaliser


def is_parametrised(module: nn.Module) -> bool:
    """Whether a module multiplies its input by a weight matrix or kernel."""
    weight = _weight(module)
    return (
        not is_normaliser(module)
        and not isinstance(module, nn.Embedding | nn.EmbeddingBag)
        and isinstance(weight, Tensor)
        and weight.ndim >= 2
    )


def _weight(module: nn.Module) -> object:
    """The weight, or the largest tensor that it is computed from."""
    if parametrize.is_parametrized(module, "weight"):
        # Reading the attribute computes it, and moves spectral norm's power iteration on.
        parts = module.get_submodule("parametrizations.weight").parameters()
        return max(parts, key=lambda part: part.ndim, default=None)
    return getattr(module, "weight", None)


def first_tensor(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor | None:
    """The input of a call, given by position or by keyword."""
    return next((v for v in (*args, *kwargs.values()) if isinstance(v, Tensor)), None)


def unwatched(model: nn.Module) -> dict[str, int]:
    """Modules that hold weight matrices which no probe reads, and how many numbers they hold.

    Attention's packed projections and recurrent cells multiply by weights of their own, without
    a linear layer that could be watched.

    Examples:
        >>> unwatched(nn.Sequential(nn.Linear(2, 2), nn.GRU(2, 3)))
        {'1 (GRU)': 45}
    """
    found = {}
    for module, name in names(model).items():
        if is_normaliser(module) or is_parametrised(module):
            continue
        matrices = [p for p in module.parameters(recurse=False) if p.ndim >= 2]
        if matrices and not isinstance(module, nn.Embedding | nn.EmbeddingBag):
            label = f"{name} ({type(module).__name__})"
            found[label] = sum(matrix.numel() for matrix in matrices)
    return found


def names(model: nn.Module) -> dict[nn.Module, str]:
    """Name every module once; the parametrisations inside a layer are no layers."""
    return {
        module: name or type(module).__name__
        for name, module in model.named_modules()
        if "parametrizations" not in name.split(".")
    }
