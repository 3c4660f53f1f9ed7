"""The variants that are compared: unchanged, without normalisers, and with a remedy."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial

import torch
from torch import nn

from equipoise.diagnosis.problem import Problem
from equipoise.diagnosis.record import Recommendation
from equipoise.diagnosis.short_training import UNCHANGED, Variant
from equipoise.instrument.copies import copied
from equipoise.instrument.normalisers import is_batch_norm
from equipoise.layers.convert import convert
from equipoise.layers.kinds import SOURCES, exchangeable_kind

Change = Callable[[nn.Module], nn.Module]

WITHOUT = "without normalisers"


def variants(model: nn.Module, fixes: Mapping[str, Change]) -> list[Variant]:
    """List the variants to compare.

    Args:
        model: Tells whether there are normalisers to leave out.
        fixes: Changes by name, each of which returns a changed copy.
    """
    found = [Variant(UNCHANGED)]
    if any(exchangeable_kind(module) for module in model.modules()):
        found.append(Variant(WITHOUT, _without_normalisers))
    return found + [Variant(f"with {name}", change) for name, change in fixes.items()]


def changed(variant: Variant, model: nn.Module, problem: Problem) -> nn.Module:
    """Change a model as a variant says, and run the result once.

    Raises:
        ValueError: If the model cannot be changed, or fails after the change.
    """
    if variant.name == UNCHANGED:
        return model
    try:
        result = variant.change_model(model)
    except Exception as error:  # a user's fix may raise anything
        raise ValueError(f"the model cannot be changed: {error}") from error
    problem.rehearse(result)
    return result


def fixes(remedies: Sequence[Recommendation]) -> dict[str, Change]:
    """Return the first verified remedy as a change by name, or nothing."""
    for remedy in remedies:
        if remedy.verified:
            change = partial(_start_at, parameter=remedy.parameter, value=remedy.value)
            return {remedy.change.removeprefix("start "): change}
    return {}


def _without_normalisers(model: nn.Module) -> nn.Module:
    conversion = convert(model, SOURCES, "none")
    if conversion.skipped:
        raise ValueError(str(conversion.skipped[0]))
    return conversion.model


def _start_at(model: nn.Module, *, parameter: str, value: float) -> nn.Module:
    result = copied(model)
    with torch.no_grad():
        for module in result.modules():
            values = getattr(module, parameter, None)
            if is_batch_norm(module) and isinstance(values, nn.Parameter):
                values.fill_(value)
    return result
