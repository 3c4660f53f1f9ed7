"""Draw runs of several normalisers side by side."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from equipoise_papers.experiments import style
from equipoise_papers.santurkar2018.grids import LABELS
from equipoise_papers.santurkar2018.summaries import looks_by_step, norms_of, runs_of, series
from equipoise_papers.santurkar2018.training import Look, Normaliser, ProbedTraining, Run

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import FigureBase

_COLOURS = {
    "none": style.INK,
    "batch": style.PALETTE[1],
    "noisy": style.PALETTE[0],
    "noise": style.MUTED,
    "l1": style.PALETTE[2],
    "l2": style.PALETTE[4],
    "linf": style.PALETTE[3],
}


def curves(axes: Axes, results: Mapping[ProbedTraining, Run], *, log: bool = True) -> None:
    """Training loss against steps; bands are the range over seeds."""
    for norm in norms_of(results):
        finished = [run for run in runs_of(results, norm) if run.diverged_at is None]
        if not finished:
            continue
        columns = list(zip(*(run.curve.losses for run in finished), strict=False))
        steps = finished[0].curve.steps[: len(columns)]
        mean = [sum(column) / len(column) for column in columns]
        axes.plot(steps, mean, color=_COLOURS[norm], label=LABELS[norm])
        low, high = list(map(min, columns)), list(map(max, columns))
        axes.fill_between(steps, low, high, color=_COLOURS[norm], alpha=0.12, linewidth=0)
    if log:
        axes.set_yscale("log")
    axes.set_xlabel("step")
    axes.set_ylabel("training loss")
    axes.legend(fontsize=7)


def lines(
    axes: Axes,
    results: Mapping[ProbedTraining, Run],
    value: Callable[[Look], float],
    name: str,
    *,
    log: bool = True,
) -> None:
    """A number per look, mean over seeds with bars of one standard error."""
    for norm in norms_of(results):
        steps, spreads = series(runs_of(results, norm), value)
        axes.errorbar(
            steps,
            [s.mean for s in spreads],
            yerr=[s.error if s.error == s.error else 0.0 for s in spreads],
            color=_COLOURS[norm],
            marker=".",
            elinewidth=0.8,
            label=LABELS[norm],
        )
    if log:
        axes.set_yscale("log")
    axes.set_xlabel("step")
    axes.set_ylabel(name)
    axes.legend(fontsize=7)


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
            steps, low, high, color=_COLOURS[norm], alpha=0.3, label=LABELS[norm], linewidth=0
        )
    axes.set_yscale("log")
    axes.set_xlabel("step")
    axes.set_ylabel(name)
    axes.legend(fontsize=7)


def landscapes(
    figure: FigureBase,
    results: Mapping[ProbedTraining, Run],
    title: str,
    *,
    training: bool = False,
) -> None:
    """The paper's plots: loss, gradient predictiveness, effective smoothness; training before."""
    if training:
        (first, left), (middle, right) = figure.subplots(2, 2)
        curves(first, results)
        first.get_legend().remove()
    else:
        left, middle, right = figure.subplots(1, 3)
    bands(left, results, lambda look: look.landscape.loss_band, "loss along the gradient")
    bands(
        middle,
        results,
        lambda look: look.landscape.gradient_change_band,
        "change of the gradient",
    )
    lines(right, results, lambda look: look.landscape.beta, "effective β")
    for repeated in (middle.get_legend(), right.get_legend()):
        if repeated is not None:
            repeated.remove()
    left.set_title(title, fontsize=9)


def histograms(
    figure: FigureBase, results: Mapping[ProbedTraining, Run], norms: Sequence[Normaliser]
) -> None:
    """Quantiles of one unit of three layers over training, of the first seed."""
    layers = [a.layer for a in runs_of(results, norms[0])[0].looks[0].activations]
    panels = figure.subplots(len(layers), len(norms), sharex=True, squeeze=False)
    for column, norm in enumerate(norms):
        steps = looks_by_step(runs_of(results, norm)[:1])
        for row, layer in enumerate(layers):
            axes = panels[row][column]
            shown = [
                next(a for a in looks[0].activations if a.layer == layer) for _, looks in steps
            ]
            x = [step for step, _ in steps]
            quantiles = list(zip(*(a.quantiles for a in shown), strict=True))
            for inner, alpha in ((0, 0.15), (1, 0.3)):
                axes.fill_between(
                    x,
                    quantiles[inner],
                    quantiles[-1 - inner],
                    color=_COLOURS[norm],
                    alpha=alpha,
                    linewidth=0,
                )
            axes.plot(x, quantiles[2], color=_COLOURS[norm], linewidth=1)
            if not row:
                axes.set_title(LABELS[norm], fontsize=8)
            if not column:
                axes.set_ylabel(layer, fontsize=7)
            axes.tick_params(labelsize=6)
    panels[-1][0].set_xlabel("step", fontsize=7)
