"""One short training that is measured on the way, without being changed by it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from equipoise.diagnosis.problem import Problem
from equipoise.diagnosis.short_training import LAST, MakeOptimizer, Variant
from equipoise.diagnosis.smoothness.along_step import measure_along_step
from equipoise.diagnosis.smoothness.record import SmoothnessMeasurement, SmoothnessRun
from equipoise.instrument.random_states import seeded
from equipoise.instrument.types import LossFunction
from equipoise.training.loop import train

# Measurements have a batch of their own, so that training sees the same data without them.
_BATCH_SEED = 10_000


@dataclass(frozen=True, slots=True)
class Course:
    """What all runs have in common.

    Args:
        problem: Model, data and loss.
        make: Builds the optimiser from parameters and ``lr``.
        steps: Steps of training.
        measured_at: Steps after which to measure.
        multiples: Points of a measurement, in units of the learning rate.
    """

    problem: Problem
    make: MakeOptimizer
    steps: int
    measured_at: tuple[int, ...]
    multiples: tuple[float, ...]

    def run(self, variant: Variant, rate: float, seed: int, *, measured: bool) -> SmoothnessRun:
        """Train once, from the weights and on the batches of a seed."""
        problem = self.problem
        model = variant.change_model(problem.fresh(seed))
        optimizer = self.make(model.parameters(), lr=rate)
        listener = None
        if measured:
            etas = tuple(rate * multiple for multiple in self.multiples)
            (batch,) = problem.draw(1, _BATCH_SEED + seed)
            listener = _Listener(model, problem.loss_fn, batch, optimizer, self.measured_at, etas)
        with seeded(seed):
            if listener is not None:
                listener(0, math.nan)
            batches = problem.batches(self.steps, seed)
            history = train(model, batches, problem.loss_fn, optimizer, listener=listener)
        measurements = tuple(listener.measurements) if listener is not None else ()
        return SmoothnessRun(seed, measurements, history.mean_loss(LAST))


@dataclass(frozen=True, slots=True)
class _Listener:
    """Measures after some of the steps of a training."""

    model: nn.Module
    loss_fn: LossFunction
    batch: Any
    optimizer: torch.optim.Optimizer
    measured_at: Sequence[int]
    etas: tuple[float, ...]
    measurements: list[SmoothnessMeasurement] = field(default_factory=list)

    def __call__(self, step: int, loss: float) -> None:
        if step in self.measured_at:
            measurement = measure_along_step(
                self.model,
                self.loss_fn,
                self.batch,
                steps=self.etas,
                step=step,
                optimizer=self.optimizer,
            )
            self.measurements.append(measurement)
