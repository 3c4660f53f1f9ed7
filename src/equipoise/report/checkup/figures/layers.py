"""Figures of gradients, signals and condition numbers per layer.

Layers appear by number, not by name: names are long, and they are untrusted text.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from equipoise.diagnosis.record import LayerPrediction
from equipoise.probes.record import GradientGrowth, LayerConditioning
from equipoise.records.estimate import Estimate
from equipoise.report.svg import (
    FIRST,
    INK,
    SECOND,
    THIRD,
    draw_svg,
    drawable,
    legend,
    log_scale,
    note,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


def gradient_figure(
    growth: GradientGrowth, predictions: Sequence[LayerPrediction | None] = ()
) -> str:
    """Draw squared gradient norms per layer on a log scale.

    Args:
        growth: Measured gradients.
        predictions: What theory predicts at each of the layers, if it does.

    Returns:
        An ``<svg>`` element. Values without a logarithm are left out, and a note says so.
    """

    def paint(figure: Figure) -> None:
        paint_gradients(figure, growth, predictions)

    return draw_svg("gradients", "Squared gradient norm per layer, log scale", 290, paint)


def paint_gradients(
    figure: Figure, growth: GradientGrowth, predictions: Sequence[LayerPrediction | None] = ()
) -> None:
    """Draw squared gradient norms per layer into a figure."""
    gradients = [layer.gradient for layer in growth.layers]
    weights = [layer.weight_gradient for layer in growth.layers]
    axes = figure.subplots()
    points = _scatter(axes, gradients, "pre-activations ∂E/∂h", FIRST, marker="o")
    _scatter(axes, weights, "weights ∂E/∂W", SECOND, marker="D", faint=True)
    _predicted_line(axes, [None if one is None else one.gradient for one in predictions])
    log_scale(axes)
    _layer_axis(axes, len(gradients))
    axes.set_ylabel("squared gradient norm")
    legend(axes)
    omitted = len(gradients) - len(points)
    note(figure, omitted, "layer", "without a finite, positive gradient")


def forward_figure(growth: GradientGrowth) -> str:
    """Draw the second moment and the correlation of pre-activations per layer.

    Returns:
        An ``<svg>`` element with one panel above the other.
    """
    moments = [layer.second_moment for layer in growth.layers]
    correlations = [layer.correlation for layer in growth.layers]

    def paint(figure: Figure) -> None:
        upper, lower = figure.subplots(2, 1, sharex=True)
        wide = _ratio([moment.value for moment in moments]) > 30
        points = _scatter(upper, moments, "", FIRST, marker="o", positive=wide)
        if wide:
            log_scale(upper)
        elif points:
            upper.set_ylim(0, 1.15 * max(value for _, value in points))
        upper.set_ylabel("second\nmoment q")
        # A correlation is at most 1, except for rounding; larger values are failures.
        possible = [_bounded(correlation, 1.05) for correlation in correlations]
        drawn = _scatter(lower, possible, "", THIRD, marker="s", positive=False)
        lowest = min((value for _, value in drawn), default=0.0)
        lower.set_ylim(-1.05 if lowest < -0.05 else -0.05, 1.05)
        lower.set_ylabel("correlation c")
        figure.align_ylabels()
        _layer_axis(lower, len(moments))
        omitted = 2 * len(moments) - len(points) - len(drawn)
        note(figure, omitted, "value", "that the axes cannot show")

    return draw_svg("forward", "Second moment and correlation per layer", 310, paint)


def conditioning_figure(conditioning: Sequence[LayerConditioning]) -> str:
    """Draw the condition numbers of each measured layer's inputs on a log scale.

    Returns:
        An ``<svg>`` element. Infinite condition numbers are left out, and a note says so.
    """
    layers = [layer for layer in conditioning if layer.skipped is None]

    def paint(figure: Figure) -> None:
        axes = figure.subplots()
        series = [
            ("raw", [layer.raw for layer in layers], SECOND, "D"),
            ("centred", [layer.centred for layer in layers], FIRST, "o"),
            ("centred, scaled", [layer.scaled for layer in layers], THIRD, "s"),
        ]
        drawn = 0
        for label, values, colour, marker in series:
            exact = [Estimate(value, 0.0, "measured") for value in values]
            drawn += len(_scatter(axes, exact, label, colour, marker=marker))
        log_scale(axes)
        _layer_axis(axes, len(layers))
        axes.set_ylabel("condition number")
        legend(axes, columns=3)
        note(figure, 3 * len(layers) - drawn, "value", "without a finite logarithm")

    return draw_svg("conditioning", "Condition numbers per layer, log scale", 290, paint)


def _scatter(
    axes: Axes,
    estimates: Sequence[Estimate | None],
    label: str,
    colour: str,
    *,
    marker: str,
    positive: bool = True,
    faint: bool = False,
) -> list[tuple[int, float]]:
    """Draw the values that the scale can show, and return them with their layers, from 1."""
    points = [
        (index, estimate.value, _bar(estimate, positive))
        for index, estimate in enumerate(estimates, start=1)
        if estimate is not None and drawable(estimate.value, log=positive)
    ]
    if not points:
        return []
    # A line may cross a layer that has no such quantity, but not one whose value is not finite.
    gaps = [
        (index, math.nan, (0.0, 0.0))
        for index, estimate in enumerate(estimates, start=1)
        if estimate is not None and not drawable(estimate.value, log=positive)
    ]
    shown = sorted(points + gaps)
    size = min(5.0, max(1.6, 150 / len(estimates)))
    axes.errorbar(
        [index for index, _, _ in shown],
        [value for _, value, _ in shown],
        yerr=[[down for _, _, (down, _) in shown], [up for _, _, (_, up) in shown]]
        if any(map(any, (bar for _, _, bar in shown)))
        else None,
        label=label,
        color=colour,
        marker=marker,
        markersize=0.7 * size if faint else size,
        markerfacecolor="none" if faint else colour,
        markeredgewidth=0.8,
        linestyle="-",
        linewidth=0.6 if faint else 0.9,
        elinewidth=1.0,
        alpha=0.9 if faint else None,
    )
    return [(index, value) for index, value, _ in points]


def _bar(estimate: Estimate, positive: bool) -> tuple[float, float]:
    """The lengths of the error bar below and above the value."""
    error = abs(estimate.error)
    if not math.isfinite(error):
        return 0.0, 0.0
    # On a log scale a bar down to zero would be infinitely long: draw a decade instead.
    return (min(error, 0.9 * estimate.value) if positive else error), error


def _predicted_line(axes: Axes, predicted: Sequence[Estimate | None]) -> None:
    values = [
        one.value if one is not None and drawable(one.value) else math.nan for one in predicted
    ]
    if any(map(math.isfinite, values)):
        axes.plot(
            range(1, len(values) + 1),
            values,
            color=INK,
            linestyle=(0, (4, 2.5)),
            linewidth=1.3,
            label="predicted",
            zorder=3,
        )


def _layer_axis(axes: Axes, layers: int) -> None:
    from matplotlib.ticker import MaxNLocator

    axes.set_xlim(0.5 - 0.01 * layers, layers + 0.5 + 0.01 * layers)
    axes.xaxis.set_major_locator(MaxNLocator(nbins=7, integer=True, min_n_ticks=1))
    axes.set_xlabel("layer, from input to output")


def _bounded(estimate: Estimate, limit: float) -> Estimate:
    return estimate if abs(estimate.value) <= limit else Estimate(math.nan, math.nan, "")


def _ratio(values: Sequence[float]) -> float:
    shown = [value for value in values if drawable(value)]
    return max(shown) / min(shown) if shown else 1.0
