"""Bands of loss and gradient change over a training, or along one step at its start."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Protocol

from equipoise.diagnosis.smoothness.record import Smoothness, SmoothnessArm, SmoothnessLook
from equipoise.records import wording
from equipoise.report.checkup.words.smoothness import plain, tried
from equipoise.report.svg import FIRST, INK, MUTED, SECOND, draw_svg, legend, log_scale, note

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_LOOKS = ((FIRST, "-", "o"), (SECOND, "--", "D"), (INK, "-.", "s"))
_FAINT, _PALE = 0.22, 0.45
_MARKER = 4.0
# So much room around one length, for ticks beside it.
_MARGIN = 3.0
# Of the horizontal axis, on each side.
_EDGE = 0.05
# An axis over more than this has room for powers of ten only.
_WIDE = 100.0


_Style = tuple[str, str, str]


class Along(Protocol):
    """A look, or a landscape."""

    @property
    def steps(self) -> tuple[float, ...]:
        """η, rising."""

    @property
    def losses(self) -> tuple[float, ...]:
        """At every step."""

    @property
    def gradient_changes(self) -> tuple[float, ...] | None:
        """At every step."""

    @property
    def gradient_norm(self) -> float:
        """Before the first."""


def smoothness_figure(found: Smoothness) -> str:
    """Draw one panel each for loss, gradient change and β over the steps of training.

    Returns:
        An ``<svg>`` element; of looks at the start alone, one of :func:`along_figure`. What has
        no finite logarithm is left out, and a note says so.
    """
    if not found.steps:
        return along_figure({arm.name: arm.runs[0].looks[0] for arm in tried(found)})
    arms = [arm for arm in tried(found) if arm.runs[0].looks]
    losses = [x for arm in arms for look in arm.runs[0].looks for x in look.loss_band]
    scaled = _log_suits(losses)

    def paint(figure: Figure) -> None:
        upper, middle, lower = figure.subplots(3, 1, sharex=True)
        for arm, style in zip(arms, _LOOKS, strict=False):
            _band(upper, arm, lambda look: look.loss_band, style, log=scaled)
            _band(middle, arm, lambda look: look.gradient_change_band, style)
            _lines(lower, arm, style)
        upper.set_ylabel("loss along\nthe step")
        middle.set_ylabel("gradient\nchange")
        lower.set_ylabel("smoothness β")
        lower.set_xlabel("step of training")
        for axes in (*([upper] if scaled else []), middle, lower):
            _log_scale(axes)
        figure.align_ylabels()
        legend(lower)
        note(figure, _omitted(losses, scaled), "loss", "that left the range of numbers")

    label = "Bands of loss and gradient change, and smoothness, over steps of training"
    return draw_svg("smoothness", label, 560, paint)


def along_figure(curves: Mapping[str, Along], name: str = "smoothness") -> str:
    """Draw loss and relative gradient change against the step.

    Args:
        curves: What to draw, by name.
        name: Of the figure, unique on its page.

    Returns:
        An ``<svg>`` element. What has no finite logarithm is left out, and a note says so.
    """
    losses = [loss for curve in curves.values() for loss in curve.losses]
    scaled = _log_suits(losses)

    def paint(figure: Figure) -> None:
        upper, lower = figure.subplots(2, 1, sharex=True)
        for (label, curve), style in zip(curves.items(), _LOOKS, strict=False):
            length = curve.gradient_norm or math.nan
            changes = [change / length for change in curve.gradient_changes or ()]
            _curve(upper, curve.steps, [_drawable(x, scaled) for x in curve.losses], style, label)
            _curve(lower, curve.steps, [_drawable(x) for x in changes], style)
        lower.axhline(1.0, color=MUTED, linestyle=(0, (4, 2.5)), linewidth=1.0)
        lower.set_yscale("log")
        least, most = lower.get_ylim()
        lower.set_ylim(min(least, 1 / _MARGIN), max(most, _MARGIN))
        upper.set_ylabel("loss")
        lower.set_ylabel("gradient change\nover its length")
        lower.set_xlabel("step η along the gradient")
        _log_steps(lower, [step for curve in curves.values() for step in curve.steps])
        for axes in (upper, lower) if scaled else (lower,):
            _log_scale(axes)
        figure.align_ylabels()
        if len(curves) > 1:
            legend(upper)
        note(figure, _omitted(losses, scaled), "loss", "that left the range of numbers")

    label = "Loss and gradient change over the gradient's length against the step"
    return draw_svg(name, label, 430, paint)


def _band(
    axes: Axes,
    arm: SmoothnessArm,
    pick: Callable[[SmoothnessLook], tuple[float, float]],
    style: _Style,
    *,
    log: bool = True,
) -> None:
    """Draw the first seed's band: a span over several would mix trainings."""
    colour, dashes, _ = style
    looks = arm.runs[0].looks
    x = [look.step for look in looks]
    low, high = ([_drawable(pick(look)[i], log) for look in looks] for i in (0, 1))
    axes.fill_between(x, low, high, color=colour, alpha=_FAINT, linewidth=0)
    for edge in (low, high):
        axes.plot(x, edge, color=colour, linestyle=dashes, linewidth=1.1)


def _lines(axes: Axes, arm: SmoothnessArm, style: _Style) -> None:
    """Draw every seed's β, the first one's with marks."""
    colour, dashes, marker = style
    for number, run in enumerate(arm.runs):
        axes.plot(
            [look.step for look in run.looks],
            [_drawable(look.beta) for look in run.looks],
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
    """Logarithmic where anything was drawn."""
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
    return wording.power_of_ten(round(math.log10(step))) if wide else plain(step)


def _log_suits(losses: Sequence[float]) -> bool:
    """Whether a log scale shows them: a user's own loss may be negative."""
    return not any(loss <= 0 for loss in losses)


def _omitted(losses: Sequence[float], log: bool) -> int:
    return sum(math.isnan(_drawable(loss, log)) for loss in losses)


def _drawable(value: float, log: bool = True) -> float:
    """A value that the scale can show, or a gap."""
    # Matplotlib's own arithmetic overflows near the ends of float range.
    return value if (value > 1e-250 or not log) and abs(value) < 1e250 else math.nan
