"""Figure of remedies: loss against steps and against seconds, for the arms that were judged."""

from __future__ import annotations

from typing import TYPE_CHECKING

from equipoise.diagnosis.fix.record import Arm, Fix
from equipoise.report.svg import FIRST, INK, SECOND, draw_svg, legend, log_scale, note

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_STYLES = ((INK, "-"), (FIRST, "-"), (SECOND, "--"))
_FAINT = 0.15
_LONGEST = 34


def fix_figure(fix: Fix) -> str:
    """Draw mean losses with bands of one standard deviation over seeds.

    Returns:
        An ``<svg>`` element with a panel over steps and one over seconds.
    """
    judged = [arm for arm in fix.arms if arm.seeds][: len(_STYLES)]
    drawn = [arm for arm in judged if arm.curve is not None]

    def paint(figure: Figure) -> None:
        upper, lower = figure.subplots(2, 1, sharey=True)
        for arm, (colour, dashes) in zip(judged, _STYLES, strict=False):
            _curve(upper, arm, 1.0, colour, dashes)
            _curve(lower, arm, arm.step_seconds, colour, dashes)
        if drawn and all(min(arm.curve.losses) > 0 for arm in drawn if arm.curve is not None):
            log_scale(upper)
        upper.set_xlabel("step")
        upper.xaxis.get_major_locator().set_params(integer=True)
        lower.set_xlabel("seconds")
        for axes in (upper, lower):
            axes.set_ylabel("training loss")
            axes.margins(x=0)
        legend(upper, columns=1)
        note(figure, len(judged) - len(drawn), "arm", "that diverged")

    return draw_svg("fix", "Training loss over steps and over seconds", 470, paint)


def _curve(axes: Axes, arm: Arm, per_step: float, colour: str, dashes: str) -> None:
    if arm.curve is None:
        return
    x = [step * per_step for step in arm.curve.steps]
    losses, spread = arm.curve.losses, arm.spread
    # On a log scale a band down to zero would be infinitely deep.
    low = [max(a - s, 0.1 * a) if a > 0 else a - s for a, s in zip(losses, spread, strict=True)]
    high = [a + s for a, s in zip(losses, spread, strict=True)]
    name = arm.name if len(arm.name) <= _LONGEST else f"{arm.name[: _LONGEST - 1]}…"
    axes.fill_between(x, low, high, color=colour, alpha=_FAINT, linewidth=0)
    axes.plot(x, losses, color=colour, linestyle=dashes, linewidth=1.3, label=name)
