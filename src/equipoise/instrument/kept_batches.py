"""Losses that leave their batch as it was, also of models that write to their inputs.

A model may scale its images in place, or put what it has embedded into the batch's dictionary. In
a training that does not matter, as the next batch is another one. A probe runs the model on one
batch again and again.
"""

from __future__ import annotations

import copy
from collections.abc import MutableMapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from equipoise.instrument.batches import tensors
from equipoise.instrument.types import LossFunction


@dataclass(frozen=True, slots=True)
class OnCopies:
    """A loss that is given a copy of the batch each time.

    Args:
        of: ``loss_fn(model, batch)``.

    Examples:
        >>> batch = torch.tensor([2.0])
        >>> float(OnCopies(lambda model, x: model(x.div_(2)))(nn.Identity(), batch)), batch
        (1.0, tensor([2.]))
    """

    of: LossFunction

    def __call__(self, model: nn.Module, batch: Any) -> Tensor:
        """Evaluate the loss on a copy."""
        return self.of(model, copied(batch))


class KeepingBatch:
    """A loss that leaves its batch as it was; copies are made only if it writes to them.

    The first evaluation is on a copy, which shows whether it does.

    Args:
        loss_fn: ``loss_fn(model, batch)``.

    Attributes:
        writes: Whether it writes to its batch; ``None`` before the first evaluation.
    """

    def __init__(self, loss_fn: LossFunction) -> None:
        self._loss_fn = loss_fn
        self.writes: bool | None = None

    def __call__(self, model: nn.Module, batch: Any) -> Tensor:
        """Evaluate the loss."""
        if self.writes is False:
            return self._loss_fn(model, batch)
        given = copied(batch)
        loss = self._loss_fn(model, given)
        self.writes = self.writes or _written_to(given, batch)
        return loss


def copied(batch: Any) -> Any:
    """The same containers with copies of the tensors, and of objects that can be cloned.

    Examples:
        >>> batch = {"x": torch.ones(2), "name": "a"}
        >>> again = copied(batch)
        >>> again["x"] is batch["x"], bool((again["x"] == batch["x"]).all()), again["name"]
        (False, True, 'a')
    """
    return pytree.tree_map(_copied, batch)


def _copied(leaf: Any) -> Any:
    if isinstance(leaf, Tensor):
        with torch.inference_mode(False), torch.no_grad():
            return leaf.clone().requires_grad_(leaf.requires_grad)
    if isinstance(leaf, MutableMapping):  # such as a tokenizer's
        again = copy.copy(leaf)
        again.update({key: copied(value) for key, value in leaf.items()})
        return again
    clone = getattr(leaf, "clone", None)  # graphs of PyTorch Geometric
    return clone() if callable(clone) and not isinstance(leaf, type) else leaf


def _written_to(given: Any, batch: Any) -> bool:
    """Whether a copy of a batch differs from it, after a model has seen the copy."""
    mine, others = tensors(given), tensors(batch)
    return (
        pytree.tree_structure(given) != pytree.tree_structure(batch)
        or len(mine) != len(others)
        or not all(_same(x, y) for x, y in zip(mine, others, strict=True))
    )


def _same(x: Tensor, y: Tensor) -> bool:
    if x.is_nested or x.is_meta or x.layout is not torch.strided:  # compared by no operation
        return x._version == 0
    if x.shape != y.shape or x.dtype != y.dtype:
        return False
    return torch.equal(x, y) or bool(((x == y) | (x.isnan() & y.isnan())).all())
