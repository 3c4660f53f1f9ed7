"""VGG19 with batch norm, trained at many learning rates, initial β and ε: Figs. 5 and 6."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import product

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from equipoise import data, models
from equipoise.instrument import Batch
from equipoise.training import cross_entropy, evaluate, train
from equipoise_papers.devices import training_device
from equipoise_papers.experiments.experiment import Scale
from equipoise_papers.sweeps.cell import Cell, Excerpt

# The source states neither; these are usual for VGG19 on CIFAR.
_MOMENTUM, _WEIGHT_DECAY = 0.9, 5e-4
# Samples in a step of an excerpt, on a CPU.
_EXCERPT = 8
# PyTorch's default. PyTorch refuses 0, by which the source names its default.
_DEFAULT_EPS = 1e-5

_PAPER_RATES = (0.001, 0.01, 0.02, 0.05, 0.1, 0.2)
_PAPER_GRID = (0.0, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0)
_SMALL_RATES = (0.001, 0.01, 0.05, 0.2)
_SMALL_GRID = (0.0, 0.05, 0.2, 1.0)


@dataclass(frozen=True, slots=True)
class Accuracies:
    """Accuracies after each recorded epoch; 0, which is no score, from divergence on.

    Args:
        train: Share of right answers over the batches of that epoch, as they were trained on.
        validation: Share of right answers on test images after that epoch.
        diverged_at: Step at which the loss was no longer finite.
    """

    train: tuple[float, ...]
    validation: tuple[float, ...]
    diverged_at: int | None


@dataclass(frozen=True, slots=True)
class VGGTraining(Cell[Accuracies]):
    """One training.

    Args:
        data: Set of images.
        side: Pixels to which images are averaged down.
        width: Channels of the first block.
        batch_size: Samples per step.
        epoch: Steps of an epoch, or of its stand-in.
        epochs: Epochs after which accuracies are recorded, rising; the last one ends training.
        norm_momentum: Weight of the present batch in running statistics.
        augmented: Whether images are cropped and reflected at random.
        test_samples: Number of test images.
        rate: Learning rate.
        beta: What every batch norm's β starts from.
        eps: Batch norm's ε; 0 for the default of 10⁻⁵.
        seed: Seed of weights, data order and augmentation.
    """

    data: str
    side: int
    width: int
    batch_size: int
    epoch: int
    epochs: tuple[int, ...]
    norm_momentum: float
    augmented: bool
    test_samples: int
    rate: float
    beta: float
    eps: float
    seed: int

    def runs_on(self) -> torch.device:
        """Where to train: without ``--device``, the paper's own data take a GPU."""
        return training_device(large=self.data == "cifar100")

    def excerpt(self, steps: int) -> Excerpt:
        """The first steps as one epoch; on a CPU of fewer samples, as one step takes long."""
        size = self.batch_size if self.runs_on().type != "cpu" else min(self.batch_size, _EXCERPT)
        tested = min(self.test_samples, 4 * size)
        cell = replace(self, epoch=steps, epochs=(1,), batch_size=size, test_samples=tested)
        return Excerpt(
            cell,
            math.ceil(self.epochs[-1] * self.epoch * self.batch_size / size),
            math.ceil(len(self.epochs) * self.test_samples / tested),
        )

    def run(self) -> Accuracies:
        """Train once."""
        train_set, x, y = _images(self.data, self.side)
        device = self.runs_on()
        x, y = x[: self.test_samples].to(device), y[: self.test_samples].to(device)
        model = network(self, int(train_set.inputs.shape[1]), train_set.classes or 10).to(device)
        right = _RightAnswers()
        history = train(
            model,
            _batches(self, train_set, device),
            right,
            torch.optim.SGD(
                model.parameters(), lr=self.rate, momentum=_MOMENTUM, weight_decay=_WEIGHT_DECAY
            ),
            evaluate=lambda step: evaluate(model, x, y, cross_entropy, step=step),
            evaluate_at=tuple(epoch * self.epoch for epoch in self.epochs),
        )
        reached = {found.step: found.accuracy or 0.0 for found in history.evaluations}
        return Accuracies(
            train=tuple(
                right.share(range((epoch - 1) * self.epoch, epoch * self.epoch))
                if epoch * self.epoch in reached
                else 0.0
                for epoch in self.epochs
            ),
            validation=tuple(reached.get(epoch * self.epoch, 0.0) for epoch in self.epochs),
            diverged_at=history.diverged_at,
        )


