"""One training of a small network by one of the methods."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import lru_cache

import torch

from equipoise import data
from equipoise.instrument import Batch
from equipoise.training import Curve, Evaluation, History, cross_entropy, evaluate, train
from equipoise_papers.devices import moved, training_device
from equipoise_papers.lange2022.methods import METHODS, attached, build, loss_of, optimizer
from equipoise_papers.sweeps.cell import Cell, Excerpt


@dataclass(frozen=True, slots=True)
class Run:
    """Losses and accuracies of a training.

    Args:
        loss: Mean training loss of the second half of the steps; infinite if it diverged.
        curve: Training loss against steps.
        evaluations: Loss and accuracy on test images.
        diverged_at: Step at which the loss was no longer finite.
        refused: Why the network cannot be trained on such batches.
        step_seconds: Mean time of a step.
    """

    loss: float
    curve: Curve
    evaluations: tuple[Evaluation, ...]
    diverged_at: int | None
    refused: str | None
    step_seconds: float

    @classmethod
    def of(cls, history: History) -> Run:
        """What is kept of a finished training."""
        return cls(
            loss=history.mean_loss(),
            curve=history.curve(),
            evaluations=history.evaluations,
            diverged_at=history.diverged_at,
            refused=None,
            step_seconds=history.seconds / len(history.losses),
        )

    @property
    def accuracy(self) -> float:
        """Final accuracy on test images; nan if training did not end regularly."""
        if self.refused is not None or self.diverged_at is not None or not self.evaluations:
            return math.nan
        last = self.evaluations[-1].accuracy
        return math.nan if last is None else last


@dataclass(frozen=True, slots=True)
class Training(Cell[Run]):
    """One training.

    Args:
        network: ``fc`` (3 × 100) or ``cnn5``.
        data: Set of images.
        method: A key of :data:`METHODS`.
        batch_size: Samples per step.
        steps: Number of steps.
        rate: Learning rate.
        seed: Seed of weights, data order and noise.
        evaluations: How often, at equal distances, test accuracy is measured.
        test_samples: Number of test images.
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

    def runs_on(self) -> torch.device:
        """Where to train: on the CPU without ``--device``."""
        return training_device(large=self.data == "cifar10" and self.network == "cnn5")

    def excerpt(self, steps: int) -> Excerpt:
        """The first steps, and one evaluation."""
        return Excerpt(replace(self, steps=steps, evaluations=1), self.steps, self.evaluations)

    def run(self) -> Run:
        """Train once."""
        method = METHODS[self.method]
        device = self.runs_on()
        train_set, test_set = _samples(self.data, method.standardised, self.network == "fc")
        x = test_set.inputs[: self.test_samples].to(device)
        y = test_set.targets[: self.test_samples].to(device)
        with torch.random.fork_rng():
            torch.manual_seed(self.seed)
            model = build(
                self.network, method, self.batch_size, self.steps, train_set.inputs.shape[1:]
            ).to(device)
            stepper = optimizer(method, model, self.rate)
            batches = train_set.batches(
                self.batch_size, self.steps, torch.Generator().manual_seed(self.seed)
            )
            if method.copies > 1:
                batches = _repeated(batches, method.copies)
            try:
                with attached(method, model, stepper):
                    history = train(
                        model,
                        moved(batches, device),
                        loss_of(method),
                        stepper,
                        evaluate=lambda step: evaluate(model, x, y, cross_entropy, step=step),
                        evaluate_at=_moments(self),
                    )
            except ValueError as error:
                # Batch norm in training mode refuses a single value per channel.
                if "more than 1 value per channel" not in str(error):
                    raise
                return Run(math.inf, Curve((), ()), (), None, str(error), math.nan)
        return Run.of(history)


def _repeated(batches: Iterable[Batch], copies: int) -> Iterator[Batch]:
    """Every batch with each of its samples several times, which leaves mean and variance alone."""
    for x, y in batches:
        yield x.repeat_interleave(copies, dim=0), y.repeat_interleave(copies, dim=0)


def _moments(cell: Training) -> tuple[int, ...]:
    parts = cell.evaluations
    return tuple(round(cell.steps * part / parts) for part in range(1, parts + 1))


@lru_cache(maxsize=2)
def _samples(name: str, standardised: bool, pixels: bool) -> tuple[data.Samples, data.Samples]:
    """Training and test images, cached because all cells of a worker use the same."""
    split = data.split(name)
    if standardised:
        split = split.standardised(pixels=pixels)
    return split.train, split.test
