"""Figure of a trial: loss against steps and against seconds, for every variant."""

from __future__ import annotations

from typing import TYPE_CHECKING

from equipoise.diagnosis.trial.record import Arm, Trial
from equipoise.report.svg import FIRST, INK, SECOND, THIRD, draw_svg, legend, log_scale, note

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_STYLES = ((INK, "-"), (SECOND, "--"), (FIRST, "-"), (THIRD, "-."))
_FAINT = 0.15


def trial_figure(trial: Trial) -> str:
    """Draw mean losses with bands of one standard deviation over seeds.

    Returns:
        An ``<svg>`` element with a panel over steps and one over seconds.
    """
    drawn = [arm for arm in trial.arms if arm.curve is not None]

    def paint(figure: Figure) -> None:
        upper, lower = figure.subplots(2, 1, sharey=True)
        for arm, (colour, dashes) in zip(trial.arms, _STYLES, strict=False):
            _curve(upper, arm, 1.0, colour, dashes)
            _curve(lower, arm, arm.step_seconds, colour, dashes)
        log_scale(upper)
        upper.set_xlabel("step")
        lower.set_xlabel("seconds")
        for axes in (upper, lower):
            axes.set_ylabel("training loss")
            axes.margins(x=0)
        legend(upper)
        note(figure, len(trial.arms) - len(drawn), "variant", "that diverged or was not tried")

    return draw_svg("trial", "Training loss over steps and over seconds, log scale", 430, paint)


def _curve(axes: Axes, arm: Arm, per_step: float, colour: str, dashes: str) -> None:
    if arm.curve is None:
        return
    x = [step * per_step for step in arm.curve.steps]
    losses, spread = arm.curve.losses, arm.spread
    # On a log scale a band down to zero would be infinitely deep.
    low = [max(a - s, 0.1 * a) for a, s in zip(losses, spread, strict=True)]
    high = [a + s for a, s in zip(losses, spread, strict=True)]
    axes.fill_between(x, low, high, color=colour, alpha=_FAINT, linewidth=0)
    axes.plot(x, losses, color=colour, linestyle=dashes, linewidth=1.3, label=arm.name)
