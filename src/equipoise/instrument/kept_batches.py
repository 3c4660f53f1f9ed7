"""Losses that leave their batch as it was, also of models that write to their inputs.

A model may scale its images in place, mark padding in its targets, or put what it has embedded
into the batch's dictionary. In a training that does not matter, as the next batch is another one.
A probe runs the model on one batch again and again, and the batch is the user's.
"""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable
from dataclasses import dataclass, fields, is_dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from equipoise.instrument.checkpoints import differentiable_checkpoints
from equipoise.instrument.criteria import refuse_criterion
from equipoise.instrument.types import LossFunction

# Without tensors, or no part of the data.
_LEFT_ALONE = (str, bytes, int, float, complex, type(None), type, nn.Module)


@dataclass(frozen=True, slots=True)
class OnCopies:
    """A loss that is given a copy of the batch each time.

    Whether a model writes to its batch may depend on the batch, on noise or on its weights, and a
    copy is cheap beside a pass.

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
        with differentiable_checkpoints():
            return self.of(model, copied(batch))


def on_copies(loss_fn: LossFunction) -> OnCopies:
    """A loss that leaves its batch as it was.

    Raises:
        TypeError: If it takes (output, target), as ``nn.MSELoss()`` does.
    """
    if isinstance(loss_fn, OnCopies):
        return loss_fn
    refuse_criterion(loss_fn)
    return OnCopies(loss_fn)


def apart(loss_fn: Callable[..., Any], batch: Any) -> tuple[Callable[..., Any], Any]:
    """The loss itself and a copy of the batch, where the copying is not to be part of a pass.

    Examples:
        >>> loss = lambda model, x: model(x)
        >>> apart(OnCopies(loss), torch.ones(1))[0] is apart(loss, torch.ones(1))[0] is loss
        True
    """
    return loss_fn.of if isinstance(loss_fn, OnCopies) else loss_fn, copied(batch)


def copied(batch: Any) -> Any:
    """The same containers and objects, with copies of the tensors in them.

    Examples:
        >>> batch = {"x": torch.ones(2), "name": "a"}
        >>> again = copied(batch)
        >>> again["x"] is batch["x"], bool((again["x"] == batch["x"]).all()), again["name"]
        (False, True, 'a')
    """
    return _copied(batch, {})


def _copied(value: Any, done: dict[int, Any]) -> Any:
    """Copy a nest; objects that hold each other are copied once."""
    return pytree.tree_map(lambda leaf: _copied_leaf(leaf, done), value)


def _copied_leaf(leaf: Any, done: dict[int, Any]) -> Any:
    if isinstance(leaf, Tensor):
        with torch.inference_mode(False), torch.no_grad():
            return leaf.clone().requires_grad_(leaf.requires_grad)
    if isinstance(leaf, _LEFT_ALONE):
        return leaf
    clone = getattr(leaf, "clone", None)  # graphs of PyTorch Geometric
    if callable(clone):
        with contextlib.suppress(TypeError):  # one that asks for arguments
            return clone()
    if id(leaf) in done:
        return done[id(leaf)]
    held = _held(leaf)
    if not any(isinstance(part, Tensor) for part in pytree.tree_leaves(held)):
        return leaf
    done[id(leaf)] = again = copy.copy(leaf)
    for name, value in held.items():
        object.__setattr__(again, name, _copied(value, done))  # also of frozen classes
    return again


def _held(leaf: Any) -> dict[str, Any]:
    """The attributes of an object in a batch, such as a mapping or a data class."""
    if is_dataclass(leaf):
        return {field.name: getattr(leaf, field.name) for field in fields(leaf)}
    return dict(getattr(leaf, "__dict__", ()))
