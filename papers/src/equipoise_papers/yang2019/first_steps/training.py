"""Sizes of weights and gradients, layer by layer, in the first steps of training."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from equipoise import data, models, theory
from equipoise.instrument import Batch
from equipoise.records import Estimate
from equipoise.training import cross_entropy
from equipoise_papers.devices import moved, training_device
from equipoise_papers.sweeps.cell import Cell, Excerpt, Work

# Decimals of stored logarithms, far finer than the differences between networks.
_DIGITS = 4


@dataclass(frozen=True, slots=True)
class FirstSteps:
    r"""Logarithms of squared norms, ``[steps][depth]`` from input to output.

    Args:
        weights: :math:`\ln(\|W^l\|^2 / N)`, about 0 at first.
        signals: :math:`\ln\|\partial E/\partial h^l\|^2`, of each layer's pre-activations.
        gradients: :math:`\ln\|\partial E/\partial W^l\|^2`.
        losses: Mean loss of the batch on which the gradients were taken.
        rate: Growth of squared gradients per layer in theory, at initialisation.
    """

    weights: tuple[tuple[float, ...], ...]
    signals: tuple[tuple[float, ...], ...]
    gradients: tuple[tuple[float, ...], ...]
    losses: tuple[float, ...]
    rate: Estimate


@dataclass(frozen=True, slots=True)
class ShortTraining(Cell[FirstSteps]):
    """The first steps of one network.

    Args:
        data: Set of images.
        depth: Hidden layers.
        width: Neurons in each.
        batch_size: Samples per step.
        eps: Batch norm's ε.
        rate: Learning rate of plain SGD on the mean loss.
        steps: Numbers of steps after which layers are recorded, rising; the last ends training.
        seed: Seed of weights and data order.
    """

    data: str
    depth: int
    width: int
    batch_size: int
    eps: float
    rate: float
    steps: tuple[int, ...]
    seed: int

    def runs_on(self) -> torch.device:
        """Where to train: on the CPU without ``--device``."""
        return training_device()

    def excerpt(self, steps: int) -> Excerpt:
        """The first steps; every one measures all layers."""
        return Excerpt(replace(self, steps=(steps - 1,)), self.steps[-1] + 1, 1)

    def work(self) -> Work:
        """Steps: the hidden layers' calls and products."""
        calls = (self.steps[-1] + 1) * self.depth
        return Work(calls, calls * self.batch_size * self.width**2)

    def run(self) -> FirstSteps:
        """Train, and record every layer after the given steps."""
        device = self.runs_on()
        images = _images(self.data)
        generator = torch.Generator().manual_seed(self.seed)
        model = network(self, images.inputs[0].numel(), images.classes or 10, generator)
        model = model.to(device)
        batches = images.batches(self.batch_size, self.steps[-1] + 1, generator)
        looks, losses = [], []
        for step, batch in enumerate(moved(batches, device)):
            loss, look = _step(model, batch, self)
            if step in self.steps:
                looks.append(look)
                losses.append(loss)
        weights, signals, gradients = zip(*looks, strict=True)
        rate = theory.explosion_rate("relu", self.batch_size, eps=self.eps)
        return FirstSteps(weights, signals, gradients, tuple(losses), rate)


Quantity = Literal["weights", "signals", "gradients"]
# Networks that differ in their seed alone.
Group = Sequence[tuple[ShortTraining, FirstSteps]]


def profiles(group: Group, quantity: Quantity, step: int) -> NDArray[np.float64]:
    """Logarithms of squared norms after a number of steps, ``[seeds, depth]``."""
    place = group[0][0].steps.index(step)
    return np.array([getattr(record, quantity)[place] for _, record in group])


def network(
    cell: ShortTraining, features: int, classes: int, generator: torch.Generator
) -> nn.Sequential:
    """Build the theory's network, with Gaussian weights of variance 1/fan-in."""
    with torch.random.fork_rng(devices=()):  # PyTorch draws weights, which are replaced below
        model = models.mlp(
            features,
            classes,
            depth=cell.depth,
            width=cell.width,
            norm=partial(nn.BatchNorm1d, eps=cell.eps),
        )
    for layer in model:
        if isinstance(layer, nn.Linear):
            nn.init.normal_(layer.weight, std=layer.in_features**-0.5, generator=generator)
    nn.init.zeros_(model.get_submodule("head").get_parameter("bias"))
    return model


def _step(
    model: nn.Sequential, batch: Batch, cell: ShortTraining
) -> tuple[float, tuple[tuple[float, ...], ...]]:
    """Take one SGD step; return the loss and the three profiles from before the step."""
    layers = [model.get_submodule(f"linear{number}") for number in range(1, cell.depth + 1)]
    weights = [layer.get_parameter("weight") for layer in layers]
    outputs: list[Tensor] = []
    hooks = [layer.register_forward_hook(lambda m, x, h: outputs.append(h)) for layer in layers]
    try:
        loss = cross_entropy(model, batch)
    finally:
        for hook in hooks:
            hook.remove()
    known = set(map(id, weights))
    others = [p for p in model.parameters() if id(p) not in known]
    found = torch.autograd.grad(loss, [*outputs, *weights, *others])
    signals, gradients = found[: cell.depth], found[cell.depth :]
    look = (
        _log_squares(weights, cell.width),
        _log_squares(signals),
        _log_squares(gradients[: cell.depth]),
    )
    with torch.no_grad():
        for parameter, gradient in zip([*weights, *others], gradients, strict=True):
            parameter.sub_(gradient, alpha=cell.rate)
    return float(loss.detach()), look


def _log_squares(tensors: Sequence[Tensor], unit: int = 1) -> tuple[float, ...]:
    # In float32, squares of vanishing gradients would underflow.
    squares = torch.stack([t.detach().double().square().sum() for t in tensors])
    return tuple(round(value, _DIGITS) for value in (squares / unit).log().tolist())


@lru_cache(maxsize=1)
def _images(name: str) -> data.Samples:
    """Training images, cached because all cells of a worker use the same."""
    return data.split(name).train
