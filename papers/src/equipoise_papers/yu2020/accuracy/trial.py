"""One accuracy: of a method on the synthetic task, or of a network trained with a head."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cache
from itertools import islice
from typing import Literal

import torch
from torch import nn

from equipoise import data
from equipoise.training import cross_entropy, evaluate, train
from equipoise_papers.devices import moved, training_device
from equipoise_papers.sweeps.cell import Cell, Excerpt
from equipoise_papers.yu2020.accuracy import photographs, synthetic
from equipoise_papers.yu2020.accuracy.networks import HEADS, small_cnn

TaskName = Literal["synthetic", "cnn", "fine-grained"]

_TEST_SAMPLES = 4000
# The synthetic task at a fifth of its size, where it is not to be judged.
_SIZES = {
    "whole": {"classes": 12, "channels": 24, "positions": 28, "train": 1500, "test": 2400},
    "reduced": {"classes": 4, "channels": 6, "positions": 12, "train": 120, "test": 120},
}
# Fine-tuning in two stages: the classifier, then everything at a smaller rate.
_FINE_TUNE_BATCH, _CLASSIFIER_RATE, _DECAY = 32, 1.0, 1e-5


@dataclass(frozen=True, slots=True)
class Score:
    """The accuracy of one trial.

    Args:
        accuracy: On test samples.
        other_start: The same where RUN has another start at test time than in training; nan
            where that was not tried.
        loss: Mean training loss of the second half of the steps; nan for the synthetic task.
    """

    accuracy: float
    other_start: float
    loss: float


@dataclass(frozen=True, slots=True)
class Trial(Cell[Score]):
    """One method, seed and rate.

    Args:
        task: Name of the task.
        data: ``whole`` or ``reduced`` for the synthetic task, else a set of images.
        method: How features are normalised.
        seed: Of the data, or of weights and their order; and of the start.
        rate: Learning rate of Adam (of SGD for fine-grained images); 0 for the synthetic task.
        steps: Steps of training; epochs of each stage for fine-grained images.
    """

    task: TaskName
    data: str
    method: str
    seed: int
    rate: float = 0.0
    steps: int = 0

    def runs_on(self) -> torch.device:
        """Where to train: without ``--device``, fine-grained images take a GPU."""
        if self.task == "synthetic":
            return torch.device("cpu")
        return training_device(large=self.task == "fine-grained")

    def excerpt(self, steps: int) -> Excerpt | None:
        """The first steps; of photographs the first of either stage, without the test."""
        if self.task == "synthetic":
            return None
        if self.task == "cnn":
            return Excerpt(replace(self, steps=steps), self.steps, 1)
        begun = _Begun(self.task, self.data, self.method, self.seed, self.rate, self.steps, steps)
        return Excerpt(begun, self.steps * photographs.steps(self.data, _FINE_TUNE_BATCH), 0)

    def run(self) -> Score:
        """Train and test once."""
        match self.task:
            case "synthetic":
                return _synthetic(self)
            case "cnn":
                return _cnn(self)
            case _:
                return _fine_grained(self)


@dataclass(frozen=True, slots=True)
class _Begun(Trial):
    """The first steps of both stages of a fine-tuning.

    Args:
        most: Steps of each stage.
    """

    most: int = 1


def _synthetic(cell: Trial) -> Score:
    problem = synthetic.task(**_SIZES[cell.data], seed=cell.seed)
    same, other = synthetic.accuracies(cell.method, problem, seed=cell.seed)
    return Score(same, other if cell.method.startswith("RUN") else math.nan, math.nan)


@cache
def _split(name: str) -> data.Split:
    """Images standardised by channel, cached because all cells of a worker use the same."""
    return data.split(name).standardised(pixels=False)


def _cnn(cell: Trial) -> Score:
    split, device = _split(cell.data), cell.runs_on()
    generator = torch.Generator().manual_seed(cell.seed)
    with torch.random.fork_rng():
        torch.manual_seed(cell.seed)
        channels = split.train.inputs.shape[1]
        model = small_cnn(cell.method, classes=10, in_channels=channels, seed=cell.seed)
        model = model.to(device)
        optimizer = torch.optim.Adam(model.parameters(), lr=cell.rate)
        batches = moved(split.train.batches(64, cell.steps, generator), device)
        history = train(model, batches, cross_entropy, optimizer)
    if history.diverged_at is not None:
        return Score(math.nan, math.nan, math.inf)
    x = split.test.inputs[:_TEST_SAMPLES].to(device)
    y = split.test.targets[:_TEST_SAMPLES].to(device)
    found = evaluate(model, x, y, cross_entropy).accuracy
    return Score(math.nan if found is None else found, math.nan, history.mean_loss())


def _fine_grained(cell: Trial) -> Score:
    """Train the classifier, then everything. No test has the photographs and the backbone."""
    most = cell.most if isinstance(cell, _Begun) else None
    training, testing, classes = photographs.loaders(cell.data, _FINE_TUNE_BATCH, cell.seed)
    features, channels = photographs.backbone()
    device = cell.runs_on()
    with torch.random.fork_rng():
        torch.manual_seed(cell.seed)
        pooling = HEADS[cell.method](channels, seed=cell.seed)
        size = pooling.output_dim
        assert isinstance(size, int)
        classifier = nn.Linear(size, classes)
        model = nn.Sequential(features, pooling, classifier).to(device)
        for trained, rate in ((classifier, _CLASSIFIER_RATE), (model, cell.rate)):
            features.requires_grad_(trained is model)
            optimizer = torch.optim.SGD(
                trained.parameters(), lr=rate, momentum=0.9, weight_decay=_DECAY
            )
            batches = islice(photographs.epochs(training, cell.steps, device), most)
            history = train(model, batches, cross_entropy, optimizer)
    if most is not None:
        return Score(math.nan, math.nan, history.mean_loss())
    model.eval()
    right = total = 0
    with torch.no_grad():
        for x, y in photographs.epochs(testing, 1, device):
            right += int((model(x).argmax(1) == y).sum())
            total += len(y)
    return Score(right / total, math.nan, history.mean_loss())
