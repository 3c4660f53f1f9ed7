"""Summarise side-by-side runs: means, spreads, and differences seed by seed."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

from scipy.special import stdtrit

from equipoise.diagnosis.short_training import LAST, NOT_TRAINED, mean_over_seeds
from equipoise.diagnosis.trial.record import Arm, Gain
from equipoise.training.rates import TunedRate
from equipoise.training.record import Curve, History

_POINTS = 50
_CONFIDENCE = 0.95


def arm_record(name: str, tuned: TunedRate, histories: Sequence[History]) -> Arm:
    """Summarise the runs of one variant."""
    finals = [history.mean_loss(LAST) for history in histories]
    diverged = sum(math.isinf(final) for final in finals)
    curve, spread = (None, ()) if diverged else _mean_curve(histories)
    return Arm(
        name=name,
        rate=tuned.rate,
        rates=tuned.scores,
        at_edge=tuned.at_edge,
        loss=mean_over_seeds(finals),
        curve=curve,
        spread=spread,
        step_seconds=_step_seconds(histories),
        diverged=diverged,
    )


def not_tried(name: str, reason: str) -> Arm:
    """The record of a variant that the model or the data do not allow."""
    return Arm(name, math.nan, (), False, NOT_TRAINED, None, (), math.nan, 0, reason)


def gain_record(name: str, plain: Sequence[History], changed: Sequence[History]) -> Gain:
    r"""Compare a variant with the unchanged model, on the same seeds.

    With d the differences of final losses over n seeds, it helps if
    :math:`\bar d + t_{0.95}\,s_d/\sqrt n < 0`, one-sided.
    """
    before = [history.mean_loss(LAST) for history in plain]
    after = [history.mean_loss(LAST) for history in changed]
    pairs = [(a, b) for a, b in zip(before, after, strict=True) if math.isfinite(a + b)]
    difference = mean_over_seeds([b - a for a, b in pairs])
    if any(map(math.isinf, after)):
        helps: bool | None = False
    elif any(map(math.isinf, before)):
        helps = True  # trains where the unchanged model diverges
    elif len(pairs) < 2:
        helps = None
    else:
        width = float(stdtrit(len(pairs) - 1, _CONFIDENCE)) * difference.error
        helps = difference.value + width < 0
    steps = _steps_to(before, changed)
    seconds = None
    if steps is not None:
        seconds = steps * _step_seconds(changed)
    return Gain(name, difference, steps, seconds, helps)


def _mean_curve(histories: Sequence[History]) -> tuple[Curve, tuple[float, ...]]:
    curves = [history.curve(_POINTS) for history in histories]
    columns = list(zip(*(curve.losses for curve in curves), strict=True))
    spread = tuple(statistics.stdev(column) if len(column) > 1 else 0.0 for column in columns)
    return Curve(curves[0].steps, tuple(map(statistics.fmean, columns))), spread


def _steps_to(before: Sequence[float], changed: Sequence[History]) -> int | None:
    """Steps after which the mean curve first reaches the unchanged model's final loss."""
    if any(math.isinf(final) for final in before) or any(
        h.diverged_at is not None for h in changed
    ):
        return None
    curve, _ = _mean_curve(changed)
    level = statistics.fmean(before)
    return next((s for s, x in zip(curve.steps, curve.losses, strict=True) if x <= level), None)


def _step_seconds(histories: Sequence[History]) -> float:
    """Time of a step in the quickest run: other work on the machine only adds time."""
    return min(history.seconds / len(history.losses) for history in histories)
