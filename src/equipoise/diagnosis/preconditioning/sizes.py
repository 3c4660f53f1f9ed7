"""How many inputs layers have, and what their condition numbers cost."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd

from equipoise.instrument.normalisers import is_batch_norm
from equipoise.instrument.random_states import seeded
from equipoise.instrument.snapshot import untouched
from equipoise.instrument.types import LossFunction
from equipoise.preconditioners.bnp.layer import WatchedLayer
from equipoise.preconditioners.bnp.selection import select

Layer = nn.Linear | _ConvNd

# Larger matrices are not decomposed: one of so many entries takes half a second on a CPU.
MOST_ENTRIES = 2**20
# Curvature takes a backward pass per output position and a matrix of that size per sample.
MOST_POSITIONS = 64
# Rows that condition numbers need: several times as many as most layers have columns.
_ROWS = 1024
# Seconds of a decomposition, for each entry times the shorter side; two are made of each matrix.
_OF_AN_ENTRY, _DECOMPOSITIONS = 3e-10, 2
# Training steps' worth of time: float64 takes twice as long; of what all layers share; of one
# unit, beside a backward pass for each of its positions.
_FLOAT64, _SHARED, _OF_ONE_UNIT = 2, 2, 2


@dataclass(frozen=True, slots=True)
class Size:
    """The matrix of inputs of one layer.

    Args:
        samples: Of the batch.
        positions: Rows of each sample.
        columns: Features, with those of a kernel.
    """

    samples: int
    positions: int
    columns: int


def single_layers(model: nn.Module) -> list[WatchedLayer]:
    """Layers that the preconditioner would use, but for those whose weights several share."""
    chosen, _ = select(model, include=None, exclude=None, exact=False)
    return [layer for layer in chosen if len(layer.modules) == 1]


def recorded_inputs(
    layers: Sequence[WatchedLayer], run: Callable[[], Any]
) -> dict[str, list[Tensor]]:
    """The inputs of each layer's calls during one run."""
    found: dict[str, list[Tensor]] = {}

    def hook(name: str, module: nn.Module, args: tuple[Any, ...]) -> None:
        if args and isinstance(args[0], Tensor):
            found.setdefault(name, []).append(args[0].detach())

    with ExitStack() as hooks, torch.no_grad():
        for layer in layers:
            before = partial(hook, layer.name)
            hooks.enter_context(layer.modules[0].register_forward_pre_hook(before))
        run()
    return found


def rows_of(layer: Layer, fed: Tensor) -> int:
    """How often a layer's weights are applied to an input."""
    if isinstance(layer, nn.Linear):
        return fed.numel() // max(fed.shape[-1], 1)
    with torch.no_grad():
        one = layer._conv_forward(fed[:1].to("meta"), layer.weight.to("meta"), None)
    return len(fed) * one[0, 0].numel()


def sizes(model: nn.Module, batch: Any, loss: LossFunction) -> list[Size]:
    """The matrices of inputs on a batch, of layers that run once; the model is left as it is."""
    layers = single_layers(model)
    with untouched(model), seeded(0):
        inputs = recorded_inputs(layers, lambda: loss(model, batch))
    found = []
    for watched in layers:
        calls = inputs.get(watched.name, ())
        if len(calls) == 1 and len(calls[0]):
            layer, samples = cast(Layer, watched.modules[0]), len(calls[0])
            columns = layer.weight[0].numel()
            found.append(Size(samples, rows_of(layer, calls[0]) // samples, columns))
    return found


def samples_wanted(found: Sequence[Size]) -> int:
    """Samples with which every layer has enough rows, but for those that are given.

    Examples:
        >>> convolution, head = Size(64, 100, 27), Size(64, 1, 500)
        >>> samples_wanted([convolution, head]), samples_wanted([convolution])
        (1024, 64)
    """
    given = max((one.samples for one in found), default=0)
    return max([given, *(-(-_ROWS // max(one.positions, 1)) for one in found)])


def seconds(
    model: nn.Module, found: Sequence[Size], samples: int, step_seconds: float
) -> tuple[float, float]:
    """Seconds that condition numbers of inputs take, and with them those of the Hessian.

    Args:
        model: The model.
        found: Sizes on a batch.
        samples: With which condition numbers are measured, at least those of the batch.
        step_seconds: What a training step on the batch takes.

    Examples:
        >>> model, found = nn.Linear(100, 1), [Size(64, 1, 100)]
        >>> [round(price, 2) for price in seconds(model, found, 1024, step_seconds=0.01)]
        [0.65, 1.61]
    """
    shared = any(is_batch_norm(module) and module.training for module in model.modules())
    decompositions, passes = 0.0, 0
    for one in found:
        rows = max(samples, one.samples) * one.positions
        if rows * one.columns > MOST_ENTRIES:
            continue
        each = rows * one.columns * min(rows, one.columns)
        decompositions += _DECOMPOSITIONS * _OF_AN_ENTRY * each
        if one.positions <= MOST_POSITIONS:
            passes += _OF_ONE_UNIT + (0 if shared else one.positions)
    given = max((one.samples for one in found), default=1)
    step = _FLOAT64 * step_seconds * max(1.0, samples / given)
    inputs = decompositions + _SHARED * step
    return inputs, inputs + decompositions + passes * step
