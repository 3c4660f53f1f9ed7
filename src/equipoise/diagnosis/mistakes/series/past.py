"""Models of language whose targets they have been given."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from torch import Tensor

from equipoise.diagnosis.mistakes.series.series import (
    LEAST_SAMPLES,
    LEAST_STEPS,
    ROUNDING,
    Series,
    is_by_step,
    is_next,
    is_slow,
    series_of,
    with_a_step_exchanged,
)
from equipoise.diagnosis.mistakes.traced_pass import TracedPass
from equipoise.records.finding import Finding
from equipoise.training.losses import IGNORED


def of_past(traced: TracedPass) -> list[Finding]:
    """Targets of a model of language that are no later than the steps that it has seen.

    Where whole-number targets are the inputs of the same step, or of the one before, one step of
    the input is changed, in evaluation: earlier outputs of a causal model stay as they are, and
    the output whose target the step is changes, as do later ones. Models that see all steps may be
    autoencoders, and so may those that treat each step alone; of both nothing is said. Nor is it
    where targets are the next inputs as well, as of a series of period 2, or where there are other
    targets for each step, as the steps after, beside a model of language from right to left.

    Args:
        traced: The pass on a batch whose first axes are those of samples and steps, in either
            order. Each of two further passes may take its patience.
    """
    found = []
    for series in series_of(traced.batch):
        targets = [
            target for target in traced.targets if target.ndim and is_by_step(target, series)
        ]
        for late in (0, 1):
            given = [
                _is_given(series, target, late) and not is_next(series, target)
                for target in targets
            ]
            if any(given) and all(given):
                found.append((series, late))
    return traced.afterwards(partial(_seen, found)) if found else []


def _seen(found: Sequence[tuple[Series, int]], traced: TracedPass) -> list[Finding]:
    """Of series that are targets so many steps late, whether the model sees them."""
    for series, late in found:
        if _is_causal(series, late, traced):
            return [_given(late, ":, " if not series.steps_first else "")]
    return []


def _given(late: int, samples: str) -> Finding:
    which = "the inputs one step before" if late else "the inputs of the same step"
    return Finding(
        "warning" if late else "critical",
        "Targets are steps that the model has been given",
        f"They are {which}, and outputs depend on these and on no later ones: the model has to "
        "copy, and learns nothing of what comes next.",
        f"Shift the targets by one step to the other side: logits = model(tokens[{samples}:-1]), "
        f"with tokens[{samples}1:] as targets.",
    )


def _is_given(series: Series, target: Tensor, late: int) -> bool:
    """Whether targets are what is in a series of [samples, steps], so many steps later."""
    x = series.values
    if x.ndim != 2 or x.dtype != target.dtype or not is_by_step(target, series):
        return False
    if x.is_floating_point():  # flows compare numbers with what is made of those before
        return False
    samples, length = x.shape
    if samples < LEAST_SAMPLES or length < LEAST_STEPS or is_slow(series):
        return False
    given = series.beside(target)[:, late:]
    counts = given != IGNORED
    if not bool(counts[:, length // 2].any()):
        return False
    return bool((given == x[:, : given.shape[1]])[counts].all())


def _is_causal(series: Series, late: int, traced: TracedPass) -> bool:
    """Whether a step changes the output whose target it is, and later ones, but no earlier."""
    at = series.values.shape[1] // 2
    for one in with_a_step_exchanged(traced, series, at, counted=at + late):
        if not bool(one.counted.any()):
            continue
        seen = one.changes.amax(1) / max(one.size, 1e-30) > ROUNDING
        if not seen[:at].any() and seen[at + late] and seen[at + 1 :].any():
            return True
    return False
