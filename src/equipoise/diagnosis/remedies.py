"""Changes of batch norm's parameters that theory recommends, tried on the model itself."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal

import torch
from torch import Tensor, nn

from equipoise.diagnosis.record import Recommendation
from equipoise.instrument.normalisers import is_batch_norm
from equipoise.probes.record import GradientGrowth
from equipoise.records.estimate import Estimate

# A change that leaves more of the growth, in logarithms, is not worth making.
_LEFT = 0.8
# The mildest change that theory gives such a probability of training is taken.
_SURE = 0.95

Parameter = Literal["bias", "weight"]


@dataclass(frozen=True, slots=True)
class Outlook:
    """What theory says of a changed model.

    Args:
        rate: Growth of gradients per layer.
        probability: That it trains.
    """

    rate: Estimate
    probability: float


Predict = Callable[[Mapping[str, Tensor]], Outlook | None]

# What users would type, the mildest first: PyTorch starts β at 0 and γ at 1.
_STEPS: dict[Parameter, tuple[str, tuple[float, ...]]] = {
    "bias": ("shift β", (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0, 1.2, 1.5, 2.0)),
    "weight": ("scale γ", (0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3, 0.2, 0.15, 0.1, 0.07, 0.05)),
}


def recommend(
    model: nn.Module,
    predict: Predict,
    measure: Callable[[Callable[[], None]], GradientGrowth],
    today: Estimate,
    patience: float = math.inf,
) -> tuple[Recommendation, ...]:
    """Find the mildest change of β and of γ with which the model should train, and try it.

    Args:
        model: Its batch norms are those that are changed.
        predict: Growth per layer and probability of training with other values of parameters, by
            name; ``None`` if theory does not tell.
        measure: Measures growth after calling a function that changes the model.
        today: Growth measured on the unchanged model.
        patience: Seconds of processor time after which nothing further is predicted.

    Returns:
        At most one remedy per parameter: the mildest that suffices, or else the best one, if it
        is worth making. Verified ones come first.
    """
    ends = time.process_time() + patience
    predicted_today = predict({})
    if predicted_today is None:
        return ()
    remedies = []
    for parameter, (word, values) in _STEPS.items():
        tensors = _tensors(model, parameter)
        starts = {number for tensor in tensors.values() for number in tensor.tolist()}
        if len(starts) != 1:
            continue
        further = [v for v in values if (v > max(starts)) == (parameter == "bias")]
        found = _mildest(tensors, further, predict, ends)
        if found is None or not _is_better(found[1].rate, predicted_today.rate):
            continue
        value, predicted = found
        measured = measure(partial(_fill, list(tensors.values()), value)).rate
        remedies.append(
            Recommendation(
                normaliser="batch norm",
                parameter=parameter,
                value=value,
                predicted_rate=predicted.rate,
                predicted_probability=predicted.probability,
                measured_rate=measured,
                verified=None if measured is None else _is_better(measured, today),
                change=f"start batch norm's {word} at {value:g}",
                code=f"torch.nn.init.constant_(norm.{parameter}, {value:g})",
            )
        )
    return tuple(sorted(remedies, key=lambda r: (not r.verified, -r.predicted_probability)))


def _mildest(
    tensors: Mapping[str, Tensor], values: Sequence[float], predict: Predict, ends: float
) -> tuple[float, Outlook] | None:
    """The mildest value that suffices, if more of a change is better; else the best one seen.

    After the time ``ends`` it is the mildest one seen that suffices.
    """
    seen: dict[float, Outlook] = {}

    def suffices(index: int) -> bool:
        value = values[index]
        outlook = predict({name: torch.full_like(t, value) for name, t in tensors.items()})
        if outlook is not None:
            seen[value] = outlook
        return outlook is not None and outlook.probability >= _SURE

    low, high = 0, len(values)  # the first that suffices is in [low, high]
    while low < high and time.process_time() < ends:
        middle = (low + high) // 2
        if suffices(middle):
            high = middle
        else:
            low = middle + 1
    if high < len(values) and values[high] in seen:
        return values[high], seen[values[high]]
    return max(seen.items(), key=lambda pair: pair[1].probability, default=None)


def _is_better(changed: Estimate, today: Estimate) -> bool:
    """Whether gradients grow less, in the logarithm, by a fifth at least."""
    if not (changed.value > 0 and today.value > 0):
        return False
    return abs(math.log(changed.value)) <= _LEFT * abs(math.log(today.value))


def _tensors(model: nn.Module, parameter: Parameter) -> dict[str, Tensor]:
    """γ or β of every batch norm, by name; none if one of them has none."""
    found = {}
    for name, module in model.named_modules():
        if is_batch_norm(module):
            tensor = getattr(module, parameter, None)
            if not isinstance(tensor, Tensor):
                return {}
            found[f"{name}.{parameter}".lstrip(".")] = tensor
    return found


def _fill(tensors: Sequence[Tensor], value: float) -> None:
    with torch.no_grad():
        for tensor in tensors:
            tensor.fill_(value)
