"""When a stack of models trains faster than one model after the other.

A stack saves the time between operations, so it pays where operations are small and models many.
Per core, with 16 networks, it was 4 to 6 times as fast at 20 thousand multiplications per layer
and model, 2 to 3 times at 200 thousand, 1.2 to 2 times at a million and 0.85 to 1.4 times at 3
million, less on a busy machine, for dense layers and convolutions alike; convolutions of 30
million are slower in groups. Four networks gain a factor of 1.6 at 70 thousand and nothing at a
million, two gain nothing (``papers/benchmarks/stacked_training.py``).
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from equipoise.instrument import untouched
from equipoise_papers.stacked.attributes import attributes_restored

# Multiplications per layer and model, for every model up to 16 of them.
_LIMIT, _MANY, _FEWEST = 100_000, 16, 3
# An accelerator's operations are about a hundred times as fast, and starting one takes as long:
# this follows from the CPU's limit and was not measured.
_ACCELERATION = 100


def worthwhile(models: Sequence[nn.Module], inputs: Tensor) -> bool:
    """Whether a stack is expected to be faster: at least 3 models, of small layers.

    Small are layers with at most 100,000 multiplications times the number of models, of which
    at most 16 count; on accelerators 100 times as many. The answer depends only on shapes and
    the kind of device, so that the same training is computed in the same way on a busy machine.

    Args:
        models: Of one architecture.
        inputs: A batch for each, ``[K, B, ...]``.
    """
    if len(models) < _FEWEST:
        return False
    speed = 1 if inputs.device.type == "cpu" else _ACCELERATION
    limit = _LIMIT * min(len(models), _MANY) * speed
    return multiplications_per_layer(models[0], inputs[0]) <= limit


def multiplications_per_layer(model: nn.Module, inputs: Tensor) -> float:
    """Mean number of multiplications over a model's weight matrices and filters, in one pass.

    Model, random states and inputs are left as they are.

    Examples:
        >>> net = nn.Sequential(nn.Linear(10, 20), nn.ReLU(), nn.Linear(20, 10))
        >>> multiplications_per_layer(net, torch.zeros(8, 10))  # 8 · 10 · 20, twice
        1600.0
    """
    counter = FlopCounterMode(display=False)
    with torch.no_grad(), untouched(model), attributes_restored(model), counter:
        model(inputs.clone())  # a first layer may work in place
    layers = sum(parameter.ndim > 1 for parameter in model.parameters())
    return counter.get_total_flops() / 2 / max(layers, 1)
