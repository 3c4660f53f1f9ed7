"""What every kind of edit offers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, TypeAlias

import torch
from torch import nn

from equipoise.diagnosis.fix.remedy import Edit
from equipoise.instrument.recording.graph import Graph

Undo: TypeAlias = Callable[[], None]


class UnsuitableRemedyError(ValueError):
    """A model has nothing that the edit changes, or something that it cannot change."""


class Kind(Protocol):
    """One kind of edit: a module with these functions.

    Each edit has one meaning and three forms: of a model, of its traced graph, and of code. Its
    words are in :mod:`equipoise.diagnosis.fix.words`: reports need them, and no torch.
    """

    def code(self, edit: Edit) -> tuple[str, ...]:
        """Lines that do it to ``model``, and to ``optimizer``, with torch, nn and equipoise."""

    def change_model(self, model: nn.Module, edit: Edit) -> Undo:
        """Change a model in place.

        Returns:
            What restores it, bit for bit.

        Raises:
            UnsuitableRemedyError: If the edit does not fit; the model is then as it was.
        """

    def change_graph(self, graph: Graph, edit: Edit, model: nn.Module) -> Graph:
        """Change a traced pass of a model likewise.

        Args:
            graph: The pass.
            edit: The edit.
            model: The model that was traced, unchanged.

        Raises:
            ValueError: If theory does not know what the edit does.
        """


def kept(tensors: list[torch.Tensor]) -> Undo:
    """Keep the values of tensors, and return what writes them back."""
    values = [tensor.detach().clone() for tensor in tensors]

    def restore() -> None:
        with torch.no_grad():
            for tensor, value in zip(tensors, values, strict=True):
                tensor.copy_(value)

    return restore
