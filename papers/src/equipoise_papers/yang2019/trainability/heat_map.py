"""Test accuracy over a parameter and depth, with the predicted and the found boundary."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from equipoise.report import wording
from equipoise_papers.experiments import style
from equipoise_papers.yang2019.trainability.boundary.edge import (
    PAPER_FACTOR,
    Column,
    edge,
    fitted_factor,
)
from equipoise_papers.yang2019.trainability.forecast import Forecast
from equipoise_papers.yang2019.trainability.line import Line

Forecasts = Sequence[tuple[float, Forecast]]

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import FigureBase

# From guessing among ten classes to no errors.
COLOURS = (0.1, 1.0)
_FOUND = style.PALETTE[1]


def draw(
    figure: FigureBase,
    columns: Sequence[Column],
    line: Line,
    *,
    title: str,
    label: str,
    logarithmic: bool,
    forecast: Forecasts,
    note: str,
    colours: tuple[float, float] = COLOURS,
) -> None:
    """Draw a panel.

    Args:
        figure: Empty.
        columns: Columns of trained networks; there may be none yet.
        line: Positions and predictions, rising.
        title: The panel's title.
        label: Label of the horizontal axis.
        logarithmic: Whether the horizontal axis is logarithmic, to base 2.
        forecast: Positions and depths up to which networks should train, rising.
        note: Text below the panel, about the learning rates shown.
        colours: Accuracies at the ends of the colour scale.
    """
    axes = figure.subplots()
    axes.grid(visible=False)
    if columns:
        _colour(figure, axes, columns, logarithmic, colours)
        _limits(axes, columns, logarithmic)
    _predicted(axes, line, 1.0, (0, (5, 2)), r"predicted, $16\,\xi$")
    _forecast(axes, forecast)
    _boundary(axes, columns, line)
    if logarithmic:
        axes.set_xscale("log", base=2)
        axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
    axes.set_yscale("log", base=2)
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
    if columns:
        axes.set_yticks(columns[0].depths, minor=False)
    axes.set_xlabel(label)
    axes.set_ylabel("depth (hidden layers)")
    axes.set_title(title)
    if axes.get_legend_handles_labels()[0]:
        axes.legend(
            loc="upper center",
            bbox_to_anchor=(0.5, -0.16),
            ncols=2,
            fontsize=7.5,
            columnspacing=1.2,
            handlelength=4.0,  # of the dashes of a line more than one
            title=note if columns else None,
            title_fontsize=7.5,
        )


def _colour(
    figure: FigureBase,
    axes: Axes,
    columns: Sequence[Column],
    logarithmic: bool,
    limits: tuple[float, float],
) -> None:
    """Draw one rectangle per network, around its position; white where there is no record."""
    depths = sorted({depth for column in columns for depth in column.depths})
    means = np.full((len(depths), len(columns)), np.nan)
    for i, column in enumerate(columns):
        for depth, mean in zip(column.depths, column.means, strict=True):
            means[depths.index(depth), i] = mean
    x = _borders([column.position for column in columns], logarithmic=logarithmic)
    y = _borders(depths, logarithmic=True)
    colours = axes.pcolormesh(x, y, means, cmap="viridis", vmin=limits[0], vmax=limits[1])
    figure.colorbar(colours, ax=axes, label="test accuracy", pad=0.02)


def _limits(axes: Axes, columns: Sequence[Column], logarithmic: bool) -> None:
    """Limit the axes to the coloured rectangles."""
    x = _borders([column.position for column in columns], logarithmic=logarithmic)
    y = _borders(sorted({d for column in columns for d in column.depths}), logarithmic=True)
    axes.set_xlim(x[0], x[-1])
    axes.set_ylim(y[0], y[-1])


def _predicted(axes: Axes, line: Line, factor: float, dashes: Any, label: str) -> None:
    """Draw in white as the source does, with a dark rim that is visible on white too."""
    from matplotlib.patheffects import Normal, Stroke

    # Growing and vanishing gradients are two branches, which no line connects.
    for grows in (True, False):
        branch = [(at, factor * p.depth) for at, p in line if (p.rate.value > 1) == grows]
        if branch:
            axes.plot(
                *zip(*branch, strict=True),
                color="white",
                linestyle=dashes,
                linewidth=1.8,
                path_effects=[Stroke(linewidth=3.2, foreground=style.INK), Normal()],
                label=label,
            )
            label = "_nolegend_"


def _forecast(axes: Axes, forecast: Forecasts) -> None:
    """Draw depths at which the library's verdict is one half, with their intervals."""
    known = [np.isfinite(f.depth) and f.depth > 0 for _, f in forecast]
    if any(known):
        # Where every depth trains there is no point, and the line is broken.
        depths, low, high = (
            np.where(known, [getattr(f, name) for _, f in forecast], np.nan)
            for name in ("depth", "low", "high")
        )
        ends = np.where(known, [depths - low, high - depths], 0.0)
        axes.errorbar(
            [place for place, _ in forecast],
            depths,
            yerr=np.clip(np.nan_to_num(ends, posinf=1e6), 0, 1e6),
            color=style.PALETTE[3],
            marker="D",
            markeredgecolor="white",
            linewidth=1.4,
            elinewidth=1.0,
            capsize=2,
            zorder=3,
            label="calibrated verdict, one half",
        )


def _boundary(axes: Axes, columns: Sequence[Column], line: Line) -> None:
    """Draw the measured boundaries, with the range over seeds, and the line fitted to them."""
    edges = [edge(column) for column in columns]
    factor = fitted_factor(edges)
    if np.isfinite(factor):
        label = rf"fitted, ${wording.number(factor)}\,\xi$"
        _predicted(axes, line, factor / PAPER_FACTOR, (0, (1, 1.6)), label)
    if any(e.inside for e in edges):
        # Nan interrupts the line at columns whose boundary was not seen.
        depths = np.array([e.depth if e.inside else np.nan for e in edges])
        seeds = np.array([(min(e.seeds), max(e.seeds)) for e in edges])
        axes.errorbar(
            [e.position for e in edges],
            depths,
            yerr=np.maximum(0, (depths - seeds[:, 0], seeds[:, 1] - depths)),
            color=_FOUND,
            marker="o",
            markeredgecolor="white",
            linewidth=1.6,
            elinewidth=1.4,
            capsize=3,
            zorder=4,
            label="found, range of seeds",
        )
    beyond = [(e.position, e.depth) for e in edges if e.beyond]
    if beyond:
        look: dict[str, Any] = {"color": _FOUND, "markeredgecolor": "white", "zorder": 4}
        axes.plot(*zip(*beyond, strict=True), "^", label="deeper than was tried", **look)


def _borders(centres: Sequence[float], *, logarithmic: bool) -> np.ndarray[Any, Any]:
    """Borders half-way between rising centres, and as far outside the outermost ones."""
    values = np.log(centres) if logarithmic else np.asarray(centres, dtype=float)
    if len(values) == 1:
        inner = np.array([values[0] - 0.5, values[0] + 0.5])
    else:
        middle = [(a + b) / 2 for a, b in pairwise(values)]
        inner = np.array([2 * values[0] - middle[0], *middle, 2 * values[-1] - middle[-1]])
    return np.exp(inner) if logarithmic else inner
