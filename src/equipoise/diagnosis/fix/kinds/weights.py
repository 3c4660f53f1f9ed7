"""Initial weights, multiplied by a number each."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from equipoise.diagnosis.fix.kinds.kind import Undo, UnsuitableRemedyError, kept
from equipoise.diagnosis.fix.kinds.starts import with_values
from equipoise.diagnosis.fix.remedy import Edit
from equipoise.instrument.recording.graph import Graph

if TYPE_CHECKING:
    from collections.abc import Mapping


def code(edit: Edit) -> tuple[str, ...]:
    """Lines that multiply them."""
    factors = ", ".join(f"{factor.name!r}: {factor.value!r}" for factor in edit.factors)
    return (
        "with torch.no_grad():",
        f"    for name, factor in {{{factors}}}.items():",
        "        model.get_parameter(name).mul_(factor)",
    )


def change_model(model: nn.Module, edit: Edit) -> Undo:
    """Multiply them."""
    tensors = _found(dict(model.named_parameters()), edit)
    undo = kept(list(tensors.values()))
    with torch.no_grad():
        for factor in edit.factors:
            tensors[factor.name].mul_(factor.value)
    return undo


def change_graph(graph: Graph, edit: Edit, model: nn.Module) -> Graph:
    """Multiply them in the trace."""
    tensors = _found(graph.parameters, edit)
    return with_values(
        graph,
        {f.name: tensors[f.name].detach() * f.value for f in edit.factors},
    )


def _found(parameters: Mapping[str, Tensor], edit: Edit) -> dict[str, Tensor]:
    missing = [factor.name for factor in edit.factors if factor.name not in parameters]
    if missing or not edit.factors:
        raise UnsuitableRemedyError(
            f"the model has no parameter {missing[0] if missing else ''!r}, which the remedy "
            "multiplies: it was made for a model of other names."
        )
    return {factor.name: parameters[factor.name] for factor in edit.factors}
