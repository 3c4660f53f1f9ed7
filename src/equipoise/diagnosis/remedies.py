"""Changes of the normalisers' parameters that theory recommends, tried on the model itself."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import nn

from equipoise.diagnosis.prediction.predict import Conditions, predicted_rate
from equipoise.diagnosis.record import Remedy
from equipoise.probes.gradient_growth import GradientGrowth
from equipoise.records.estimate import Estimate
from equipoise.theory.batch_norm.explosion import max_trainable_depth

# From mild to strong. γ below 1 makes a saturating activation more linear, β above 0 moves a
# rectifier off its kink; both are values that users set at initialisation.
_GAMMAS = (0.7, 0.5, 0.35, 0.25, 0.1)
_BETAS = (0.5, 1.0, 1.5, 2.0, 3.0)
# A change that buys less depth than this factor is not worth making, promised or measured.
BETTER = 1.25


@dataclass(frozen=True, slots=True, eq=False)
class _Candidate:
    knob: str
    value: float
    rate: Estimate

    @property
    def depth(self) -> float:
        return max_trainable_depth(self.rate)


def recommend(
    conditions: Conditions,
    depth: int,
    norms: Sequence[nn.Module],
    measure: Callable[[Callable[[], None]], GradientGrowth],
    today: Estimate,
) -> tuple[Remedy, ...]:
    """Find the mildest change of γ and of β with which ``depth`` layers train, and try it.

    Args:
        conditions: Those of the model's blocks.
        depth: Layers that shall train.
        norms: The normalisers that a change is made to.
        measure: Measures growth after calling a function that changes the model.
        today: Growth measured on the model as it is.
    """
    remedies = []
    for knob, values in (("beta", _BETAS), ("gamma", _GAMMAS)):
        if not all(isinstance(_parameter(norm, knob), torch.Tensor) for norm in norms):
            continue
        chosen = _mildest(conditions, knob, values, depth)
        if chosen is None:
            continue

        def change(chosen: _Candidate = chosen) -> None:
            _set(norms, chosen.knob, chosen.value)

        remedies.append(
            _remedy(chosen, measure(change).rate, today, conditions.architecture.normaliser)
        )
    return tuple(sorted(remedies, key=lambda r: (not r.verified, -r.predicted_depth)))


def _mildest(
    conditions: Conditions, knob: str, values: Sequence[float], depth: int
) -> _Candidate | None:
    """The first value that suffices, else the best one, if it is worth making."""
    today = max_trainable_depth(predicted_rate(conditions))
    best: _Candidate | None = None
    for value in values:
        changed = (
            replace(conditions, beta=value) if knob == "beta" else replace(conditions, gamma=value)
        )
        candidate = _Candidate(knob, value, predicted_rate(changed))
        if candidate.rate.stable is not False and candidate.depth > (
            best.depth if best else BETTER * today
        ):
            best = candidate
        if best is not None and best.depth >= depth:
            break
    return best


def _set(norms: Sequence[nn.Module], knob: str, value: float) -> None:
    with torch.no_grad():
        for norm in norms:
            parameter = _parameter(norm, knob)
            if isinstance(parameter, torch.Tensor):
                parameter.fill_(value)


def _parameter(norm: nn.Module, knob: str) -> object:
    """γ or β; RMS norm has no shift, and others may be built without."""
    return getattr(norm, "bias" if knob == "beta" else "weight", None)


def _remedy(
    chosen: _Candidate, measured: Estimate | None, today: Estimate, normaliser: str
) -> Remedy:
    attribute, word = ("bias", "shift β") if chosen.knob == "beta" else ("weight", "scale γ")
    verified = None
    if measured is not None:
        verified = max_trainable_depth(measured) >= BETTER * max_trainable_depth(today)
    return Remedy(
        change=f"start {normaliser}'s {word} at {chosen.value:g}",
        code=f"torch.nn.init.constant_(norm.{attribute}, {chosen.value:g})",
        predicted_rate=chosen.rate,
        predicted_depth=chosen.depth,
        measured_rate=measured,
        verified=verified,
    )
