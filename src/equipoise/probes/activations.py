"""Moments of what each layer's weights are fed with: a few numbers, no histograms."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from equipoise.instrument import modules
from equipoise.instrument.snapshot import untouched


@dataclass(frozen=True, slots=True)
class LayerActivations:
    """What one layer's weights were fed with on one batch.

    Args:
        layer: Name of the layer in the model.
        kind: Its class.
        rows: Samples, times positions for feature maps.
        features: Inputs of the layer, or channels of its input.
        mean: Over all entries.
        variance: Over all entries, biased.
        dead: Share of the features that have the same value in every row.
    """

    layer: str
    kind: str
    rows: int
    features: int
    mean: float
    variance: float
    dead: float


def activations(
    model: nn.Module, batch: Any, *, forward: Callable[[nn.Module, Any], Any] | None = None
) -> tuple[LayerActivations, ...]:
    r"""Mean, variance and dead share of every linear and convolutional layer's input.

    With h the layer's input, one row per sample (and position), one column per feature,

    .. math:: \text{mean} = \frac1{NF}\sum_{ij} h_{ij}, \quad
              \text{variance} = \frac1{NF}\sum_{ij} (h_{ij} - \text{mean})^2, \quad
              \text{dead} = \frac1F \#\{j : h_{1j} = \dots = h_{Nj}\} .

    Inputs of the next layer show what an activation function did, whether it is a module or a
    function. Of a single row it is unknown what is dead: ``nan``.

    Args:
        model: Any module; it runs once, in the mode it is in, and is left bit-identical.
        batch: What the user's loader yields.
        forward: ``forward(model, batch)`` runs the model; by default the model is called with
            the batch, with its first element if it is a tuple or list, or with keywords if it
            is a mapping.

    Returns:
        One record per layer, in order of execution; a layer that runs more than once is
        measured at its first call.

    Examples:
        >>> model = nn.Sequential(nn.Linear(2, 2), nn.ReLU(), nn.Linear(2, 1))
        >>> _ = model[0].weight.data.copy_(torch.tensor([[1.0, 0.0], [0.0, -1.0]]))
        >>> _ = model[0].bias.data.zero_()
        >>> _, second = activations(model, torch.tensor([[1.0, 1.0], [3.0, 2.0]]))
        >>> second.mean, second.variance, second.dead  # of [[1, 0], [3, 0]]
        (1.0, 1.5, 0.5)

    References:
        [santurkar2018], Figures 1 and 2.
    """
    watched: dict[nn.Module, str] = {}
    shapes: dict[nn.Module, tuple[int, int]] = {}
    numbers: list[Tensor] = []

    def hook(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        h = modules.first_tensor(args, kwargs)
        if module in shapes or h is None or not h.is_floating_point() or not h.numel():
            return
        h = h.detach() if h.ndim > 1 else h.detach()[None]
        rows, feature = _rows_and_features(module, h)
        shapes[module] = h.numel() // h.shape[feature], h.shape[feature]
        numbers.append(_moments(h, rows))

    handles: list[RemovableHandle] = []
    try:
        with untouched(model), torch.no_grad():
            for module, name in modules.names(model).items():
                if modules.is_parametrised(module):  # reads the weight: a parametrisation runs
                    watched[module] = name
                    handles.append(module.register_forward_pre_hook(hook, with_kwargs=True))
            (forward or _call)(model, batch)
    finally:
        for handle in handles:
            handle.remove()
    cases = zip(shapes.items(), _fetched(numbers), strict=True)
    return tuple(
        LayerActivations(watched[module], type(module).__name__, *shape, *moments)
        for (module, shape), moments in cases
    )


def _call(model: nn.Module, batch: Any) -> Any:
    if isinstance(batch, Mapping):
        return model(**batch)
    return model(batch[0] if isinstance(batch, tuple | list) else batch)


def _rows_and_features(module: nn.Module, h: Tensor) -> tuple[list[int], int]:
    """Dimensions of samples and positions, and the one of features."""
    feature = h.ndim - 1
    if isinstance(module, nn.modules.conv._ConvNd):
        feature -= len(module.kernel_size)  # 0 for a single sample
    return [d for d in range(h.ndim) if d != feature], feature


def _moments(h: Tensor, rows: list[int]) -> Tensor:
    """Mean, variance, and share of constant features, as one tensor that stays on the device."""
    if h.dtype in (torch.float16, torch.bfloat16):
        h = h.float()
    exact = torch.float32 if h.device.type == "mps" else torch.float64
    # Two passes over h, because torch.var_mean takes 70 times as long on a CPU.
    rounded = h.mean(rows, keepdim=True)
    away = h - rounded
    rest = away.mean(rows, keepdim=True).to(exact)
    means = torch.where(rest.isfinite(), rounded.to(exact) + rest, rounded.to(exact))
    within = away.square_().mean(rows, keepdim=True).to(exact) - rest.square()
    dead = (h.amax(rows) == h.amin(rows)).to(exact).mean()
    if h.numel() == means.numel():
        dead = torch.full_like(dead, torch.nan)  # nothing can be said of a single row
    return torch.stack([means.mean(), within.mean() + means.var(correction=0), dead])


def _fetched(numbers: list[Tensor]) -> list[list[float]]:
    """All with one transfer; layers may live on several devices."""
    if not numbers:
        return []
    found: list[list[float]] = torch.stack([n.to(numbers[0].device) for n in numbers]).tolist()
    return found
