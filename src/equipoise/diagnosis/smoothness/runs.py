"""One short training with looks on the way, which leave it as it is bit for bit."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from equipoise.diagnosis.problem import Problem, seeded
from equipoise.diagnosis.smoothness.looks import look
from equipoise.diagnosis.smoothness.record import SmoothnessLook, SmoothnessRun
from equipoise.diagnosis.smoothness.ways import Way
from equipoise.instrument.types import LossFunction
from equipoise.training.loop import train

_LAST = 0.25
# Looks have a batch of their own, so that training sees the same data with and without them.
_LOOK_SEED = 10_000


@dataclass(frozen=True, slots=True)
class Course:
    """What all runs have in common.

    Args:
        problem: Model, data and loss.
        make: Builds the optimiser from parameters and ``lr``.
        steps: Steps of training.
        at: Steps after which to look.
        multiples: Points of a look, in units of the rate.
    """

    problem: Problem
    make: Callable[..., torch.optim.Optimizer]
    steps: int
    at: tuple[int, ...]
    multiples: tuple[float, ...]

    def run(self, way: Way, rate: float, seed: int, *, looking: bool) -> SmoothnessRun:
        """Train once, from the weights and on the batches of a seed."""
        problem = self.problem
        model = way.change(problem.fresh(seed))
        optimizer = self.make(model.parameters(), lr=rate)
        watch = None
        if looking:
            etas = tuple(rate * multiple for multiple in self.multiples)
            (batch,) = problem.draw(1, _LOOK_SEED + seed)
            watch = _Watch(model, problem.loss_fn, batch, optimizer, self.at, etas)
        with seeded(seed):
            if watch is not None:
                watch(0, math.nan)
            batches = problem.batches(self.steps, seed)
            history = train(model, batches, problem.loss_fn, optimizer, listener=watch)
        return SmoothnessRun(seed, tuple(watch.taken) if watch else (), history.mean_loss(_LAST))


@dataclass(frozen=True, slots=True)
class _Watch:
    """A training listener that looks after some of the steps."""

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
