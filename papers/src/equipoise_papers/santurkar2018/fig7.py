"""Fig. 7: how far the distributions of activations move in one step, under noisy BN."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from equipoise.instrument import untouched
from equipoise.training import cross_entropy, train
from equipoise_papers.devices import moved, training_device
from equipoise_papers.experiments.experiment import Experiment, Scale
from equipoise_papers.experiments.verdict import Check, Verdict, ours
from equipoise_papers.santurkar2018 import grids
from equipoise_papers.santurkar2018.drawing import COLOURS
from equipoise_papers.santurkar2018.grids import LABELS
from equipoise_papers.santurkar2018.summaries import SMALLER_VGG, lower_by_factor, move
from equipoise_papers.santurkar2018.training import (
    EXCERPT_SAMPLES,
    Normaliser,
    observed_layers,
    samples_of,
    vgg_for,
)
from equipoise_papers.sweeps.cell import Cell, Excerpt

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import FigureBase

_NORMS: tuple[Normaliser, ...] = ("none", "batch", "noisy")
_HELD = 128


@dataclass(frozen=True, slots=True)
class Moments:
    """Mean and variance of one unit, for the same inputs, before and after some steps.

    Args:
        layer: Name of the convolution or linear layer.
        before: Mean and variance before each of the steps.
        after: The same after them.
    """

    layer: str
    before: tuple[tuple[float, float], ...]
    after: tuple[tuple[float, float], ...]


@dataclass(frozen=True, slots=True)
class Course:
    """A training and what its steps did to activations.

    Args:
        loss: Mean training loss of the second half of the steps; infinite if it diverged.
        steps: Numbers of the steps that were followed, counted from 1.
        layers: What they did to one unit of each layer.
    """

    loss: float
    steps: tuple[int, ...]
    layers: tuple[Moments, ...]


@dataclass(frozen=True, slots=True)
class FollowedTraining(Cell[Course]):
    """One training of VGG by plain SGD, some of whose steps are followed.

    Args:
        data: Set of images.
        norm: Normaliser after each layer.
        rate: Learning rate.
        batch_size: Samples per step.
        steps: Number of steps.
        every: Steps from one that is followed to the next; 1 for all.
        seed: Seed of weights, data order and noise.
    """

    data: str
    norm: Normaliser
    rate: float
    batch_size: int
    steps: int
    every: int
    seed: int

    def runs_on(self) -> torch.device:
        """Where to train: without ``--device``, the paper's own data take a GPU."""
        return training_device(large=self.data == "cifar10")

    def excerpt(self, steps: int) -> Excerpt:
        """The first steps with fewer samples on a CPU, where one takes long; the last followed."""
        size = self.batch_size
        if self.runs_on().type == "cpu":
            size = min(size, EXCERPT_SAMPLES)
        cell = replace(self, steps=steps, batch_size=size, every=steps)
        share = self.batch_size / size
        return Excerpt(cell, math.ceil(self.steps * share), self.steps // self.every)

    def run(self) -> Course:
        """Train once, and look at the same inputs before and after steps."""
        device, (samples, _) = self.runs_on(), samples_of(self.data)
        held = next(samples.batches(_HELD, 1, torch.Generator().manual_seed(99)))[0].to(device)
        order = torch.Generator().manual_seed(self.seed)
        with torch.random.fork_rng():
            torch.manual_seed(self.seed)
            model = vgg_for(self.data, self.norm, samples).to(device)
            seen = {0: _moments(model, held)}

            def listener(step: int, loss: float) -> None:
                # Followed are steps whose number is a multiple, from just before to just after.
                if step % self.every == 0 or (step + 1) % self.every == 0:
                    seen[step] = _moments(model, held)

            history = train(
                model,
                moved(samples.batches(self.batch_size, self.steps, order), device),
                cross_entropy,
                torch.optim.SGD(model.parameters(), lr=self.rate),
                listener=listener,
            )
        steps = [step for step in seen if step % self.every == 0 and step - 1 in seen]
        layers = tuple(
            Moments(
                layer,
                tuple(seen[step - 1][layer] for step in steps),
                tuple(seen[step][layer] for step in steps),
            )
            for layer in seen[0]
        )
        return Course(history.mean_loss(), tuple(steps), layers)


def cells(scale: Scale) -> tuple[FollowedTraining, ...]:
    """Three networks, for several seeds."""
    name, steps, every, seeds = {
        "smoke": ("digits", 10, 1, 1),
        "small": ("fashion-mnist", 150, 1, 8),
        "paper": ("cifar10", 15_000, 15, 3),
    }[scale]
    return tuple(
        FollowedTraining(name, norm, grids.RATE, grids.BATCH, steps, every, seed)
        for norm in _NORMS
        for seed in range(seeds)
    )


def _moments(model: nn.Module, inputs: Tensor) -> dict[str, tuple[float, float]]:
    """Of one unit of three layers, normalised where the network does, before it is rectified."""
    found: dict[str, tuple[float, float]] = {}

    def recorded(name: str) -> Callable[[nn.Module, tuple[Tensor, ...], Tensor], None]:
        def record(module: nn.Module, args: tuple[Tensor, ...], output: Tensor) -> None:
            unit = output[:, 0].flatten().double().cpu()
            found[name] = float(unit.mean()), float(unit.var())

        return record

    with untouched(model), torch.no_grad():  # which takes the hooks off again
        for name in observed_layers(model):
            # The layers are named alike: conv3_1 and norm3_1, linear4 and norm4.
            normaliser = f"norm{name.removeprefix('conv').removeprefix('linear')}"
            module = getattr(model, normaliser, None) or model.get_submodule(name)
            module.register_forward_hook(recorded(name))
        model(inputs)
    return found


def draw(figure: FigureBase, results: Mapping[FollowedTraining, Course]) -> None:
    """Draw how far mean and variance of one unit move in a step, for each layer and moment."""
    layers = [moments.layer for moments in next(iter(results.values())).layers]
    panels = figure.subplots(2, len(layers), sharex=True, sharey="row", squeeze=False)
    for row, moment in enumerate(("mean", "variance")):
        for place, (axes, layer) in enumerate(zip(panels[row], layers, strict=True)):
            for norm in _NORMS:
                if courses := _courses(results, norm):
                    _draw_moves(axes, courses, place, row, norm)
            axes.set_yscale("log")
            axes.tick_params(labelsize=6)
            if not row:
                axes.set_title(layer, fontsize=8)
        panels[row][0].set_ylabel(f"change of the {moment} in a step", fontsize=7)
    panels[-1][0].set_xlabel("step", fontsize=7)
    panels[0][-1].legend(fontsize=6)


def _draw_moves(
    axes: Axes, courses: Sequence[Course], layer: int, moment: int, norm: Normaliser
) -> None:
    """Geometric means over seeds, and quartiles."""
    steps = courses[0].steps
    moves = [_moves(course.layers[layer], moment) for course in courses]
    at_steps = list(zip(*moves, strict=True))
    middle = list(map(statistics.geometric_mean, at_steps))
    axes.plot(steps, middle, color=COLOURS[norm], label=LABELS[norm], linewidth=1)
    if len(courses) > 1:
        quartiles = [statistics.quantiles(changes, n=4) for changes in at_steps]
        low, high = ([of_step[which] for of_step in quartiles] for which in (0, 2))
        axes.fill_between(steps, low, high, color=COLOURS[norm], alpha=0.2, linewidth=0)


def _courses(results: Mapping[FollowedTraining, Course], norm: Normaliser) -> list[Course]:
    return [course for cell, course in results.items() if cell.norm == norm]


def _moves(moments: Moments, which: int) -> list[float]:
    """Absolute changes of the mean (0) or the variance (1), step by step.

    A unit that does not move at all, to rounding, moved by the least number.
    """
    pairs = zip(moments.before, moments.after, strict=True)
    return [max(abs(now[which] - before[which]), 1e-12) for before, now in pairs]


def _typical(
    courses: Sequence[Course],
    which: int,
    layers: slice = slice(None),
    steps: slice = slice(None),
) -> list[float]:
    """Geometric mean over layers and steps, seed by seed."""
    return [
        statistics.geometric_mean(
            change for moments in course.layers[layers] for change in _moves(moments, which)[steps]
        )
        for course in courses
    ]


def _relative(courses: Sequence[Course]) -> list[float]:
    """Mean over layers and steps of the moves in units of the deviation, seed by seed."""
    found = []
    for course in courses:
        moves = [
            move(before, now)
            for moments in course.layers
            for before, now in zip(moments.before, moments.after, strict=True)
            if min(before[1], now[1]) > 0
        ]
        found.append(statistics.fmean(moves) if moves else math.nan)
    return found


def judge(results: Mapping[FollowedTraining, Course]) -> Verdict:
    """Check the sentences about Fig. 7, seed by seed."""
    if any(cell.data == "digits" for cell in results):
        return Verdict((), left_out=("smoke trains a few steps only; it is not judged",))
    standard, plain, noised = (_courses(results, norm) for norm in _NORMS)
    names = LABELS["none"], LABELS["noisy"]

    def less_stable(moment: str, which: int) -> Check:
        claim = f"with noisy BN a step changes the {moment} of activations more than in the "
        return lower_by_factor(
            f"{claim}standard network", _typical(standard, which), _typical(noised, which), names
        )

    late, last = slice(len(standard[0].steps) // 2, None), slice(-1, None)

    checks = (
        less_stable("mean", 0),
        less_stable("variance", 1),
        lower_by_factor(
            "yet it trains better",
            [course.loss for course in noised],
            [course.loss for course in standard],
            names[::-1],
        ),
        ours(
            lower_by_factor(
                "the mean also in the last layer over the second half of the steps",
                _typical(standard, 0, last, late),
                _typical(noised, 0, last, late),
                names,
            )
        ),
        ours(
            lower_by_factor(
                "in units of the deviation too, |Δμ|/σ + |Δ log σ|",
                _relative(standard),
                _relative(noised),
                names,
            )
        ),
        ours(
            lower_by_factor(
                "with noisy BN a step changes the mean of activations more than with BN",
                _typical(plain, 0),
                _typical(noised, 0),
                (LABELS["batch"], LABELS["noisy"]),
            )
        ),
    )
    if all(cell.data == "cifar10" for cell in results):
        return Verdict(checks)
    steps = max(cell.steps for cell in results)
    return Verdict(checks, (SMALLER_VGG.format(steps=steps),), fidelity="stand-in data")


EXPERIMENT = Experiment(
    name="santurkar2018.fig7",
    title="Change of mean and variance of activations in one step, under noisy BN",
    claim="Noisy BN's activations are less stable than even the standard network's; it trains "
    "well all the same.",
    choices=(
        "activations are what the noise is added to: normalised where the network does, before "
        "they are rectified; one unit of a low, a middle and the last hidden layer, for the same "
        "128 inputs in training mode",
        "changes as geometric means over layers and steps; the figure has quartiles over seeds",
        *grids.OF_TRAINING,
    ),
    cells=cells,
    draw=draw,
    judge=judge,
)
