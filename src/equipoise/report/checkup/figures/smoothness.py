"""Figures of smoothness: ranges of loss and gradient change in training, or along one step."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from operator import attrgetter
from typing import TYPE_CHECKING, Protocol

from equipoise.diagnosis.smoothness.record import Smoothness, SmoothnessArm, SmoothnessMeasurement
from equipoise.records import wording
from equipoise.report.checkup.words.smoothness import tried
from equipoise.report.svg import (
    FIRST,
    INK,
    MUTED,
    SECOND,
    draw_svg,
    drawable,
    legend,
    log_scale,
    note,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_STYLES = ((FIRST, "-", "o"), (SECOND, "--", "D"), (INK, "-.", "s"))
_FAINT, _PALE = 0.22, 0.45
_MARKER = 4.0
# The axis of relative changes reaches at least this factor above and below 1, for its ticks.
_MARGIN = 3.0
# Part of the horizontal axis that stays free on each side.
_EDGE = 0.05
# An axis with a larger ratio has room for powers of ten only.
_WIDE = 100.0

_Style = tuple[str, str, str]


class Along(Protocol):
    """Loss and gradient along a step: a measurement of smoothness, or a landscape."""

    @property
    def steps(self) -> tuple[float, ...]:
        """η, rising."""

    @property
    def losses(self) -> tuple[float, ...]:
        """One for each step."""

    @property
    def gradient_changes(self) -> tuple[float, ...] | None:
        """One for each step."""

    @property
    def gradient_norm(self) -> float:
        """Length of the gradient before the first step."""


def smoothness_figure(found: Smoothness) -> str:
    """Draw one panel each for loss, gradient change and β over the steps of training.

    Returns:
        An ``<svg>`` element; if only the initialisation was measured, that of
        :func:`along_figure`. Values without a finite logarithm are left out, and a note says so.
    """
    if not found.steps:
        return along_figure({arm.name: arm.runs[0].measurements[0] for arm in tried(found)})
    arms = [arm for arm in tried(found) if arm.runs[0].measurements]
    losses = [end for arm in arms for m in arm.runs[0].measurements for end in m.loss_band]
    scaled = _log_suits(losses)

    def paint(figure: Figure) -> None:
        upper, middle, lower = figure.subplots(3, 1, sharex=True)
        for arm, style in zip(arms, _STYLES, strict=False):
            _band(upper, arm, attrgetter("loss_band"), style, log=scaled)
            _band(middle, arm, attrgetter("gradient_change_band"), style)
            _lines(lower, arm, style)
        upper.set_ylabel("loss along\nthe step")
        middle.set_ylabel("gradient\nchange")
        lower.set_ylabel("smoothness β")
        lower.set_xlabel("step of training")
        for axes in (*([upper] if scaled else []), middle, lower):
            _log_scale(axes)
        figure.align_ylabels()
        legend(lower)
        note(figure, _omitted(losses, scaled), "loss", "that the axis cannot show")

    label = "Ranges of loss and gradient change, and smoothness, over steps of training"
    return draw_svg("smoothness", label, 560, paint)


def along_figure(curves: Mapping[str, Along], name: str = "smoothness") -> str:
    """Draw loss and relative gradient change against the step.

    Args:
        curves: Measurements by name.
        name: Name of the figure, unique on its page.

    Returns:
        An ``<svg>`` element. Values without a finite logarithm are left out, and a note says so.
    """
    losses = [loss for curve in curves.values() for loss in curve.losses]
    scaled = _log_suits(losses)

    def paint(figure: Figure) -> None:
        upper, lower = figure.subplots(2, 1, sharex=True)
        for (label, curve), style in zip(curves.items(), _STYLES, strict=False):
            length = curve.gradient_norm or math.nan
            changes = [change / length for change in curve.gradient_changes or ()]
            _curve(upper, curve.steps, [_or_gap(x, scaled) for x in curve.losses], style, label)
            _curve(lower, curve.steps, [_or_gap(x) for x in changes], style)
        lower.axhline(1.0, color=MUTED, linestyle=(0, (4, 2.5)), linewidth=1.0)
        lower.set_yscale("log")
        least, most = lower.get_ylim()
        lower.set_ylim(min(least, 1 / _MARGIN), max(most, _MARGIN))
        upper.set_ylabel("loss")
        lower.set_ylabel("relative\ngradient change")
        lower.set_xlabel("step η along the gradient")
        _log_steps(lower, [step for curve in curves.values() for step in curve.steps])
        for axes in (upper, lower) if scaled else (lower,):
            _log_scale(axes)
        figure.align_ylabels()
        if len(curves) > 1:
            legend(upper)
        note(figure, _omitted(losses, scaled), "loss", "that the axis cannot show")

    label = "Loss and relative gradient change against the step"
    return draw_svg(name, label, 430, paint)


def _band(
    axes: Axes,
    arm: SmoothnessArm,
    pick: Callable[[SmoothnessMeasurement], tuple[float, float]],
    style: _Style,
    *,
    log: bool = True,
) -> None:
    """Draw the band of the first seed; a band over several would mix trainings."""
    colour, dashes, _ = style
    measurements = arm.runs[0].measurements
    x = [m.step for m in measurements]
    low, high = ([_or_gap(pick(m)[i], log) for m in measurements] for i in (0, 1))
    axes.fill_between(x, low, high, color=colour, alpha=_FAINT, linewidth=0)
    for edge in (low, high):
        axes.plot(x, edge, color=colour, linestyle=dashes, linewidth=1.1)


def _lines(axes: Axes, arm: SmoothnessArm, style: _Style) -> None:
    """Draw β of every seed, with markers for the first."""
    colour, dashes, marker = style
    for number, run in enumerate(arm.runs):
        axes.plot(
            [m.step for m in run.measurements],
            [_or_gap(m.beta) for m in run.measurements],
            color=colour,
            linestyle=dashes,
            linewidth=0.8 if number else 1.3,
            alpha=_PALE if number else None,
            marker="" if number else marker,
            markersize=_MARKER,
            label=None if number else arm.name,
        )


def _curve(
    axes: Axes, x: Sequence[float], y: Sequence[float], style: _Style, label: str | None = None
) -> None:
    colour, dashes, marker = style
    axes.plot(
        x,
        y,
        color=colour,
        linestyle=dashes,
        marker=marker,
        markersize=_MARKER,
        linewidth=1.1,
        label=label,
    )


def _log_scale(axes: Axes) -> None:
    """Make the vertical axis logarithmic, if anything was drawn."""
    if math.isfinite(axes.dataLim.minposy):
        log_scale(axes)


def _log_steps(axes: Axes, steps: Sequence[float]) -> None:
    """Make the horizontal axis logarithmic, with ticks that fit its range."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

    low, high = min(steps), max(steps)
    wide = high > _WIDE * low
    axes.set_xscale("log")
    edge = max((high / low) ** _EDGE, 1.1)
    axes.set_xlim(low / edge, high * edge)
    axes.xaxis.set_major_locator(LogLocator(subs=(1.0,) if wide else (1.0, 2.0, 5.0), numticks=7))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(FuncFormatter(lambda step, _: _tick(step, wide=wide)))


def _tick(step: float, *, wide: bool) -> str:
    if step <= 0:
        return ""
    return wording.power_of_ten(round(math.log10(step))) if wide else wording.plain(step)


def _log_suits(losses: Sequence[float]) -> bool:
    """Whether a log scale can show the losses: a user's own loss may be negative."""
    return not any(loss <= 0 for loss in losses)


def _omitted(losses: Sequence[float], log: bool) -> int:
    return sum(not drawable(loss, log=log) for loss in losses)


def _or_gap(value: float, log: bool = True) -> float:
    """The value, or NaN, which leaves a gap, if the scale cannot show it."""
    return value if drawable(value, log=log) else math.nan
