"""When a stack of models trains faster than one model after the other.

What a stack saves is the time between operations, so it gains where operations are small and
models many. Per core, with 16 networks, the gain fell from 4 to 6 at 20 thousand multiplications
per layer and model to 2 or 3 at 200 thousand, 1.2 to 2 at a million and 0.85 to 1.4 at 3 million,
the less of it the busier the machine, for dense layers and convolutions alike; convolutions of 30
million are slower in groups. Four networks gain 1.6 at 70 thousand and nothing at a million, two
gain nothing (``benchmarks/stacked_training.py``).
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.utils.flop_counter import FlopCounterMode

from equipoise_papers.big.random_states import forked
from equipoise_papers.stacked.settings import settings_put_back

# Multiplications per layer and model, for every model up to 16 of them.
_LIMIT, _MANY, _FEWEST = 100_000, 16, 3
# An accelerator's operations are about a hundred times as fast, and starting one takes as long:
# this follows from the CPU's limit and was not measured.
_ACCELERATION = 100


def worthwhile(models: Sequence[nn.Module], inputs: Tensor) -> bool:
    """Whether a stack is expected to be faster: at least 3 models, of small layers.

    Small are layers whose multiplications are up to 100,000 times the number of models, which
    counts up to 16; on accelerators 100 times as many. Only shapes and the kind of device enter,
    so that the same training is computed in the same way on a busy machine.

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
    """Mean over a model's weight matrices and filters, in one forward pass.

    Statistics, plain attributes, random states and inputs are left as they are.

    Examples:
        >>> net = nn.Sequential(nn.Linear(10, 20), nn.ReLU(), nn.Linear(20, 10))
        >>> multiplications_per_layer(net, torch.zeros(8, 10))  # 8 · 10 · 20, twice
        1600.0
    """
    copies = {name: buffer.clone() for name, buffer in model.named_buffers()}
    counter = FlopCounterMode(display=False)
    with torch.no_grad(), forked(inputs.device), settings_put_back(model), counter:
        # A first layer may work in place.
        functional_call(model, copies, (inputs.clone(),))
    layers = sum(parameter.ndim > 1 for parameter in model.parameters())
    return counter.get_total_flops() / 2 / max(layers, 1)
