"""Figures as SVG text that takes its colours from the page, and so suits light and dark.

Layers appear by number, never by name: names are long, and they are untrusted text.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from equipoise.records import Estimate, GradientGrowth, LayerConditioning
from equipoise.report import wording

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Matplotlib draws in these colours; the page's variables, with fallbacks for a lone SVG, take
# their place. They are not round numbers, so that no real colour is mistaken for one.
_INK, _MUTED, _GRID = "#0a0b01", "#0a0b02", "#0a0b03"
_FIRST, _SECOND, _THIRD = "#0a0b04", "#0a0b05", "#0a0b06"
_COLOURS = {
    _INK: "currentColor",
    _MUTED: "var(--figure-muted, #6b7280)",
    _GRID: "var(--figure-grid, #d1d5db)",
    _FIRST: "var(--figure-first, #1d4ed8)",
    _SECOND: "var(--figure-second, #b45309)",
    _THIRD: "var(--figure-third, #0f766e)",
}

# 380 points across: on a phone's 340 pixels, letters of 12 points are still 11 pixels high.
_WIDTH = 380.0
_STYLE: dict[str, Any] = {
    "svg.fonttype": "none",
    "svg.hashsalt": "equipoise",
    "text.parse_math": False,
    "font.family": "DejaVu Sans",
    "font.size": 12,
    "axes.labelsize": 12,
    "axes.labelcolor": _INK,
    "axes.edgecolor": _MUTED,
    "axes.linewidth": 0.8,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": _GRID,
    "grid.linewidth": 0.7,
    "text.color": _INK,
    "xtick.color": _MUTED,
    "ytick.color": _MUTED,
    "xtick.labelcolor": _INK,
    "ytick.labelcolor": _INK,
    "xtick.labelsize": 11,
    "ytick.labelsize": 11,
    "xtick.minor.size": 0,
    "ytick.minor.size": 0,
    "legend.frameon": False,
    "legend.fontsize": 11,
    "legend.handlelength": 1.6,
    "legend.columnspacing": 1.2,
    "legend.borderaxespad": 0.0,
}


def gradient_figure(
    growth: GradientGrowth,
    predicted_rate: Estimate | None = None,
    predicted_steps: Sequence[float] = (),
) -> str:
    """Draw squared gradient norms per layer on a log scale.

    Args:
        growth: Measured gradients.
        predicted_rate: Growth per layer from theory. It fixes a slope only, so its line is
            drawn through the mean of the measured logarithms.
        predicted_steps: Growth from each layer to the one before it, where it is not the same
            everywhere; one number fewer than layers.

    Returns:
        An ``<svg>`` element. Values without a logarithm are left out, and a note says so.
    """
    gradients = [layer.gradient for layer in growth.layers]
    weights = [layer.weight_gradient for layer in growth.layers]

    def paint(figure: Figure) -> None:
        axes = figure.subplots()
        points = _scatter(axes, gradients, "pre-activations ∂E/∂h", _FIRST, marker="o")
        _scatter(axes, weights, "weights ∂E/∂W", _SECOND, marker="D", faint=True)
        if predicted_rate is not None:
            steps = predicted_steps or [predicted_rate.value] * (len(gradients) - 1)
            label = "predicted" if predicted_steps else "predicted slope"
            label = f"{label} {wording.factor(predicted_rate.value)} per layer"
            _predicted_line(axes, points, steps, label)
        _log_scale(axes)
        _layer_axis(axes, len(gradients))
        axes.set_ylabel("squared gradient norm")
        _legend(axes)
        omitted = len(gradients) - len(points)
        _note(figure, omitted, "layer", "without a finite, positive gradient")

    return _svg("gradients", "Squared gradient norm per layer, log scale", 290, paint)


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
        points = _scatter(upper, moments, "", _FIRST, marker="o", positive=wide)
        if wide:
            _log_scale(upper)
        elif points:
            upper.set_ylim(0, 1.15 * max(value for _, value in points))
        upper.set_ylabel("second\nmoment q")
        # A correlation is at most 1; rounding may exceed it a little, a failure much.
        possible = [_bounded(correlation, 1.05) for correlation in correlations]
        drawn = _scatter(lower, possible, "", _THIRD, marker="s", positive=False)
        lowest = min((value for _, value in drawn), default=0.0)
        lower.set_ylim(-1.05 if lowest < -0.05 else -0.05, 1.05)
        lower.set_ylabel("correlation c")
        figure.align_ylabels()
        _layer_axis(lower, len(moments))
        omitted = 2 * len(moments) - len(points) - len(drawn)
        _note(figure, omitted, "value", "outside of what the axes can show")

    return _svg("forward", "Second moment and correlation per layer", 310, paint)


def conditioning_figure(conditioning: Sequence[LayerConditioning]) -> str:
    """Draw the condition numbers of each measured layer's inputs on a log scale.

    Returns:
        An ``<svg>`` element. Infinite condition numbers are left out, and a note says so.
    """
    layers = [layer for layer in conditioning if layer.skipped is None]

    def paint(figure: Figure) -> None:
        axes = figure.subplots()
        series = [
            ("raw", [layer.raw for layer in layers], _SECOND, "D"),
            ("centred", [layer.centred for layer in layers], _FIRST, "o"),
            ("centred, scaled", [layer.scaled for layer in layers], _THIRD, "s"),
        ]
        drawn = 0
        for label, values, colour, marker in series:
            exact = [Estimate(value, 0.0, "measured") for value in values]
            drawn += len(_scatter(axes, exact, label, colour, marker=marker))
        _log_scale(axes)
        _layer_axis(axes, len(layers))
        axes.set_ylabel("condition number")
        _legend(axes, columns=3)
        _note(figure, 3 * len(layers) - drawn, "value", "without a finite logarithm")

    return _svg("conditioning", "Condition numbers per layer, log scale", 290, paint)


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
    """Draw what the scale can show and return it, layers counted from 1."""
    points = [
        (index, estimate.value, _bar(estimate, positive))
        for index, estimate in enumerate(estimates, start=1)
        if estimate is not None and _drawable(estimate.value, positive)
    ]
    if not points:
        return []
    # A line may bridge a layer that has no such quantity, but not one whose value failed.
    gaps = [
        (index, math.nan, (0.0, 0.0))
        for index, estimate in enumerate(estimates, start=1)
        if estimate is not None and not _drawable(estimate.value, positive)
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
    """Return the error bar's two lengths."""
    error = abs(estimate.error)
    if not math.isfinite(error):
        return 0.0, 0.0
    # On a log scale a bar that reaches zero would be infinitely long: a decade stands for it.
    return (min(error, 0.9 * estimate.value) if positive else error), error


