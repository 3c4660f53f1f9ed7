"""How well networks that train are told from others, how honest probabilities are, and depths."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from equipoise_papers.experiments.style import INK, MUTED, PALETTE
from equipoise_papers.trainability.calibrate import table
from equipoise_papers.trainability.evaluation import DepthLimit, Standing, depth_limits, standings
from equipoise_papers.trainability.outcome import Outcome

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import FigureBase

_BINS = 10


def draw_benchmark(figure: FigureBase, found: Sequence[Outcome]) -> None:
    """Draw three panels side by side: areas under the ROC curve, reliability, depth limits."""
    ranked, reliable, deep = figure.subplots(1, 3, width_ratios=(1.1, 1, 1))
    _areas(ranked, standings(found))
    _reliability(reliable, found)
    _depths(deep, depth_limits(found))


def draw_areas(figure: FigureBase, found: Sequence[Outcome]) -> None:
    """Draw the first of them alone."""
    _areas(figure.subplots(), standings(found))


def _areas(axes: Axes, found: Sequence[Standing]) -> None:
    ordered = sorted(found, key=lambda one: one.area)
    for place, one in enumerate(ordered):
        colour = PALETTE[0] if one.name.startswith("Equipoise") else MUTED
        axes.plot([one.low, one.high], [place, place], color=colour, linewidth=2.5)
        axes.plot(one.area, place, "o", color=colour)
    axes.axvline(0.5, color=INK, linewidth=0.8)
    axes.set_yticks(range(len(ordered)), [one.name for one in ordered])
    axes.set(title="Which networks train, families held out", xlabel="ROC AUC", xlim=(0.2, 1))
    axes.grid(visible=False, axis="y")


def _reliability(axes: Axes, found: Sequence[Outcome]) -> None:
    data = table(found)
    probability = data.held_out("both")
    place = np.minimum((probability * _BINS).astype(int), _BINS - 1)
    for b in np.unique(place):
        chosen = data.trained[place == b]
        share, error = chosen.mean(), math.sqrt(0.25 / len(chosen))
        x = probability[place == b].mean()
        axes.errorbar(x, share, yerr=error, color=PALETTE[0], marker="o")
        axes.annotate(str(len(chosen)), (x, share), (4, -10), textcoords="offset points", size=7)
    axes.plot([0, 1], [0, 1], color=INK, linewidth=0.8)
    axes.set(title="Probability and truth", xlabel="probability", ylabel="share that trained")
    axes.set(xlim=(-0.03, 1.03), ylim=(-0.05, 1.05))


def _depths(axes: Axes, found: Sequence[DepthLimit]) -> None:
    known = [d for d in found if 0 < d.observed < math.inf and 0 < d.predicted < math.inf]
    families = sorted({d.family for d in found})
    for number, family in enumerate(families):
        own = [d for d in known if d.family == family]
        if own:
            axes.plot(
                [d.observed for d in own],
                [d.predicted for d in own],
                "os^DvPX*"[number % 8],
                color=PALETTE[number % len(PALETTE)],
                label=family,
            )
    ends = [1.0, 200.0]
    axes.plot(ends, ends, color=INK, linewidth=0.8)
    axes.fill_between(
        ends, [e / 1.2 for e in ends], [1.2 * e for e in ends], color=MUTED, alpha=0.2
    )
    axes.set(xscale="log", yscale="log", title="Blocks at which designs stop training")
    axes.set(xlabel="observed", ylabel="predicted")
    axes.legend(loc="upper left", bbox_to_anchor=(1, 1))
