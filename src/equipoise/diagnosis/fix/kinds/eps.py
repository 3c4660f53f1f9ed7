"""What norms add to the variance."""

from __future__ import annotations

from torch import nn

from equipoise.diagnosis.fix.kinds.kind import Undo, UnsuitableRemedyError
from equipoise.diagnosis.fix.remedy import Edit
from equipoise.instrument.normalisers import is_normaliser
from equipoise.instrument.recording.graph import Graph
from equipoise.theory.propagation.what_if.answer import Changes


def code(edit: Edit) -> tuple[str, ...]:
    """Lines that set it."""
    return (
        "for module in model.modules():",
        "    if equipoise.instrument.normalisers.is_normaliser(module):",
        f"        module.eps = {edit.value!r}",
    )


def change_model(model: nn.Module, edit: Edit) -> Undo:
    """Set it."""
    found = norms(model)
    if not found:
        raise UnsuitableRemedyError("the model has no norm with an ε.")
    before = [module.eps for module in found]
    for module in found:
        module.eps = edit.value  # type: ignore[assignment]  # not declared by nn.Module

    def undo() -> None:
        for module, value in zip(found, before, strict=True):
            module.eps = value

    return undo


def change_graph(graph: Graph, edit: Edit, model: nn.Module) -> Graph:
    """Set it in the trace."""
    return Changes(eps=edit.value).made_to(graph)


def norms(model: nn.Module) -> list[nn.Module]:
    """Norms that have an ε of their own."""
    return [
        module
        for module in model.modules()
        if is_normaliser(module) and isinstance(getattr(module, "eps", None), float)
    ]