def _predicted_line(
    axes: Axes, points: Sequence[tuple[int, float]], steps: Sequence[float], label: str
) -> None:
    if not points or not all(math.isfinite(step) and step > 0 for step in steps):
        return
    profile = [0.0]
    for step in steps:
        profile.append(profile[-1] - math.log(step))
    anchor = sum(math.log(value) - profile[index - 1] for index, value in points) / len(points)
    logarithms = [anchor + value for value in profile]
    # Far outside float range a line says nothing that its absence does not.
    if max(map(abs, logarithms)) > 600:
        return
    axes.plot(
        range(1, len(profile) + 1),
        [math.exp(logarithm) for logarithm in logarithms],
        color=_INK,
        linestyle=(0, (4, 2.5)),
        linewidth=1.3,
        label=label,
        zorder=3,
    )


def _log_scale(axes: Axes) -> None:
    from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

    axes.set_yscale("log")
    low, high = axes.get_ylim()
    decades = math.log10(high / low) if low > 0 else 1.0
    subs = (1.0,) if decades > 2 else (1.0, 2.0, 5.0) if decades > 0.6 else tuple(range(1, 10))
    axes.yaxis.set_major_locator(LogLocator(subs=subs, numticks=7))
    axes.yaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: _tick(value)))


def _tick(value: float) -> str:
    if value <= 0:
        return ""
    power = math.log10(value)
    if 0.01 <= value < 10_000:
        return f"{value:g}"
    if abs(power - round(power)) < 1e-6:
        return wording.power_of_ten(round(power))
    return wording.number(value, 1)


