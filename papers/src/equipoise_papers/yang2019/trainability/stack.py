"""Train one deep normalised network at several learning rates and from several seeds at once."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache, partial

import torch
from torch import Tensor, nn

from equipoise import data, models, theory
from equipoise.layers import GhostBatchNorm1d
from equipoise.records import Estimate
from equipoise.training import Evaluation, History, cross_entropy, evaluate
from equipoise_papers.devices import moved, training_device
from equipoise_papers.stacked.batches import stacked_batches
from equipoise_papers.stacked.train import train_many
from equipoise_papers.sweeps.cell import Cell, Excerpt, Work
from equipoise_papers.yang2019.trainability.line import growth

_ACTIVATIONS: dict[str, type[nn.Module]] = {"relu": nn.ReLU, "tanh": nn.Tanh}
_OPTIMIZERS: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "sgd": torch.optim.SGD,
    # The decay of TensorFlow, which the source presumably used.
    "rmsprop": partial(torch.optim.RMSprop, alpha=0.9),
}
# Running statistics settle within some 20 batches: with the largest batches there are few steps.
_MOMENTUM = 0.1
# Share of the last steps whose mean loss chooses the learning rate.
_LAST = 0.2
# Test images of an excerpt, if they make a batch: all of them take as long as hundreds of steps.
_TESTED = 256


@dataclass(frozen=True, slots=True)
class Member:
    """One network after training.

    Args:
        rate: c, learning rate per sample of a step.
        seed: Seed of weights and order of the data.
        loss: Mean training loss of the last fifth of the steps; infinite if it diverged.
        accuracy: Share of test images that it gets right, with running statistics.
        batch_accuracy: The same with the statistics of test batches of B.
        diverged_at: Step whose loss was not finite.
    """

    rate: float
    seed: int
    loss: float
    accuracy: float
    batch_accuracy: float
    diverged_at: int | None


@dataclass(frozen=True, slots=True)
class Trained:
    """A stack after training.

    Args:
        members: Its networks.
        growth: Predicted growth of the squared gradient norm per layer, at the start.
        chance: Accuracy of guessing.
    """

    members: tuple[Member, ...]
    growth: Estimate
    chance: float

    @property
    def predicted_depth(self) -> float:
        """The predicted maximum trainable depth, 16|ξ|."""
        return theory.max_trainable_depth(self.growth)

    @property
    def best_rate(self) -> float:
        """The rate with the lowest mean training loss over seeds."""
        losses = {rate: statistics.fmean(m.loss for m in self.at(rate)) for rate in self.rates}
        return min(losses, key=lambda rate: (losses[rate], rate))

    @property
    def rates(self) -> tuple[float, ...]:
        """The rates that were tried."""
        return tuple(dict.fromkeys(member.rate for member in self.members))

    def at(self, rate: float) -> tuple[Member, ...]:
        """Its networks at a rate, one per seed."""
        return tuple(member for member in self.members if member.rate == rate)

    def accuracies(self, rate: float, *, batch_statistics: bool = False) -> tuple[float, ...]:
        """Accuracy of each seed at a rate; a network that diverged can only guess."""
        return tuple(
            self.chance
            if member.diverged_at is not None
            else (member.batch_accuracy if batch_statistics else member.accuracy)
            for member in self.at(rate)
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Stack(Cell[Trained]):
    """Networks that differ in their learning rate and seed alone, trained together.

    Args:
        data: Set of images.
        activation: ``relu`` or ``tanh``.
        batch_size: B, samples that share batch statistics.
        depth: Hidden layers, each weights, batch norm and activation; the readout not counted.
        eps: Batch norm's ε.
        gamma: Its scale, at the start.
        beta: Its shift, at the start.
        width: N, neurons per layer.
        samples: On how many to train, repetitions included.
        rates: Learning rates per sample of a step: c in η = c · (samples per step).
        seeds: Seeds of weights and order of the data.
        optimizer: ``sgd`` or ``rmsprop``.
        step_samples: Samples per step, in sub-batches of B; ``None`` for B.
        test_samples: On how many test images.
    """

    data: str
    activation: str
    batch_size: int
    depth: int
    eps: float
    gamma: float = 1.0
    beta: float = 0.0
    width: int
    samples: int
    rates: tuple[float, ...]
    seeds: tuple[int, ...]
    optimizer: str = "sgd"
    step_samples: int | None = None
    test_samples: int

    @property
    def per_step(self) -> int:
        """Samples of one step."""
        return self.step_samples or self.batch_size

    @property
    def members(self) -> tuple[tuple[float, int], ...]:
        """Rate and seed of every network."""
        return tuple((rate, seed) for rate in self.rates for seed in self.seeds)

    def runs_on(self) -> torch.device:
        """Where to train: on the CPU without ``--device``; such networks are small."""
        return training_device()

    def excerpt(self, steps: int) -> Excerpt:
        """The first steps of all networks."""
        tested = min(self.test_samples, max(_TESTED, self.batch_size))
        cell = replace(self, samples=steps * self.per_step, test_samples=tested)
        steps = max(1, self.samples // self.per_step)
        return Excerpt(cell, steps, math.ceil(self.test_samples / tested))

    def work(self) -> Work:
        """Steps of all networks: the hidden layers' calls and products."""
        calls = max(1, self.samples // self.per_step) * self.depth
        return Work(calls, calls * self.per_step * self.width**2 * len(self.members))

    def run(self) -> Trained:
        """Train and test every network of the stack."""
        split = _samples(self.data)
        pixels, classes = split.train.inputs[0].numel(), split.train.classes or 0
        device = self.runs_on()
        networks = [network(self, pixels, classes, seed).to(device) for _, seed in self.members]
        count = max(1, self.samples // self.per_step)
        batches = stacked_batches(
            [
                split.train.batches(self.per_step, count, torch.Generator().manual_seed(seed))
                for _, seed in self.members
            ]
        )
        histories = train_many(
            networks,
            moved(batches, device),
            cross_entropy,
            _OPTIMIZERS[self.optimizer],
            [rate * self.per_step for rate, _ in self.members],
        )
        x = split.test.inputs[: self.test_samples].to(device)
        y = split.test.targets[: self.test_samples].to(device)
        members = tuple(
            _member(self, place, trained, history, x, y)
            for place, trained, history in zip(self.members, networks, histories, strict=True)
        )
        return Trained(members, _predicted(self), 1 / classes)


def a_batch(stack: Stack) -> tuple[Tensor, Tensor]:
    """The samples of one step, of the training set."""
    split = _samples(stack.data)
    (batch,) = split.train.batches(stack.per_step, 1, torch.Generator().manual_seed(0))
    x, y = batch
    return x, y


@torch.no_grad()
def network(stack: Stack, pixels: int, classes: int, seed: int) -> nn.Sequential:
    r"""Build one network: :math:`W_{ij} \sim N(0, 1/N)`, where N is the layer's inputs."""
    with torch.random.fork_rng(devices=[]):  # PyTorch draws weights, which are replaced below
        net = models.mlp(
            pixels,
            classes,
            depth=stack.depth,
            width=stack.width,
            activation=_ACTIVATIONS[stack.activation],
            norm=partial(_norm, stack),
        )
    generator = torch.Generator().manual_seed(seed)
    for module in net.modules():
        if isinstance(module, nn.Linear):
            module.weight.normal_(0, module.in_features**-0.5, generator=generator)
            if module.bias is not None:
                module.bias.zero_()
        elif isinstance(module, nn.BatchNorm1d):
            module.weight.fill_(stack.gamma)
            module.bias.fill_(stack.beta)
    return net


def _norm(stack: Stack, neurons: int) -> nn.Module:
    if stack.per_step == stack.batch_size:
        return nn.BatchNorm1d(neurons, eps=stack.eps, momentum=_MOMENTUM)
    return GhostBatchNorm1d(
        neurons, eps=stack.eps, momentum=_MOMENTUM, virtual_batch_size=stack.batch_size
    )


def _member(
    stack: Stack,
    place: tuple[float, int],
    trained: nn.Module,
    history: History,
    x: Tensor,
    y: Tensor,
) -> Member:
    if history.diverged_at is not None:
        return Member(*place, math.inf, math.nan, math.nan, history.diverged_at)
    tested: Evaluation = evaluate(trained, x, y, cross_entropy)
    return Member(
        *place,
        loss=history.mean_loss(_LAST),
        accuracy=tested.accuracy or 0.0,
        batch_accuracy=_batch_accuracy(trained, x, y, stack.batch_size),
        diverged_at=None,
    )


@torch.no_grad()
def _batch_accuracy(trained: nn.Module, x: Tensor, y: Tensor, batch_size: int) -> float:
    """Accuracy with the statistics of full batches; this changes the running statistics."""
    trained.train()
    full = len(x) // batch_size * batch_size
    guesses = [trained(part).argmax(1) for part in torch.split(x[:full], batch_size)]
    return float((torch.cat(guesses) == y[:full]).float().mean())


def _predicted(stack: Stack) -> Estimate:
    return growth(stack.activation, stack.batch_size, stack.eps, stack.gamma, stack.beta)


@lru_cache(maxsize=1)
def _samples(name: str) -> data.Split:
    """Training and test images, cached because all cells of a worker use the same."""
    return data.split(name)
