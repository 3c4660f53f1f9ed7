"""Summarise the race: means over seeds, and differences seed by seed."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

from equipoise.diagnosis.fix.race import Contender
from equipoise.diagnosis.fix.record import Arm
from equipoise.diagnosis.fix.runs import Run
from equipoise.diagnosis.short_training import NOT_TRAINED, mean_over_seeds
from equipoise.records.estimate import Estimate
from equipoise.training.record import Curve

_POINTS = 50


def arm_record(
    one: Contender,
    runs: Sequence[Run],
    predicted: float | None,
    measured: float | None,
    reason: str | None = None,
) -> Arm:
    """Summarise an arm by its judging runs, or by the longest that it finished."""
    judged = one.judged or _longest(runs)
    diverged = sum(run.history.diverged_at is not None for run in judged)
    curve, spread = (None, ()) if diverged or not judged else _mean_curve(judged)
    accuracies = [run.accuracy for run in judged]
    known = bool(judged) and not any(map(math.isnan, accuracies))
    return Arm(
        name=one.name,
        remedy=one.remedy,
        predicted=predicted,
        measured=measured,
        rate=math.nan if one.tuned is None or math.isinf(one.score) else one.rate,
        rates=() if one.tuned is None else one.tuned.scores,
        at_edge=one.tuned is not None and one.tuned.at_edge,
        rounds=one.rounds,
        loss=mean_over_seeds([run.loss for run in judged]) if judged else NOT_TRAINED,
        held_out=_held_out(judged),
        accuracy=mean_over_seeds(accuracies) if known else None,
        curve=curve,
        spread=spread,
        step_seconds=min((run.step_seconds for run in runs), default=math.nan),
        diverged=diverged,
        seeds=len(one.judged),
        reason=reason if judged or reason else "no time was left for it",
    )


def _held_out(runs: Sequence[Run]) -> Estimate:
    values = [run.held_out for run in runs]
    if not values or all(
        math.isnan(v) and r.history.diverged_at is None for v, r in zip(values, runs, strict=True)
    ):
        return NOT_TRAINED
    return mean_over_seeds([math.inf if math.isnan(value) else value for value in values])


def _longest(runs: Sequence[Run]) -> list[Run]:
    """The best of the longest runs."""
    if not runs:
        return []
    steps = max(run.steps for run in runs)
    return [min((run for run in runs if run.steps == steps), key=lambda run: run.score)]


def _mean_curve(runs: Sequence[Run]) -> tuple[Curve, tuple[float, ...]]:
    curves = [run.history.curve(_POINTS) for run in runs]
    columns = list(zip(*(curve.losses for curve in curves), strict=True))
    spread = tuple(statistics.stdev(column) if len(column) > 1 else 0.0 for column in columns)
    return Curve(curves[0].steps, tuple(map(statistics.fmean, columns))), spread
