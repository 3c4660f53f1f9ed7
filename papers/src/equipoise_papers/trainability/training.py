"""Train a network of the benchmark at every rate of a grid."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Literal

import torch

from equipoise.training import cross_entropy
from equipoise_papers.devices import moved, training_device
from equipoise_papers.stacked.train import train_many
from equipoise_papers.sweeps.cell import Cell, Excerpt, Work
from equipoise_papers.trainability.build import build
from equipoise_papers.trainability.space import Network
from equipoise_papers.trainability.tasks import task

OptimizerName = Literal["sgd", "adamw"]
RATES: dict[OptimizerName, tuple[float, ...]] = {
    "sgd": (1e-5, 1e-4, 1e-3, 3e-3, 1e-2, 3e-2, 1e-1, 3e-1, 1.0),
    "adamw": (3e-5, 1e-4, 3e-4, 1e-3, 3e-3, 1e-2, 3e-2, 1e-1),
}
_OPTIMIZERS: dict[OptimizerName, Callable[..., torch.optim.Optimizer]] = {
    "sgd": partial(torch.optim.SGD, momentum=0.9),
    "adamw": torch.optim.AdamW,
}
# Losses are kept as means over this many equal parts of a training.
PARTS = 10
# Parts at the end whose mean is the loss that was reached.
LAST = 2


@dataclass(frozen=True, slots=True)
class Curve:
    """One training.

    Args:
        rate: Its learning rate.
        losses: Mean loss of every tenth of the steps; fewer if it diverged.
    """

    rate: float
    losses: tuple[float, ...]

    @property
    def reached(self) -> float:
        """Mean loss of the last fifth of the steps; infinite if it diverged."""
        return statistics.fmean(self.losses[-LAST:]) if len(self.losses) == PARTS else math.inf


@dataclass(frozen=True, slots=True)
class Trained:
    """A network after training at every rate.

    Args:
        curves: One per rate.
        chance: Loss of the best constant prediction.
    """

    curves: tuple[Curve, ...]
    chance: float

    @property
    def best(self) -> Curve:
        """The training with the lowest loss."""
        return min(self.curves, key=lambda curve: (curve.reached, curve.rate))


@dataclass(frozen=True, slots=True)
class Training(Cell[Trained]):
    """One network, trained at every rate of the optimiser's grid on the same batches.

    Args:
        network: Which.
        optimizer: ``sgd``, with momentum 0.9, or ``adamw``.
        steps: Steps of each training.
    """

    network: Network
    optimizer: OptimizerName
    steps: int

    def runs_on(self) -> torch.device:
        """Where to train: on the CPU without ``--device``."""
        return training_device()

    def excerpt(self, steps: int) -> Excerpt:
        """The first steps of all rates, ten times as many: the record has ten parts."""
        return Excerpt(replace(self, steps=PARTS * steps), self.steps // PARTS, 1)

    def work(self) -> Work:
        """Steps at all rates: the blocks' calls and multiplications."""
        rates = len(RATES[self.optimizer])
        return Work(self.steps * self.network.depth, self.steps * rates * self.network.work)

    def run(self) -> Trained:
        """Train."""
        return train(
            self.network, self.optimizer, RATES[self.optimizer], self.steps, self.runs_on()
        )


def train(
    network: Network,
    optimizer: OptimizerName,
    rates: Sequence[float],
    steps: int,
    device: torch.device,
) -> Trained:
    """Train one network at several rates, on the same batches."""
    source = task(network)
    models = [build(network, source).to(device) for _ in rates]
    batches = (
        (x.expand(len(rates), *x.shape), y.expand(len(rates), *y.shape))
        for x, y in source.batches(network.batch_size, steps, network.seed)
    )
    histories = train_many(
        models, moved(batches, device), cross_entropy, _OPTIMIZERS[optimizer], tuple(rates)
    )
    curves = tuple(
        Curve(rate, _parts(history.losses, steps))
        for rate, history in zip(rates, histories, strict=True)
    )
    return Trained(curves, source.chance_loss)


def _parts(losses: tuple[float, ...], steps: int) -> tuple[float, ...]:
    """Means over tenths of a training, of those that were finished and finite."""
    length = steps // PARTS
    means = []
    for start in range(0, length * PARTS, length):
        part = losses[start : start + length]
        if len(part) < length or not all(map(math.isfinite, part)):
            break
        means.append(float(f"{statistics.fmean(part):.4g}"))
    return tuple(means)
