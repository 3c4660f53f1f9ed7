"""Fig. 3: what the first steps do to exploding gradients and to the weights."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from equipoise_papers.experiments import style
from equipoise_papers.experiments.experiment import Experiment, Scale
from equipoise_papers.experiments.verdict import Check, Verdict
from equipoise_papers.yang2019.first_steps import claims
from equipoise_papers.yang2019.first_steps.training import (
    FirstSteps,
    Group,
    Quantity,
    ShortTraining,
    profiles,
)
from equipoise_papers.yang2019.samples import grouped

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import FigureBase

_BATCH_SIZE, _EPS = 32, 1e-3
# Fig. 2's 10⁻⁵ B; the best of half decades from 0.001 to 1 by the loss after 100 steps at depths
# 10 to 40 (measured at width 128); and the largest of them.
_FIG_2, _TUNED, _LARGE = 1e-5 * _BATCH_SIZE, 0.1, 1.0
_RATES = (_FIG_2, _TUNED, _LARGE)
_STEPS = (0, 1, 2, 4, 6, 10)
# Data, depths, width, steps to look at, seeds.
_EFFORT: dict[str, tuple[str, tuple[int, ...], int, tuple[int, ...], int]] = {
    "smoke": ("digits", (10, 20), 64, (0, 1, 10), 2),
    "small": ("fashion-mnist", (20, 40, 80), 384, _STEPS, 8),
    "paper": ("mnist", (10, 20, 40, 80, 160), 384, tuple(range(11)), 20),
}

# The source's panels a, b and c.
_ROWS: tuple[tuple[Quantity, str], ...] = (
    ("weights", r"$\|W^l\|^2/N$"),
    ("signals", r"$\|\partial E/\partial h^l\|^2$"),
    ("gradients", r"$\|\partial E/\partial W^l\|^2$"),
)
_STAND_IN = "MNIST and depths 10 and 160: Fashion-MNIST and depths 20 to 80 at this scale"
# Where viridis is purple and where it is green; beyond, it is too faint on white.
_PURPLE, _GREEN = 0.12, 0.75
# Figures have decades.
_DECADE = math.log(10)


def cells(scale: Scale) -> tuple[ShortTraining, ...]:
    """Every depth, learning rate and seed."""
    data, depths, width, steps, seeds = _EFFORT[scale]
    return tuple(
        ShortTraining(data, depth, width, _BATCH_SIZE, _EPS, rate, steps, seed)
        for depth in depths
        for rate in _RATES
        for seed in range(seeds)
    )


def draw(figure: FigureBase, results: Mapping[ShortTraining, FirstSteps]) -> None:
    """Draw weights, and gradients by pre-activations and weights, in rows; depths in columns."""
    depths = grouped(results, lambda cell: cell.depth)
    places = figure.subplots(len(_ROWS), len(depths), squeeze=False, sharex="col", sharey="row")
    for column, (depth, group) in zip(places.T, depths.items(), strict=True):
        rates = grouped(dict(group), lambda cell: cell.rate)
        for axes, (quantity, _) in zip(column, _ROWS, strict=True):
            _draw_rates(axes, rates, quantity)
        column[0].set_title(f"depth {depth}", fontsize=9)
        column[-1].set_xlabel("layer, from input", fontsize=8)
    for axes, (_, label) in zip(places[:, 0], _ROWS, strict=True):
        axes.set_ylabel(rf"$\log_{{10}}${label}", fontsize=8)
    data = next(iter(results)).data
    title = f"First ten steps, ReLU with batch norm, learning rate {_TUNED:g}, {data}"
    figure.suptitle(title, fontsize=9.5)
    handles, labels = places[1, 0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=4, fontsize=6.5)


def judge(results: Mapping[ShortTraining, FirstSteps]) -> Verdict:
    """Check step 0 against theory, and later steps against what the source describes."""
    if any(cell.data == "digits" for cell in results):
        return Verdict((), left_out=("smoke's networks are too narrow and shallow to judge",))
    at_first: list[Check] = []
    later: list[Check] = []
    depths = grouped(results, lambda cell: cell.depth)
    for depth, group in depths.items():
        rates = grouped(dict(group), lambda cell: cell.rate)
        at_first += claims.at_first(depth, rates[_TUNED])
        later += claims.after_a_step(depth, rates, decisive=_TUNED)
    deepest = max(depths)
    tuned = [(cell, record) for cell, record in depths[deepest] if cell.rate == _TUNED]
    checks = (*at_first, *later, claims.still(deepest, tuned))
    on_mnist = all(cell.data == "mnist" for cell in results)
    if on_mnist:
        return Verdict(checks)
    return Verdict(checks, (_STAND_IN,), fidelity="stand-in data")


def _draw_rates(axes: Axes, rates: Mapping[float, Group], quantity: Quantity) -> None:
    """Draw the tuned rate step by step, and the last step of Fig. 2's rate."""
    if _TUNED in rates:
        _draw_steps(axes, rates[_TUNED], quantity)
        if quantity != "weights":
            _draw_theory(axes, rates[_TUNED], quantity)
    if _FIG_2 in rates:
        label = f"last step, rate {_FIG_2:g}"
        last = rates[_FIG_2][0][0].steps[-1]
        _line(axes, rates[_FIG_2], quantity, last, color=style.PALETTE[3], ls=":", label=label)
    axes.tick_params(labelsize=7)


