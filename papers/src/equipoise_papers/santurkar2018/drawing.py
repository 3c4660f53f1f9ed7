"""Draw runs of several normalisers side by side."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from equipoise_papers.experiments import style
from equipoise_papers.santurkar2018.grids import LABELS
from equipoise_papers.santurkar2018.summaries import looks_by_step, norms_of, runs_of, series
from equipoise_papers.santurkar2018.training import Look, Normaliser, ProbedTraining, Run

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import FigureBase

COLOURS = {
    "none": style.INK,
    "batch": style.PALETTE[1],
    "noisy": style.PALETTE[0],
    "noise": style.MUTED,
    "l1": style.PALETTE[2],
    "l2": style.PALETTE[4],
    "linf": style.PALETTE[3],
}
# What `distribution` draws.
_QUANTILES = "line: median, dark band: 25 to 75 %, pale band: 5 to 95 %, of the first seed"


def curves(axes: Axes, results: Mapping[ProbedTraining, Run], *, wide: bool = False) -> None:
    """Training loss against steps; bands are the range over seeds.

    Args:
        axes: The panel.
        results: Finished cells.
        wide: Whether the panel takes all of the figure's width.
    """
    for norm in norms_of(results):
        finished = [run for run in runs_of(results, norm) if run.diverged_at is None]
        if not finished:
            continue
        length = min(len(run.curve.losses) for run in finished)
        steps = finished[0].curve.steps[:length]
        losses = (run.curve.losses[:length] for run in finished)
        look = {"color": COLOURS[norm], "label": LABELS[norm]}
        style.mean_and_range(axes, steps, losses, look)
    style.logarithmic(axes)
    axes.set_xlabel("step")
    axes.set_ylabel("training loss")
    # Above the panel, because curves and bands may be in any corner.
    axes.legend(
        fontsize=7,
        loc="lower center",
        bbox_to_anchor=(0.5, 1),
        ncols=4 if wide else 3,
        title="mean and range over seeds",
        title_fontsize=7,
    )


def lines(
    axes: Axes,
    results: Mapping[ProbedTraining, Run],
    value: Callable[[Look], float],
    name: str,
    *,
    log: bool = True,
) -> None:
    """A number per look, mean over seeds with bars of one standard error.

    On a logarithmic axis both are those of logarithms: bars of a mean over decades would reach
    below zero.
    """
    for norm in norms_of(results):
        measure = _logarithm_of(value) if log else value
        steps, spreads = series(runs_of(results, norm), measure)
        means = np.array([s.mean for s in spreads])
        errors = np.nan_to_num([s.error for s in spreads])
        middle, low, high = (
            np.exp(ends) if log else ends for ends in (means, means - errors, means + errors)
        )
        axes.errorbar(
            steps,
            middle,
            yerr=(middle - low, high - middle),
            color=COLOURS[norm],
            marker=".",
            elinewidth=0.8,
            label=LABELS[norm],
        )
    if log:
        style.logarithmic(axes)
    axes.set_xlabel("step")
    axes.set_ylabel(name)
    axes.legend(fontsize=7)


def _logarithm_of(value: Callable[[Look], float]) -> Callable[[Look], float]:
    def logarithm(look: Look) -> float:
        number = value(look)
        return math.log(number) if number > 0 else math.nan

    return logarithm


def bands(
    axes: Axes,
    results: Mapping[ProbedTraining, Run],
    band: Callable[[Look], tuple[float, float] | None],
    name: str,
) -> None:
    """Smallest and largest value along the gradient at every look, geometric mean over seeds."""
    for norm in norms_of(results):
        steps, low, high = [], [], []
        for step, looks in looks_by_step(runs_of(results, norm)):
            pairs = [found for look in looks if (found := band(look)) is not None]
            pairs = [pair for pair in pairs if pair[0] > 0 and pair[1] < float("inf")]
            if pairs:
                steps.append(step)
                low.append(statistics.geometric_mean(pair[0] for pair in pairs))
                high.append(statistics.geometric_mean(pair[1] for pair in pairs))
        axes.fill_between(
            # An edge keeps a narrow band visible.
            steps,
            low,
            high,
            color=COLOURS[norm],
            alpha=0.3,
            label=LABELS[norm],
            linewidth=1,
        )
    style.logarithmic(axes)
    axes.set_xlabel("step")
    axes.set_ylabel(name)
    axes.legend(fontsize=7)


def landscapes(
    figure: FigureBase,
    results: Mapping[ProbedTraining, Run],
    title: str,
    *,
    training: bool = False,
    along: str = "along the gradient",
) -> None:
    """Loss and gradient change along a direction, and β, as the paper plots them.

    Args:
        figure: Empty.
        results: Finished cells.
        title: Above all panels.
        training: Whether training curves come first.
        along: The direction, in words.
    """
    panels = list(figure.subplots(2, 2).flat if training else figure.subplots(1, 3))
    if training:
        curves(panels[0], results)
    left, middle, right = panels[-3:]
    bands(left, results, lambda look: look.landscape.loss_band, "range of the loss")
    bands(
        middle,
        results,
        lambda look: look.landscape.gradient_change_band,
        "range of gradient change",
    )
    lines(right, results, lambda look: look.landscape.beta, "effective β")
    names = [axes.get_ylabel() for axes in panels]
    handles = panels[0].get_legend_handles_labels()
    for axes, name in zip(panels, names, strict=True):
        axes.get_legend().remove()
        # Beside narrow panels, labels of neighbours would meet.
        axes.set_ylabel("")
        axes.set_title(name, fontsize=8)
        axes.tick_params(labelsize=6, which="both")
        axes.set_xlabel("step", fontsize=7)
    figure.legend(
        *handles,
        loc="outside lower center",
        ncols=5,
        fontsize=7,
        title=f"bands of loss and change: lowest to highest {along}, geometric means over seeds\n"
        f"bars: ±1 standard error{'; band of the training loss: range over seeds' * training}",
        title_fontsize=7,
    )
    figure.suptitle(f"{title}: landscape {along}", fontsize=8)


def changes_over_distance(
    axes: Axes, looks: Sequence[Look], norm: Normaliser, label: str, marker: str, dash: str
) -> None:
    """How much the gradient changes with the distance: each seed, and geometric means."""
    seeds = [
        [
            (distance, change)
            if distance > 0 and 0 < change < float("inf")
            else (float("nan"), float("nan"))
            for distance, change in zip(
                look.landscape.distances, look.landscape.gradient_changes or (), strict=False
            )
        ]
        for look in looks
    ]
    colour = COLOURS[norm]
    for points in seeds if len(seeds) > 1 else ():
        axes.plot(*zip(*points, strict=True), color=colour, linestyle=dash, alpha=0.35, lw=0.6)
    means = [
        [statistics.geometric_mean(values) for values in zip(*points, strict=True)]
        for points in zip(*seeds, strict=True)
    ]
    axes.plot(*zip(*means, strict=True), color=colour, marker=marker, linestyle=dash, label=label)


def histograms(
    figure: FigureBase, results: Mapping[ProbedTraining, Run], norms: Sequence[Normaliser]
) -> None:
    """Histograms of one unit of three layers, one above the other as training goes on."""
    layers = [a.layer for a in runs_of(results, norms[0])[0].looks[0].activations]
    panels = figure.subplots(len(layers), len(norms), squeeze=False)
    for column, norm in enumerate(norms):
        (run,) = runs_of(results, norm)
        for row, layer in enumerate(layers):
            axes = panels[row][column]
            _ridges(axes, run, layer, COLOURS[norm])
            if not row:
                axes.set_title(LABELS[norm], fontsize=8)
            if not column:
                axes.set_ylabel(f"{layer}\nstep", fontsize=7)
            else:
                axes.set_yticklabels([])
    figure.supxlabel("output of one unit; every histogram has the same height", fontsize=8)


def _ridges(axes: Axes, run: Run, layer: str, colour: str) -> None:
    for height, look in enumerate(run.looks):
        found = next(a for a in look.activations if a.layer == layer).histogram
        if found is None:
            raise ValueError(f"no histogram of {layer} was recorded at step {look.step}.")
        width = (found.high - found.low) / len(found.counts)
        edges = [found.low + place * width for place in range(len(found.counts) + 1)]
        tops = [height + 0.9 * count / max(found.counts) for count in found.counts]
        axes.stairs(tops, edges, baseline=height, fill=True, color=colour, alpha=0.35)
        axes.stairs(tops, edges, baseline=height, color=colour, linewidth=0.6)
    axes.set_yticks(range(len(run.looks)), [str(look.step) for look in run.looks])
    axes.tick_params(labelsize=6)
    axes.grid(visible=False)


def quantiles(
    figure: FigureBase, results: Mapping[ProbedTraining, Run], norms: Sequence[Normaliser]
) -> None:
    """Quantiles of one unit of three layers over training, of the first seed."""
    layers = [a.layer for a in runs_of(results, norms[0])[0].looks[0].activations]
    panels = figure.subplots(len(layers), len(norms), sharex=True, squeeze=False)
    for column, norm in enumerate(norms):
        for row, layer in enumerate(layers):
            axes = panels[row][column]
            distribution(axes, runs_of(results, norm)[0], layer, COLOURS[norm])
            if not row:
                axes.set_title(LABELS[norm], fontsize=8)
            if not column:
                axes.set_ylabel(layer, fontsize=7)
    figure.supxlabel(f"step; {_QUANTILES}", fontsize=7)
    figure.supylabel("output of one unit", fontsize=7)


def distribution(axes: Axes, run: Run, layer: str, colour: str) -> None:
    """5, 25, 50, 75 and 95 % of one unit of a layer over training."""
    steps = [look.step for look in run.looks]
    shown = [next(a for a in look.activations if a.layer == layer) for look in run.looks]
    quantiles = list(zip(*(a.quantiles for a in shown), strict=True))
    for inner, alpha in ((0, 0.15), (1, 0.3)):
        low, high = quantiles[inner], quantiles[-1 - inner]
        axes.fill_between(steps, low, high, color=colour, alpha=alpha, linewidth=0)
    axes.plot(steps, quantiles[2], color=colour, linewidth=1)
    axes.tick_params(labelsize=6)


def distributions_below(
    figure: FigureBase,
    results: Mapping[ProbedTraining, Run],
    norms: Sequence[Normaliser],
    top: int,
) -> list[Axes]:
    """A row of distributions of a middle layer, and empty panels above it, which are returned."""
    height = figure.add_gridspec(2, 1, height_ratios=(3, 2), hspace=0.35)
    upper, lower = height[0].subgridspec(1, top, wspace=0.3), height[1].subgridspec(1, len(norms))
    figure.supxlabel(f"below: {_QUANTILES}", fontsize=7)
    first: Axes | None = None
    for place, norm in enumerate(norms):
        run = runs_of(results, norm)[0]
        layers = [a.layer for a in run.looks[0].activations]
        layer = layers[len(layers) // 2]
        axes = figure.add_subplot(lower[place], sharey=first)
        distribution(axes, run, layer, COLOURS[norm])
        axes.set_title(f"one unit of {layer}, {LABELS[norm]}", fontsize=7)
        axes.set_xlabel("step", fontsize=7)
        if first is None:
            axes.set_ylabel("output of the unit", fontsize=7)
        first = first or axes
    return [figure.add_subplot(upper[place]) for place in range(top)]
