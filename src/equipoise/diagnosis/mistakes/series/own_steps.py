"""Models that are to predict the next step, and hardly see the present one."""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor

from equipoise.diagnosis.mistakes.series.series import (
    Series,
    compared_with,
    exchanged,
    outputs_by_step,
    predicted_series,
)
from equipoise.diagnosis.mistakes.traced_pass import TracedPass
from equipoise.instrument.batches import mapped
from equipoise.instrument.memory import pass_on_lack_of_memory
from equipoise.numerics.precision import widest
from equipoise.records import wording
from equipoise.records.finding import Finding

# Share of what all steps together change that one step changes at most. After 250 steps of Adam on
# Python's manual a GPT of four blocks without residuals (0.008) has learnt little more than how
# often characters occur, one of two blocks (0.07) nearly what a GPT (1.0) has; eight layers of
# LSTM have 0.2.
_LITTLE, _HARDLY = 0.05, 0.02


def of_own_steps(traced: TracedPass) -> list[Finding]:
    """Outputs that no single step changes, and all steps together do.

    Where whole-number targets are the inputs one step later, one step, and then all of them, are
    taken from other samples, in evaluation. Attention that is uniform as yet gives every step the
    mean of all steps before, and without residuals nothing else.

    Args:
        traced: The pass on a batch whose first axes are those of samples and steps, in either
            order. Each of three further passes may take its patience.
    """
    series = predicted_series(traced)
    if series is None or series.whole.is_floating_point():
        return []
    return traced.afterwards(partial(_by_exchange, series))


def _by_exchange(series: Series, traced: TracedPass) -> list[Finding]:
    at, axis = series.values.shape[1] // 2, int(series.steps_first)
    others = mapped(lambda x: x.roll(1, axis) if x is series.whole else x, traced.batch)
    try:
        outputs = outputs_by_step(traced, traced.batch, series, torch.clone)
        changes = [
            outputs_by_step(traced, batch, series, compared_with(outputs, _sizes))
            for batch in (exchanged(traced.batch, series, at), others)
        ]
    except Exception as error:  # a model that does not run in evaluation
        pass_on_lack_of_memory(error)
        return []
    shares = [_share(*three) for three in zip(outputs, *changes, strict=False)]
    share = max((one for one in shares if one is not None), default=1.0)
    if share >= _LITTLE:
        return []
    return [
        Finding(
            "critical" if share < _HARDLY else "warning",
            "Outputs hardly depend on their own step",
            f"With step {at} exchanged, no output changes by more than {wording.percent(share)} "
            "of what it changes by with all steps exchanged: all steps get nearly the same "
            "output, and the model hardly learns what follows from the present one.",
            "Add what goes into attention, and into each block, to what comes out: x = x + f(x).",
        )
    ]


def _sizes(differences: Tensor) -> Tensor:
    """Root mean squares for each step."""
    return differences.to(widest(differences.device)).square().mean((1, 2)).sqrt()


def _share(output: Tensor, one: Tensor | None, every: Tensor | None) -> float | None:
    """Of what outputs with steps first change by; None where there is nothing to compare."""
    if one is None or every is None or output.ndim < 3:
        return None
    if not (bool(one.isfinite().all()) and bool(every.isfinite().all() and (every > 0).any())):
        return None
    return float(torch.where(every > 0, one / every, 0.0).max())
