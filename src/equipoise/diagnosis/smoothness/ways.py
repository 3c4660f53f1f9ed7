"""The model as it is, without its normalisers, and with a candidate fix."""

from __future__ import annotations

import copy
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import nn

from equipoise.diagnosis import prepare
from equipoise.diagnosis.record import Remedy
from equipoise.layers.convert import convert
from equipoise.layers.normalisers import KINDS
from equipoise.training.losses import LossFunction

Change = Callable[[nn.Module], nn.Module]

AS_IT_IS, WITHOUT = "as it is", "without its normalisers"
_NORMALISERS = tuple(name for name, kind in KINDS.items() if kind.classes)
# The form of `Remedy.code`: a remedy of a stored report can be tried as well as a fresh one.
_CODE = re.compile(r"torch\.nn\.init\.constant_\(norm\.(weight|bias), (\S+)\)")


@dataclass(frozen=True, slots=True)
class Way:
    """How an arm differs from the model as it is.

    Args:
        name: What is done.
        change: Returns the changed model, and leaves the one that it is given as it is.
    """

    name: str
    change: Change

    def applied(self, model: nn.Module, batch: prepare.Batch, loss: LossFunction) -> nn.Module:
        """Change a model, and run the outcome once.

        Raises:
            ValueError: If the model cannot be changed, or fails once it is.
        """
        if self.name == AS_IT_IS:
            return model
        try:
            changed = self.change(model)
        except Exception as error:  # whatever users' code raises
            raise ValueError(f"the model cannot be changed: {error}") from error
        prepare.rehearse(changed, batch, loss, "the data")
        return changed


def ways(model: nn.Module, fixes: Mapping[str, Change]) -> list[Way]:
    """List what to compare.

    Args:
        model: Any; it tells whether there are normalisers to leave out.
        fixes: Changes by name, each of which returns a changed copy.
    """
    found = [Way(AS_IT_IS, lambda model: model)]
    kinds = [m for m in model.modules() if _is_normaliser(m)]
    if kinds:
        found.append(Way(WITHOUT, _without))
    return found + [Way(f"with {name}", change) for name, change in fixes.items()]


def fixes(remedies: Sequence[Remedy]) -> dict[str, Change]:
    """Return the first verified remedy as a change by name, or nothing."""
    for remedy in remedies:
        code = _CODE.fullmatch(remedy.code or "")
        if remedy.verified and code is not None:
            name = remedy.change.removeprefix("start ")
            return {name: partial(_start_at, attribute=code[1], value=float(code[2]))}
    return {}


def _without(model: nn.Module) -> nn.Module:
    conversion = convert(model, _NORMALISERS, "none")
    if conversion.skipped:
        raise ValueError(str(conversion.skipped[0]))
    return conversion.model


def _start_at(model: nn.Module, *, attribute: str, value: float) -> nn.Module:
    changed = copy.deepcopy(model)
    with torch.no_grad():
        for module in changed.modules():
            parameter = getattr(module, attribute, None)
            if _is_normaliser(module) and isinstance(parameter, nn.Parameter):
                parameter.fill_(value)
    return changed


def _is_normaliser(module: nn.Module) -> bool:
    return any(type(module) in kind.classes for kind in KINDS.values())
