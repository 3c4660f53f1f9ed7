"""Sweeps of VGG19 as matrices of accuracies over the learning rate and β or ε."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from equipoise_papers.yang2019.vgg.scores import (
    PLACES,
    ROWS,
    SYMBOLS,
    Chosen,
    Kind,
    Parameter,
    Scores,
    guessing,
    moment,
    scores,
)
from equipoise_papers.yang2019.vgg.training import Accuracies, VGGTraining

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import FigureBase
    from matplotlib.image import AxesImage

# Rates, values of a parameter, and medians ``[value, rate]``.
Matrix = tuple[tuple[float, ...], tuple[float, ...], NDArray[np.float64]]


def matrix(found: Scores, parameter: Parameter) -> Matrix:
    """Median accuracies over rate and one parameter, best over the other one."""
    place = PLACES[parameter]
    rates = tuple(sorted({combination[0] for combination in found.accuracies}))
    values = tuple(sorted({combination[place] for combination in found.accuracies}))
    best = np.full((len(values), len(rates)), np.nan)
    for combination in found.accuracies:
        at = values.index(combination[place]), rates.index(combination[0])
        best[at] = np.fmax(best[at], found.median(combination))
    return rates, values, best


def draw(
    figure: FigureBase,
    results: Mapping[VGGTraining, Accuracies],
    title: str,
    chosen: Chosen,
) -> None:
    """Draw training and validation accuracy over rate and β, then over rate and ε.

    Args:
        figure: Empty.
        results: Finished cells.
        title: The figure's title.
        chosen: Whether a cell belongs to the matrices over a parameter.
    """
    cell = next(iter(results))
    places = figure.subplots(len(ROWS), len(cell.epochs), squeeze=False)
    found = [[_chosen(results, *row, chosen, epoch) for epoch in cell.epochs] for row in ROWS]
    # One colour scale for all matrices, from guessing.
    least = 100 * guessing(cell)
    most = max([least, *(np.nanmax(m[2]) for row in found for m in row if m is not None)])
    images = [
        _draw_matrix(axes, one, least, most)
        for row, matrices in zip(places, found, strict=True)
        for axes, one in zip(row, matrices, strict=True)
    ]
    for row, (parameter, kind) in zip(places, ROWS, strict=True):
        row[0].set_ylabel(f"{kind}\n{SYMBOLS[parameter]}", fontsize=7)
    for axes, epoch in zip(places[0], cell.epochs, strict=True):
        axes.set_title(f"after {moment(cell, epoch)}", fontsize=8)
    for axes in places[-1]:
        axes.set_xlabel("learning rate", fontsize=7)
    _colour_bar(figure, images, list(places.flat))
    figure.suptitle(title, fontsize=9)


def _chosen(
    results: Mapping[VGGTraining, Accuracies],
    parameter: Parameter,
    kind: Kind,
    chosen: Chosen,
    epoch: int,
) -> Matrix | None:
    belonging = {cell: record for cell, record in results.items() if chosen(parameter, cell)}
    return matrix(scores(belonging, kind, epoch), parameter) if belonging else None


def _draw_matrix(axes: Axes, one: Matrix | None, least: float, most: float) -> AxesImage | None:
    axes.set_axis_off()
    if one is None:
        return None
    rates, values, best = one
    axes.set_axis_on()
    axes.grid(visible=False)
    look: dict[str, Any] = {"cmap": "viridis", "vmin": least, "vmax": most}
    image = axes.imshow(best, origin="lower", aspect="auto", **look)
    axes.set_xticks(range(len(rates)), [f"{rate:g}" for rate in rates])
    axes.set_yticks(range(len(values)), [f"{value:g}" for value in values])
    axes.tick_params(labelsize=5.5, length=1.5)
    for (row, column), value in np.ndenumerate(best):
        if not math.isnan(value):
            colour = "white" if value < (least + most) / 2 else "black"
            axes.text(
                column, row, f"{value:.0f}", color=colour, fontsize=5, ha="center", va="center"
            )
    return image


def _colour_bar(
    figure: FigureBase, images: Sequence[AxesImage | None], places: Sequence[Axes]
) -> None:
    image = next((image for image in images if image is not None), None)
    if image is not None:
        bar = figure.colorbar(image, ax=places, location="bottom", shrink=0.6, aspect=50, pad=0.02)
        bar.set_label("accuracy in %, from that of guessing, or of divergence", fontsize=7)
        bar.ax.tick_params(labelsize=6)
