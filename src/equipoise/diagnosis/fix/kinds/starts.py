"""Where the norms' shift β and scale γ start."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

import torch
from torch import Tensor, nn

from equipoise.diagnosis.fix.kinds.kind import Undo, UnsuitableRemedyError, kept
from equipoise.diagnosis.fix.remedy import Edit, KindName
from equipoise.diagnosis.fix.words import LETTERS
from equipoise.instrument.normalisers import is_normaliser
from equipoise.instrument.recording.graph import Graph

if TYPE_CHECKING:
    from collections.abc import Mapping

_NAMES = {"shift": "bias", "scale": "weight"}


def code(edit: Edit) -> tuple[str, ...]:
    """Lines that fill them."""
    name = _NAMES[edit.kind]
    return (
        "for module in model.modules():",
        "    if equipoise.instrument.normalisers.is_normaliser(module):",
        f'        if getattr(module, "{name}", None) is not None:',
        f"            nn.init.constant_(module.{name}, {edit.value!r})",
    )


def change_model(model: nn.Module, edit: Edit) -> Undo:
    """Fill them."""
    tensors = list(starts(model, edit.kind).values())
    if not tensors:
        raise UnsuitableRemedyError(
            f"no norm of the model has {LETTERS[edit.kind]} ({_NAMES[edit.kind]!r})."
        )
    restore = kept(tensors)
    with torch.no_grad():
        for tensor in tensors:
            tensor.fill_(cast(float, edit.value))
    return restore


def change_graph(graph: Graph, edit: Edit, model: nn.Module) -> Graph:
    """Fill them in the trace."""
    values = {
        name: torch.full_like(tensor.detach(), cast(float, edit.value))
        for name, tensor in starts(model, edit.kind).items()
    }
    return with_values(graph, values)


def with_values(graph: Graph, values: Mapping[str, Tensor]) -> Graph:
    """Set parameters of a trace; those that operations no longer take do not matter.

    Raises:
        UnsuitableRemedyError: If the trace takes none of them.
    """
    used = {name: value for name, value in values.items() if name in graph.parameters}
    if not used:
        raise UnsuitableRemedyError("no operation takes the parameters that are changed.")
    return graph.with_parameters(used)


def starts(model: nn.Module, kind: KindName) -> dict[str, Tensor]:
    """β or γ of every norm, by name."""
    attribute = _NAMES[kind]
    found = {}
    for name, module in model.named_modules():
        tensor = getattr(module, attribute, None)
        if is_normaliser(module) and isinstance(tensor, Tensor):
            found[f"{name}.{attribute}".lstrip(".")] = tensor
    return found
