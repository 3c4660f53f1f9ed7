"""Models that see the steps that they are to predict."""

from __future__ import annotations

from functools import partial

from torch import nn

from equipoise.diagnosis.mistakes.series.routes import enters_twice, is_summed_up
from equipoise.diagnosis.mistakes.series.series import (
    ROUNDING,
    Exchange,
    Series,
    is_by_step,
    is_next,
    others,
    predicted_series,
    with_a_step_exchanged,
)
from equipoise.diagnosis.mistakes.traced_pass import TracedPass
from equipoise.records import wording
from equipoise.records.finding import Finding

# Norms that may average over steps, and leave a trace of later ones in earlier ones.
_OVER_STEPS = (nn.GroupNorm, nn.modules.instancenorm._InstanceNorm)


def of_future(traced: TracedPass) -> list[Finding]:
    """Outputs that change with the very step of the input that is their target.

    Where targets are the inputs one step later, the input is changed at one step, and outputs
    before it that the loss depends on are compared, in evaluation. Nothing is said where more than
    one tensor of the batch holds the targets, as of models that copy a sequence from one to
    another, where the sequence goes into the model in two forms or through a summary, as in
    autoencoders whose decoder is given the steps before, where there are other targets for each
    step, as the steps before, where targets are moved around a circle, as by a wave, or where
    outputs have no axis of the steps.

    Args:
        traced: The pass on a batch whose first axes are those of samples and steps, in either
            order. Each of two further passes may take its patience.
    """
    targets = traced.targets
    series = predicted_series(traced)
    if series is None:
        return []
    if any(is_by_step(x, series) and not is_next(series, x) for x in targets if x.ndim):
        return []
    if enters_twice(series, traced) or is_summed_up(series, traced):
        return []
    at = series.values.shape[1] // 2
    step = series.values[:, at]
    if bool((others(step) == step).all()):
        return []
    return traced.afterwards(partial(_by_exchange, series, at))


def _by_exchange(series: Series, at: int, traced: TracedPass) -> list[Finding]:
    looked_at = with_a_step_exchanged(traced, series, at, counted=at - 1)
    change = min((_change(at - 1, one) for one in looked_at), default=0.0)
    if change <= ROUNDING:
        return []
    return [
        Finding(
            "warning"
            if any(isinstance(m, _OVER_STEPS) for m in traced.model.modules())
            else "critical",
            "The model sees the steps that it is to predict",
            f"Targets are the inputs one step later. With the inputs of step {at} exchanged, "
            f"outputs for step {at - 1}, whose targets they are, change by "
            f"{wording.percent(change)} of the largest: what is there can be copied. In use, "
            "where the next step is not known, the model will be worse than its loss says.",
            "Look for attention without a causal mask, or with one that is turned around or fills "
            "scores with 0 in place of -inf, a softmax over another axis than that of the keys, "
            "convolutions padded on both sides, norms over steps, recurrent layers in two "
            "directions, and a view or reshape where axes should be exchanged.",
        )
    ]


def _change(step: int, found: Exchange) -> float:
    """By how much outputs for a step change that the loss depends on, over the largest output."""
    changes = found.changes[step][found.counted]
    return float(changes.max()) / found.size if found.size > 0 and changes.numel() else 0.0
