"""One training of a residual network with batch norm, group norm, BNP, or BNP and group norm.

The schedule is the paper's: a warm-up from a tenth of the rate, and drops to a tenth of it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from equipoise import data, layers, models
from equipoise.models import Norm, make_norm
from equipoise.preconditioners import BNP
from equipoise.training import Evaluation, cross_entropy, evaluate
from equipoise_papers.big.batches import Batches, ShuffledBatches, ShuffledOrder
from equipoise_papers.big.train import train_big
from equipoise_papers.devices import training_device
from equipoise_papers.experiments.torchrun import checkpoint_path
from equipoise_papers.lange2022.resnets import imagenet
from equipoise_papers.lange2022.training import Run
from equipoise_papers.sweeps.cell import Cell, Excerpt

_MOMENTUM = 0.9
# The share of the rate where warm-up starts, and the factor of each drop.
_TENTH = 0.1
# Samples in a step of an excerpt, on a CPU.
_EXCERPT = 8

Form = Literal["original", "preactivation", "resnet18"]


@dataclass(frozen=True, slots=True)
class Method:
    """One way to train a residual network.

    Args:
        label: Its name in figures.
        norm: Kind of normaliser.
        preconditioned: Whether BNP transforms the gradients.
        gradual: Whether the rate rises linearly during warm-up; otherwise it is constant.
    """

    label: str
    norm: Literal["none", "batch", "group"]
    preconditioned: bool = False
    gradual: bool = False


METHODS: dict[str, Method] = {
    "bn": Method("BN", "batch"),
    "gn": Method("GN", "group", gradual=True),
    "bnp": Method("BNP", "none", preconditioned=True),
    "bnp_gn": Method("BNP+GN", "group", preconditioned=True, gradual=True),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ResNetTraining(Cell[Run]):
    """One training.

    Args:
        form: Kind of blocks of a thin network for CIFAR, or ``resnet18``.
        depth: Layers with weights.
        width: Channels of the first stage.
        data: Set of images.
        side: Pixels a side; larger images are averaged down to it.
        method: A key of :data:`METHODS`.
        group_size: Channels in a group of group norm.
        init_scale: Factor of the initial weights of convolutions.
        weight_decay: For every parameter.
        batch_size: Samples per step.
        steps: Number of steps.
        warmup: Steps of warm-up.
        drops: Steps after which the rate falls to a tenth.
        rate: Learning rate between warm-up and the first drop.
        seed: Seed of weights, data order and augmentation.
        evaluations: How often, at equal distances, test accuracy is measured, besides the drops.
        test_samples: Number of test images.
        augmented: Whether training images are cropped and flipped at random.
    """

    form: Form
    depth: int
    width: int
    data: str
    side: int
    method: str
    group_size: int
    init_scale: float
    weight_decay: float
    batch_size: int
    steps: int
    warmup: int
    drops: tuple[int, ...]
    rate: float
    seed: int
    evaluations: int
    test_samples: int
    augmented: bool = False

    def runs_on(self) -> torch.device:
        """Where to train: without ``--device``, the paper's own data take a GPU."""
        return training_device(large=self.data in ("cifar10", "cifar100", imagenet.NAME))

    def excerpt(self, steps: int) -> Excerpt:
        """The first steps; all of ImageNet's test images would take longer than many steps.

        On a CPU they are of fewer samples, as one step takes long.
        """
        looks = 0 if self.data == imagenet.NAME else 1
        size = self.batch_size if self.runs_on().type != "cpu" else min(self.batch_size, _EXCERPT)
        tested = min(self.test_samples, 4 * size)
        cell = replace(
            self,
            steps=steps,
            warmup=0,
            drops=(),
            evaluations=looks,
            batch_size=size,
            test_samples=tested,
        )
        return Excerpt(
            cell,
            math.ceil(self.steps * self.batch_size / size),
            math.ceil(looks * len(moments(self)) * self.test_samples / tested),
        )

    def run(self) -> Run:
        """Train once, over all processes of ``torchrun`` if there are more."""
        method, device = METHODS[self.method], self.runs_on()
        images = _images(self, device)
        with torch.random.fork_rng():
            torch.manual_seed(self.seed)
            model = build(self, channels=images.channels, classes=images.classes)
            model = layers.convert(model, "batch", "synchronised").model.to(device)
            optimizer = torch.optim.SGD(
                model.parameters(),
                lr=self.rate,
                momentum=_MOMENTUM,
                weight_decay=self.weight_decay,
            )
            scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, partial(rate_factor, self))
            with (
                preconditioned(model, optimizer) if method.preconditioned else nullcontext() as bnp
            ):
                history = train_big(
                    model,
                    images.batches,
                    cross_entropy,
                    optimizer,
                    scheduler=scheduler,
                    also={} if bnp is None else {"bnp": bnp},
                    checkpoint=checkpoint_path(),
                    evaluate=partial(images.evaluate, model),
                    evaluate_at=moments(self),
                ).history
        return Run.of(history)


