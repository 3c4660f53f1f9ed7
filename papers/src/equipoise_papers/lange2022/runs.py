"""One training: a cell names everything that its numbers depend on, a record is what it left."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

import torch

from equipoise import data
from equipoise.training.evaluation import evaluate
from equipoise.training.loop import train
from equipoise.training.losses import cross_entropy
from equipoise.training.record import Curve, Evaluation
from equipoise_papers.lange2022.methods import METHODS, attached, build, loss_of, optimizer


@dataclass(frozen=True, slots=True)
class Cell:
    """One training.

    Args:
        network: ``fc`` (3 × 100) or ``cnn5``.
        data: Set of images.
        method: A key of :data:`METHODS`.
        batch_size: Samples per step.
        steps: How many.
        rate: Learning rate.
        seed: Of weights, data order and noise.
        evaluations: How often, at equal distances, test accuracy is measured.
        test_samples: On how many test images.
    """

    network: str
    data: str
    method: str
    batch_size: int
    steps: int
    rate: float
    seed: int
    evaluations: int = 6
    test_samples: int = 2000


@dataclass(frozen=True, slots=True)
class Run:
    """What a training left.

    Args:
        loss: Mean training loss of the second half of the steps; infinite if it diverged.
        curve: Training loss against steps.
        evaluations: Loss and accuracy on test images.
        diverged_at: Step at which the loss was no longer finite.
        refused: Why the network cannot be trained on such batches at all.
        step_seconds: Mean time of a step.
    """

    loss: float
    curve: Curve
    evaluations: tuple[Evaluation, ...]
    diverged_at: int | None
    refused: str | None
    step_seconds: float

    @property
    def accuracy(self) -> float:
        """Final accuracy on test images; nan if training did not end regularly."""
        if self.refused is not None or self.diverged_at is not None or not self.evaluations:
            return math.nan
        last = self.evaluations[-1].accuracy
        return math.nan if last is None else last


def run(cell: Cell) -> Run:
    """Train once."""
    method = METHODS[cell.method]
    train_set, test_set = _samples(cell.data, method.standardised, cell.network == "fc")
    x, y = test_set.inputs[: cell.test_samples], test_set.targets[: cell.test_samples]
    with torch.random.fork_rng():
        torch.manual_seed(cell.seed)
        model = build(
            cell.network, method, cell.batch_size, cell.steps, train_set.inputs.shape[1:]
        )
        stepper = optimizer(method, model, cell.rate)
        batches = train_set.batches(
            cell.batch_size, cell.steps, torch.Generator().manual_seed(cell.seed)
        )
        try:
            with attached(method, model, stepper):
                history = train(
                    model,
                    batches,
                    loss_of(method),
                    stepper,
                    evaluate=lambda step: evaluate(model, x, y, cross_entropy, step=step),
                    evaluate_at=_moments(cell),
                )
        except ValueError as error:
            # Batch norm in training mode refuses a single value per channel.
            if "more than 1 value per channel" not in str(error):
                raise
            return Run(math.inf, Curve((), ()), (), None, str(error), math.nan)
    return Run(
        loss=history.mean_loss(),
        curve=history.curve(),
        evaluations=history.evaluations,
        diverged_at=history.diverged_at,
        refused=None,
        step_seconds=history.seconds / len(history.losses),
    )


def _moments(cell: Cell) -> tuple[int, ...]:
    parts = cell.evaluations
    return tuple(round(cell.steps * part / parts) for part in range(1, parts + 1))


@lru_cache(maxsize=2)
def _samples(name: str, standardised: bool, pixels: bool) -> tuple[data.Samples, data.Samples]:
    """Training and test images; kept, because every cell of a worker uses the same."""
    split = data.split(name)
    if standardised:
        split = split.standardised(pixels=pixels)
    return split.train, split.test
