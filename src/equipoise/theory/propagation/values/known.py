"""Tensors that are no function of random features: known ones, and those yet to be finished."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Hashable
from dataclasses import dataclass

from torch import Tensor

from equipoise.theory.propagation.layout import Layout


@dataclass(frozen=True, slots=True, eq=False)
class Known:
    """A tensor without random features of its own, or one of weights.

    Args:
        value: The tensor.
        layout: Its axes, if they were followed.
        parameter: Name of the parameter from which alone it comes, if any.
        data: Whether it depends on the batch.
        others: Latents that it depends on, where the way to it was cut.
    """

    value: Tensor
    layout: Layout | None = None
    parameter: str | None = None
    data: bool = False
    others: frozenset[Hashable] = frozenset()

    @property
    def latents(self) -> frozenset[Hashable]:
        """As of :class:`Moments`."""
        return self.others


class Unfinished(ABC):
    """What is known of a tensor is how operations made it, until others finish it.

    Such as products of queries and keys.
    """

    __slots__ = ()

    @property
    @abstractmethod
    def latents(self) -> frozenset[Hashable]:
        """As of :class:`Moments`."""