def _layer_axis(axes: Axes, layers: int) -> None:
    from matplotlib.ticker import MaxNLocator

    axes.set_xlim(0.5 - 0.01 * layers, layers + 0.5 + 0.01 * layers)
    axes.xaxis.set_major_locator(MaxNLocator(nbins=7, integer=True, min_n_ticks=1))
    axes.set_xlabel("layer, from input to output")


def _legend(axes: Axes, columns: int = 2) -> None:
    handles, labels = axes.get_legend_handles_labels()
    if handles:
        # Columns in the order of drawing; a plain line has no error bars and would come first.
        order = sorted(range(len(labels)), key=lambda i: labels[i].startswith("predicted"))
        axes.figure.legend(
            [handles[i] for i in order],
            [labels[i] for i in order],
            loc="outside upper left",
            ncols=columns,
        )
    else:
        axes.text(0.5, 0.5, "nothing to draw", transform=axes.transAxes, ha="center", va="center")


def _note(figure: Figure, omitted: int, noun: str, why: str) -> None:
    if omitted:
        text = f"Not drawn: {wording.count(omitted, noun)} {why}."
        figure.supxlabel(text, x=0.02, ha="left", fontsize=10.5, color=_INK)


def _bounded(estimate: Estimate, limit: float) -> Estimate:
    return estimate if abs(estimate.value) <= limit else Estimate(math.nan, math.nan, "")


def _ratio(values: Sequence[float]) -> float:
    drawable = [value for value in values if _drawable(value, positive=True)]
    return max(drawable) / min(drawable) if drawable else 1.0


def _drawable(value: float, positive: bool) -> bool:
    # Matplotlib's own arithmetic overflows near the ends of float range.
    return math.isfinite(value) and (1e-250 < value < 1e250 if positive else abs(value) < 1e250)


def _svg(name: str, label: str, height: float, paint: Callable[[Figure], None]) -> str:
    """Draw a figure and make it part of a page."""
    import io

    from matplotlib import rc_context, rcParamsDefault
    from matplotlib.figure import Figure

    target = io.StringIO()
    # The user's own matplotlib style must not reach the report: its tests could not see it.
    style: Any = _neutral(rcParamsDefault) | _STYLE
    with rc_context(style):
        figure = Figure(figsize=(_WIDTH / 72, height / 72), layout="constrained")
        figure.patch.set_visible(False)
        paint(figure)
        for axes in figure.axes:
            axes.patch.set_visible(False)
        figure.savefig(target, format="svg", metadata={"Date": None})
    return _inline(target.getvalue(), name, label)


def _neutral(defaults: Any) -> dict[str, Any]:
    # Backend settings are no style, and touching them would start one.
    ours = ("axes.", "figure.", "font.", "grid.", "legend.", "lines.", "savefig.", "svg.")
    more = ("text.", "xtick.", "ytick.", "errorbar.", "path.", "patch.", "mathtext.")
    return {key: value for key, value in defaults.items() if key.startswith(ours + more)}


def _inline(svg: str, name: str, label: str) -> str:
    """Turn a stand-alone SVG into an element that shares a page with others."""
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>|<!--.*?-->", "", svg, flags=re.DOTALL)
    # Matplotlib's style sheet selects `*`: inside HTML it would restyle the whole page.
    svg = re.sub(r"<style[^>]*>.*?</style>", "", svg, flags=re.DOTALL)
    svg = re.sub(r"\bid=\"", f'id="{name}-', svg)
    svg = re.sub(r"\burl\(#", f"url(#{name}-", svg)
    svg = re.sub(r"href=\"#", f'href="#{name}-', svg)
    svg = re.sub(r"'DejaVu Sans'[^;\"]*", "var(--figure-font, sans-serif)", svg)
    for sentinel, colour in _COLOURS.items():
        svg = svg.replace(sentinel, colour)
    view = re.search(r'viewBox="[^"]*"', svg)
    assert view is not None
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink" '
        f'{view.group()} role="img" aria-label="{label}" '
        f'stroke-linejoin="round" stroke-linecap="butt" class="figure">'
    )
    return re.sub(r"\n\s*", "\n", head + svg[svg.index(">") + 1 :]).strip()