# The other fields at each scale, in their order. With PyTorch's momentum of 0.1, 35 % of the
# running statistics would still be initial values after an epoch of ten steps; with 0.3 it is 3 %.
# After the paper's 390 steps nothing of them is left.
_FIXED = {
    "smoke": ("digits", 8, 2, 32, 2, (1, 2), 0.3, False, 100),
    "small": ("fashion-mnist", 14, 8, 128, 10, (1, 2, 4, 8), 0.3, False, 500),
    "paper": ("cifar100", 32, 64, 128, 390, (1, 4, 10, 20, 40, 80), 0.1, True, 10_000),
}


def cells(scale: Scale) -> tuple[VGGTraining, ...]:
    """Every learning rate with every β and every ε, seed by seed."""
    rates, grid, seeds = {
        "smoke": ((0.01, 0.1), (0.0, 0.5), 1),
        "small": (_SMALL_RATES, _SMALL_GRID, 8),
        "paper": (_PAPER_RATES, _PAPER_GRID, 8),
    }[scale]
    return tuple(
        VGGTraining(*_FIXED[scale], rate, beta, eps, seed)
        for seed, beta, eps, rate in product(range(seeds), grid, grid, rates)
    )


def network(cell: VGGTraining, channels: int, classes: int) -> nn.Sequential:
    """VGG19 whose batch norms have the cell's β and ε."""
    with torch.random.fork_rng(devices=()):
        torch.manual_seed(cell.seed)
        model = models.vgg("vgg19", classes, channels, width=cell.width)
    for module in model:
        if isinstance(module, nn.BatchNorm2d):
            module.eps, module.momentum = cell.eps or _DEFAULT_EPS, cell.norm_momentum
            nn.init.constant_(module.bias, cell.beta)
    return model


class _RightAnswers:
    """Cross-entropy that records the share of right answers in every training batch."""

    def __init__(self) -> None:
        self._shares: list[Tensor] = []

    def __call__(self, model: nn.Module, batch: Batch) -> Tensor:
        images, labels = batch
        logits = model(images)
        self._shares.append((logits.detach().argmax(1) == labels).float().mean())
        return F.cross_entropy(logits, labels)

    def share(self, steps: range) -> float:
        return float(torch.stack([self._shares[step] for step in steps]).mean())


def _batches(cell: VGGTraining, images: data.Samples, device: torch.device) -> Iterator[Batch]:
    order = torch.Generator().manual_seed(cell.seed)
    places = torch.Generator().manual_seed(cell.seed)
    for x, y in images.batches(cell.batch_size, cell.epochs[-1] * cell.epoch, order):
        if cell.augmented:
            x = data.crop_and_flip(x, generator=places)
        yield x.to(device), y.to(device)


@lru_cache(maxsize=1)
def _images(name: str, side: int) -> tuple[data.Samples, Tensor, Tensor]:
    """Images with channels of mean 0 and variance 1, cached because all cells use the same."""
    split = data.split(name).standardised(eps=(0.0, 0.0), pixels=False)

    def averaged(inputs: Tensor) -> Tensor:
        return inputs if inputs.shape[-1] == side else F.adaptive_avg_pool2d(inputs, side)

    train, test = split.train, split.test
    smaller = data.Samples(train.name, averaged(train.inputs), train.targets, train.classes)
    return smaller, averaged(test.inputs), test.targets
