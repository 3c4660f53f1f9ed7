"""Changes of the normalisers' parameters that theory recommends, tried on the model itself."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Literal

import torch
from torch import nn

from equipoise.diagnosis.prediction.predict import Network, predicted_rate
from equipoise.diagnosis.record import Remedy
from equipoise.probes.gradient_growth import GradientGrowth
from equipoise.records.estimate import Estimate
from equipoise.theory.batch_norm.explosion import max_trainable_depth
from equipoise.theory.batch_norm.setting import Setting
from equipoise.theory.batch_norm.tune import tune

# A change that buys less depth than this factor is not worth making, promised or measured.
BETTER = 1.25
# What theory must promise, because a real network falls a little short of it.
_PROMISED = 1.5
# Users type the value, so it has two digits, rounded away from the value at the start.
_DIGITS = 2

_PARAMETERS: dict[Literal["beta", "gamma"], tuple[Literal["bias", "weight"], str]] = {
    "beta": ("bias", "shift β"),
    "gamma": ("weight", "scale γ"),
}


def recommend(
    network: Network,
    depth: int,
    norms: Sequence[nn.Module],
    measure: Callable[[Callable[[], None]], GradientGrowth],
    today: Estimate,
) -> tuple[Remedy, ...]:
    """Find the mildest change of β and of γ with which ``depth`` layers train, and try it.

    Args:
        network: The theory's network for the model's blocks.
        depth: Layers that must be able to train.
        norms: The normalisers that a change is made to.
        measure: Measures growth after calling a function that changes the model.
        today: Growth measured on the unchanged model.

    Returns:
        At most one remedy per parameter: the mildest that suffices, or else the best one, if it
        is worth making. Verified ones come first.
    """
    remedies = []
    for knob, (parameter, word) in _PARAMETERS.items():
        if not all(isinstance(_tensor(norm, parameter), torch.Tensor) for norm in norms):
            continue
        value = _mildest(network, knob, depth)
        if value is None:
            continue
        changed = _with(network, knob, value)
        predicted = predicted_rate(changed)
        measured = measure(partial(_fill, norms, parameter, value)).rate
        normaliser = network.architecture.normaliser
        remedies.append(
            Remedy(
                normaliser=normaliser,
                parameter=parameter,
                value=value,
                predicted_rate=predicted,
                predicted_depth=max_trainable_depth(predicted),
                measured_rate=measured,
                verified=None if measured is None else _is_better(measured, today),
                change=f"start {normaliser}'s {word} at {value:g}",
                code=f"torch.nn.init.constant_(norm.{parameter}, {value:g})",
            )
        )
    return tuple(sorted(remedies, key=lambda r: (not r.verified, -r.predicted_depth)))


def _mildest(network: Network, knob: Literal["beta", "gamma"], depth: int) -> float | None:
    """The value nearest to today's that suffices, else the best one, if it is worth making."""
    setting, architecture = network

    def rate(setting: Setting) -> Estimate:
        return predicted_rate(Network(setting, architecture))

    today = rate(setting)
    limit = max_trainable_depth(today)
    if math.isinf(limit):
        return None  # in theory nothing is left to improve
    depth = max(depth, math.ceil(_PROMISED * limit))
    is_batch_norm = architecture.normaliser == "batch norm"
    tuning = tune(setting, depth=depth, knob=knob, rate=None if is_batch_norm else rate)
    value = _rounded_away(float(tuning.best), float(getattr(setting, knob)))
    return value if _is_better(predicted_rate(_with(network, knob, value)), today) else None


def _with(network: Network, knob: str, value: float) -> Network:
    change: dict[str, Any] = {knob: value}
    return network._replace(setting=replace(network.setting, **change))


def _rounded_away(value: float, start: float) -> float:
    """The nearest number of two digits that is no nearer to the start.

    Examples:
        >>> _rounded_away(0.4589, 0.0), _rounded_away(0.1389, 1.0), _rounded_away(1.0, 1.0)
        (0.46, 0.13, 1.0)
    """
    if value in (0.0, start):
        return value
    unit = 10.0 ** (math.floor(math.log10(abs(value))) + 1 - _DIGITS)
    rounded = math.ceil(value / unit) if value > start else math.floor(value / unit)
    return float(f"{rounded * unit:.{_DIGITS}g}")


def _is_better(changed: Estimate, today: Estimate) -> bool:
    return max_trainable_depth(changed) >= BETTER * max_trainable_depth(today)


def _fill(norms: Sequence[nn.Module], parameter: str, value: float) -> None:
    with torch.no_grad():
        for norm in norms:
            tensor = _tensor(norm, parameter)
            if isinstance(tensor, torch.Tensor):
                tensor.fill_(value)


def _tensor(norm: nn.Module, parameter: str) -> object:
    """γ or β, or None: RMS norm has no shift, and other layers may be built without."""
    return getattr(norm, parameter, None)
