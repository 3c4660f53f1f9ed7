"""Weights and buffers of several models in one stack, of which the models' tensors are views."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from itertools import chain

import torch
from torch import Tensor, nn


class Stack:
    """Each parameter and buffer of K models in one tensor ``[K, ...]``.

    Args:
        models: Of one architecture, without shared tensors.

    Attributes:
        members: Numbers of the models that are in the stack, in the order of its rows.
    """

    def __init__(self, models: Sequence[nn.Module]) -> None:
        self.members = list(range(len(models)))
        self._tensors = [_tensors(model) for model in models]
        self._own_memory: dict[int, list[Tensor]] = {}
        self._stacks = [
            torch.stack([tensor.detach() for tensor in tensors]).requires_grad_(
                tensors[0].requires_grad
            )
            for tensors in zip(*self._tensors, strict=True)
        ]
        self._parameters = len(list(models[0].parameters()))
        self._places = {id(tensor): i for i, tensor in enumerate(self._tensors[0])}

    def __len__(self) -> int:
        return len(self.members)

    def of(self, tensor: Tensor) -> Tensor:
        """The stack that a parameter or buffer of the first model belongs to."""
        return self._stacks[self._places[id(tensor)]]

    @property
    def trained(self) -> list[Tensor]:
        """Stacks of the parameters that have a gradient."""
        return [stacked for stacked in self.parameters if stacked.requires_grad]

    @property
    def parameters(self) -> list[Tensor]:
        """Stacks of all parameters, in the order in which a model names them."""
        return self._stacks[: self._parameters]

    def parameters_of(self, member: int) -> list[Tensor]:
        """A model's own parameters, in the same order."""
        return self._tensors[member][: self._parameters]

    @contextmanager
    def attached(self) -> Iterator[None]:
        """Make the models' tensors views of the stack inside the block.

        A model can then be evaluated at any time without copying. At the end the tensors get
        their own memory back, with the present values.
        """
        self._own_memory = {
            member: [tensor.data for tensor in self._tensors[member]] for member in self.members
        }
        try:
            self._attach()
            yield
        finally:
            for member in list(self._own_memory):
                self._detach(member)

    def drop(self, members: Collection[int]) -> list[int]:
        """Take models out with their present values, and give them their own memory back.

        Returns:
            The rows that stay.
        """
        rows = [row for row, member in enumerate(self.members) if member not in members]
        for member in members:
            self._detach(member)
        self.members = [self.members[row] for row in rows]
        self._stacks = [
            stacked.detach()[rows].requires_grad_(stacked.requires_grad)
            for stacked in self._stacks
        ]
        self._attach()
        return rows

    @contextmanager
    def unchanged(self) -> Iterator[None]:
        """Restore all values at the end of the block."""
        before = [stacked.detach().clone() for stacked in self._stacks]
        try:
            yield
        finally:
            for stacked, value in zip(self._stacks, before, strict=True):
                stacked.detach().copy_(value)

    def _attach(self) -> None:
        for row, member in enumerate(self.members):
            for tensor, stacked in zip(self._tensors[member], self._stacks, strict=True):
                tensor.data = stacked.detach()[row]

    def _detach(self, member: int) -> None:
        memory = self._own_memory.pop(member)
        for tensor, own in zip(self._tensors[member], memory, strict=True):
            own.copy_(tensor.detach())
            tensor.data = own


def _tensors(model: nn.Module) -> list[Tensor]:
    return [tensor for _, tensor in chain(model.named_parameters(), model.named_buffers())]
