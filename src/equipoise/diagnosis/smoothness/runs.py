"""One short training with looks on the way, which leave it as it is bit for bit."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from equipoise.data.source import Source
from equipoise.diagnosis import prepare
from equipoise.diagnosis.smoothness.looks import look
from equipoise.diagnosis.smoothness.record import SmoothnessLook, SmoothnessRun
from equipoise.diagnosis.smoothness.ways import Way
from equipoise.training.loop import train
from equipoise.training.losses import LossFunction

LAST = 0.25
# Looks have a batch of their own, so that training sees the same data with and without them.
_LOOK_SEED = 10_000


@dataclass(frozen=True, slots=True)
class Course:
    """What all runs have in common.

    Args:
        build: Returns a new model.
        source: Where batches come from.
        first: A batch that the model takes.
        loss_fn: ``loss_fn(model, batch)``.
        batch_size: Samples per batch.
        make: Builds the optimiser from parameters and ``lr``.
        steps: Of training.
        at: Steps after which to look.
        multiples: Points of a look, in units of the rate.
    """

    build: Callable[[], nn.Module]
    source: Source
    first: prepare.Batch
    loss_fn: LossFunction
    batch_size: int
    make: Callable[..., torch.optim.Optimizer]
    steps: int
    at: tuple[int, ...]
    multiples: tuple[float, ...]

    def fresh(self, seed: int) -> nn.Module:
        """Build the model under a seed."""
        return prepare.fresh(self.build, self.first, seed)

    def run(self, way: Way, rate: float, seed: int, *, looking: bool) -> SmoothnessRun:
        """Train once, from the weights and on the batches that the seed stands for."""
        model = way.change(self.fresh(seed))
        optimizer = self.make(model.parameters(), lr=rate)
        watch = None
        if looking:
            etas = tuple(rate * multiple for multiple in self.multiples)
            watch = _Watch(model, self.loss_fn, self._held(seed), optimizer, self.at, etas)
        with prepare.seeded(seed):
            if watch is not None:
                watch(0, math.nan)
            history = train(model, self._batches(seed), self.loss_fn, optimizer, listener=watch)
        return SmoothnessRun(seed, tuple(watch.taken) if watch else (), history.mean_loss(LAST))

    def _held(self, seed: int) -> prepare.Batch:
        place = self.first[0].device
        (batch,) = prepare.draw(self.source, self.batch_size, 1, place, _LOOK_SEED + seed)
        return batch

    def _batches(self, seed: int) -> Iterator[prepare.Batch]:
        place, generator = self.first[0].device, torch.Generator().manual_seed(seed)
        for x, y in self.source.batches(self.batch_size, self.steps, generator):
            yield x.to(place), y.to(place)


@dataclass(frozen=True, slots=True)
class _Watch:
    """Called after every step; looks after some of them."""

    model: nn.Module
    loss_fn: LossFunction
    batch: Any
    optimizer: torch.optim.Optimizer
    at: Sequence[int]
    etas: tuple[float, ...]
    taken: list[SmoothnessLook] = field(default_factory=list)

    def __call__(self, step: int, loss: float) -> None:
        if step not in self.at:
            return
        found = look(
            self.model,
            self.loss_fn,
            self.batch,
            steps=self.etas,
            step=step,
            optimizer=self.optimizer,
        )
        self.taken.append(found)
