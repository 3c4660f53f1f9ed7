"""Another number of samples in each batch."""

from __future__ import annotations

from torch import nn

from equipoise.diagnosis.fix.kinds.kind import Undo, UnsuitableRemedyError
from equipoise.diagnosis.fix.remedy import Edit
from equipoise.diagnosis.fix.words import edit_in_words
from equipoise.instrument.recording.graph import Graph
from equipoise.theory.propagation.what_if.answer import Changes


def code(edit: Edit) -> tuple[str, ...]:
    """What to do to the loader; accumulation does not do it."""
    return (f"{_loader(edit)}  # accumulating gradients does not change batch norm's statistics",)


def change_model(model: nn.Module, edit: Edit) -> Undo:
    """A model has no batch size.

    Raises:
        UnsuitableRemedyError: Always.
    """
    raise UnsuitableRemedyError(
        f"{edit_in_words(edit)} are made by the loader, not by the model: {_loader(edit)}."
    )


def change_graph(graph: Graph, edit: Edit, model: nn.Module) -> Graph:
    """More samples of the same kind in the trace."""
    return Changes(batch_size=int(edit.value or graph.batch)).made_to(graph)


def _loader(edit: Edit) -> str:
    return f"loader = DataLoader(dataset, batch_size={edit.value:g})"
