"""The model as it is, without its normalisers, and with a candidate fix."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import nn

from equipoise.diagnosis.problem import Problem
from equipoise.diagnosis.record import Remedy
from equipoise.layers.convert import convert
from equipoise.layers.kinds import SOURCES, exchangeable_kind

Change = Callable[[nn.Module], nn.Module]

AS_IT_IS, WITHOUT = "as it is", "without its normalisers"


@dataclass(frozen=True, slots=True)
class Way:
    """How an arm differs from the model as it is.

    Args:
        name: What is changed, in words.
        change: Returns a changed copy of a model.
    """

    name: str
    change: Change

    def applied(self, model: nn.Module, problem: Problem) -> nn.Module:
        """Change a model, and run the changed one once.

        Raises:
            ValueError: If the model cannot be changed, or fails once it is.
        """
        if self.name == AS_IT_IS:
            return model
        try:
            changed = self.change(model)
        except Exception as error:  # whatever users' code raises
            raise ValueError(f"the model cannot be changed: {error}") from error
        problem.rehearse(changed)
        return changed


def ways(model: nn.Module, fixes: Mapping[str, Change]) -> list[Way]:
    """List what to compare.

    Args:
        model: Tells whether there are normalisers to leave out.
        fixes: Changes by name, each of which returns a changed copy.
    """
    found = [Way(AS_IT_IS, lambda model: model)]
    if any(exchangeable_kind(module) for module in model.modules()):
        found.append(Way(WITHOUT, _without_normalisers))
    return found + [Way(f"with {name}", change) for name, change in fixes.items()]


def fixes(remedies: Sequence[Remedy]) -> dict[str, Change]:
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
    changed = copy.deepcopy(model)
    with torch.no_grad():
        for module in changed.modules():
            values = getattr(module, parameter, None)
            if exchangeable_kind(module) and isinstance(values, nn.Parameter):
                values.fill_(value)
    return changed
