"""Mean, variance and dead share of the inputs of layers."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from equipoise.instrument import modules
from equipoise.instrument.forward import first_tensor, run_on_batch
from equipoise.instrument.kept_batches import apart
from equipoise.instrument.snapshot import untouched
from equipoise.numerics.options import named_options
from equipoise.numerics.precision import widest


@dataclass(frozen=True, slots=True)
class LayerActivations:
    """Moments of one layer's input on one batch.

    Args:
        layer: Name of the layer in the model.
        kind: Its class.
        rows: Samples, times positions for feature maps.
        features: Input features, or channels.
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


@named_options
def activations(
    model: nn.Module, batch: Any, *, forward: Callable[[nn.Module, Any], Any] | None = None
) -> tuple[LayerActivations, ...]:
    r"""Mean, variance and dead share of every linear and convolutional layer's input.

    With h the layer's input, one row per sample (and position), one column per feature,

    .. math:: \text{mean} = \frac1{NF}\sum_{ij} h_{ij}, \quad
              \text{variance} = \frac1{NF}\sum_{ij} (h_{ij} - \text{mean})^2, \quad
              \text{dead} = \frac1F \#\{j : h_{1j} = \dots = h_{Nj}\} .

    The inputs of a layer show what the activation function before it did, whether that is a
    module or a function. With a single row the dead share is unknown: ``nan``.

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
    layer_names: dict[nn.Module, str] = {}
    shapes: dict[nn.Module, tuple[int, int]] = {}
    moments: list[Tensor] = []

    def hook(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        h = first_tensor(args, kwargs)
        if module in shapes or h is None or not h.is_floating_point() or not h.numel():
            return
        if not h.ndim:
            raise ValueError(
                f"{type(module).__name__} is given a number instead of rows of features. Give a "
                "batch with a dimension of samples."
            )
        h = h.detach() if h.ndim > 1 else h.detach()[None]
        rows, feature = _rows_and_features(module, h)
        shapes[module] = h.numel() // h.shape[feature], h.shape[feature]
        moments.append(_moments(h, rows))

    with ExitStack() as hooks, untouched(model), torch.no_grad():
        for module, name in modules.names(model).items():
            # Reading the weight runs parametrisations, so this must be done in here.
            if modules.is_parametrised(module):
                layer_names[module] = name
                hooks.enter_context(module.register_forward_pre_hook(hook, with_kwargs=True))
        run, given = apart(forward or run_on_batch, batch)
        run(model, given)
    return tuple(
        LayerActivations(layer_names[module], type(module).__name__, *shape, *numbers)
        for (module, shape), numbers in zip(shapes.items(), _numbers(moments), strict=True)
    )


def _rows_and_features(module: nn.Module, h: Tensor) -> tuple[list[int], int]:
    """Dimensions of samples and positions, and the dimension of features."""
    feature = h.ndim - 1
    if isinstance(module, nn.modules.conv._ConvNd):
        feature -= len(module.kernel_size)  # 0 for a single sample
    return [d for d in range(h.ndim) if d != feature], feature


def _moments(h: Tensor, rows: list[int]) -> Tensor:
    """Mean, variance and share of constant features, as one tensor on the device of h."""
    if h.dtype in (torch.float16, torch.bfloat16):
        h = h.float()
    exact = widest(h.device)
    # Two passes over h, because torch.var_mean takes 70 times as long on a CPU.
    rounded = h.mean(rows, keepdim=True)
    deviation = h - rounded
    rest = deviation.mean(rows, keepdim=True).to(exact)
    means = torch.where(rest.isfinite(), rounded.to(exact) + rest, rounded.to(exact))
    within = deviation.square_().mean(rows, keepdim=True).to(exact) - rest.square()
    dead = (h.amax(rows) == h.amin(rows)).to(exact).mean()
    if h.numel() == means.numel():
        dead = torch.full_like(dead, torch.nan)  # a single row
    return torch.stack([means.mean(), within.mean() + means.var(correction=0), dead])


def _numbers(moments: list[Tensor]) -> list[list[float]]:
    """Read all tensors with one transfer; layers may be on several devices."""
    if not moments:
        return []
    found: list[list[float]] = torch.stack([m.to(moments[0].device) for m in moments]).tolist()
    return found