@dataclass(frozen=True, slots=True)
class _Images:
    """A training's data."""

    batches: Batches
    evaluate: Callable[[nn.Module, int], Evaluation]
    channels: int
    classes: int


def build(cell: ResNetTraining, *, channels: int, classes: int) -> nn.Module:
    """Make the network with the method's normaliser and initial weights."""
    kind = METHODS[cell.method].norm
    norm: Norm = kind if kind != "group" else partial(make_norm, kind, group_size=cell.group_size)
    if cell.form == "resnet18":
        small = cell.data != imagenet.NAME
        net = models.resnet18(classes, channels, small_images=small, width=cell.width, norm=norm)
        return models.he_normal_(net, scale=cell.init_scale)
    return models.resnet_cifar(
        cell.depth,
        classes,
        channels,
        preactivation=cell.form == "preactivation",
        norm=norm,
        width=cell.width,
        init_scale=cell.init_scale,
    )


def rate_factor(cell: ResNetTraining, step: int) -> float:
    """Learning rate of a step as a share of the cell's; steps count from 0."""
    if step < cell.warmup:
        gradual = METHODS[cell.method].gradual
        return _TENTH + (1 - _TENTH) * step / cell.warmup if gradual else _TENTH
    return _TENTH ** sum(step >= drop for drop in cell.drops)


def moments(cell: ResNetTraining) -> tuple[int, ...]:
    """Numbers of steps after which test accuracy is measured; every drop is one."""
    parts = cell.evaluations
    equal = {round(cell.steps * part / parts) for part in range(1, parts + 1)}
    return tuple(sorted(equal | set(cell.drops)))


@contextmanager
def preconditioned(model: nn.Module, optimizer: torch.optim.SGD) -> Iterator[BNP]:
    """Feed SGD with gradients transformed by Algorithms 2 and 3, as the paper does.

    ``attach`` would decouple the weight decay, which without the momentum's factor of ten is a
    tenth of the paper's.
    """
    bnp = BNP(model, preset="paper")
    with bnp, optimizer.register_step_pre_hook(lambda *_: bnp.step()):
        yield bnp


def _images(cell: ResNetTraining, device: torch.device) -> _Images:
    if cell.data == imagenet.NAME:
        found = imagenet.images(cell.batch_size, cell.side)
        order = ShuffledOrder(
            samples=len(found.train),
            batch_size=cell.batch_size,
            steps=cell.steps,
            seed=cell.seed,
        )
        read = imagenet.FolderBatches(found.train, order, device)
        return _Images(read, found.evaluate, 3, found.classes)
    split = _split(cell.data, cell.side)
    x, y = split.test.inputs[: cell.test_samples], split.test.targets[: cell.test_samples]
    test = x.to(device), y.to(device)

    def evaluated(model: nn.Module, step: int) -> Evaluation:
        return evaluate(model, *test, cross_entropy, step=step)

    classes = split.train.classes
    assert classes is not None
    batches = ShuffledBatches(
        split.train.inputs,
        split.train.targets,
        cell.batch_size,
        cell.steps,
        cell.seed,
        transform=_augmented if cell.augmented else None,
        device=device,
    )
    return _Images(batches, evaluated, x.shape[1], classes)


def _augmented(x: Tensor, generator: torch.Generator) -> Tensor:
    return data.crop_and_flip(x, generator=generator)


@lru_cache(maxsize=2)
def _split(name: str, side: int) -> data.Split:
    """Standardised images of ``side`` pixels, cached because all cells use the same."""
    split = data.split(name)
    factor = split.train.inputs.shape[-1] // side
    return data.Split(
        *(
            data.Samples(s.name, F.avg_pool2d(s.inputs, factor), s.targets, s.classes)
            for s in (split.train, split.test)
        )
    ).standardised(pixels=False)