def _draw_steps(axes: Axes, group: Group, quantity: Quantity) -> None:
    """Draw the first profile in black and the last in green, as the source does.

    The source draws the others in dark greens, of which the first look the same; here they go
    from purple to green, with the largest differences between the first steps.
    """
    from matplotlib import colormaps

    steps = group[0][0].steps
    for step in steps:
        look: dict[str, Any] = {"color": style.INK, "linewidth": 1.6}
        if step:
            place = _PURPLE + (_GREEN - _PURPLE) * math.log(step) / math.log(steps[-1])
            look = {"color": colormaps["viridis"](place), "linewidth": 1.0}
        _line(axes, group, quantity, step, label=f"step {step}", **look)


def _draw_theory(axes: Axes, group: Group, quantity: Quantity) -> None:
    first = profiles(group, quantity, 0).mean(0) / _DECADE
    layers = np.arange(1, len(first) + 1)
    slope = math.log10(group[0][1].rate.value)
    line = first.mean() - slope * (layers - layers.mean())
    label = rf"theory at step 0, slope $-\log_{{10}}\lambda_G={-slope:.3f}$"
    axes.plot(layers, line, color=style.PALETTE[1], linestyle=style.DASHES, label=label)


def _line(axes: Axes, group: Group, quantity: Quantity, step: int, **look: Any) -> None:
    mean = profiles(group, quantity, step).mean(0) / _DECADE
    axes.plot(np.arange(1, len(mean) + 1), mean, **look)


EXPERIMENT = Experiment(
    name="yang2019.fig3",
    title="Weights and gradients per layer in the first ten steps",
    claim="Before learning, weights are flat over layers and gradients explode; after one step "
    "weights grow exponentially in the depth, and gradients are stable up to a threshold, after "
    "which they vanish exponentially: they quickly reach a dynamical equilibrium.",
    choices=(
        "depths, batch size and learning rate are not stated: depths 20, 40, 80 (paper: 10 to "
        "160), batch 32, Fig. 2's width 384 and ε = 0.001",
        f"learning rates: Fig. 2's 10⁻⁵ B = {_FIG_2:g}, {_TUNED:g} (tuned, on which the verdict "
        f"is based), and {_LARGE:g}",
        "small trains on Fashion-MNIST, a stand-in for MNIST; means over 8 seeds",
        "gradients: by pre-activations, ∂E/∂h, and by weights, ∂E/∂W, the source's panels b and "
        "c, are judged one by one, each with the threshold of its own",
        "depth is read as distance from the output, where the source says that weights grow and "
        "gradients vanish with it: gradients grow towards the input, and so do the steps",
        "weights that grow: at least five layers whose squared norm grew tenfold; the threshold "
        "is the layer with the largest gradient; stable: growing at less than half of ln λ_G; "
        "what three standard errors over seeds do not tell is undecided",
        "small: 5 of the steps after the first; paper: all ten, 20 seeds",
    ),
    cells=cells,
    draw=draw,
    judge=judge,
)
