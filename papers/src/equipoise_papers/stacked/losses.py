"""Losses of K models from their outputs."""

from __future__ import annotations

from collections.abc import Callable
from typing import NoReturn, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from equipoise.training.losses import (
    LossFunction,
    cross_entropy,
    mean_squared_error,
    summed_squared_error,
)
from equipoise_papers.stacked.members import CannotStackError

# Targets that cross-entropy does not count, PyTorch's default.
_IGNORED = -100


def stacked_losses(
    loss_fn: LossFunction, outputs: Tensor, inputs: Tensor, targets: Tensor
) -> Tensor:
    """From outputs, inputs and targets ``[K, B, ...]`` to losses ``[K]``.

    The losses of :mod:`equipoise.training` are computed for all members at once, any other
    member by member, which costs K times as many calls.
    """
    # By identity: a loss need not be hashable.
    at_once = next((compute for known, compute in _AT_ONCE if known is loss_fn), None)
    if at_once is None:
        return losses_one_by_one(loss_fn, outputs, inputs, targets)
    return at_once(outputs, targets)


def losses_one_by_one(
    loss_fn: LossFunction, outputs: Tensor, inputs: Tensor, targets: Tensor
) -> Tensor:
    """The same by K calls, with whatever ``loss_fn`` checks.

    Raises:
        CannotStackError: If ``loss_fn`` does more with the model than call it on the inputs,
            once, with gradients and without autocast.
    """
    members = zip(outputs.unbind(), inputs.unbind(), targets.unbind(), strict=True)
    losses = [loss_fn(cast("nn.Module", _Answer(x, output)), (x, y)) for output, x, y in members]
    if losses[0].ndim:
        raise ValueError(
            f"loss_fn must return a scalar, got shape {tuple(losses[0].shape)}: take the mean."
        )
    return torch.stack(losses)


class _Answer:
    """Stands, for one call with gradients, for a model whose output is known already."""

    def __init__(self, inputs: Tensor, output: Tensor) -> None:
        self._inputs, self._output = inputs, output
        self._given = False

    def __call__(self, inputs: Tensor) -> Tensor:
        """The output.

        Raises:
            CannotStackError: Under autocast, without gradients, on other inputs, or a second
                time: a model in training could return something else then, and its statistics
                would move again.
        """
        if torch.is_autocast_enabled(self._inputs.device.type):
            raise CannotStackError(
                "loss_fn runs the model under autocast, which a stack, having run all models "
                "before, cannot follow."
            )
        if inputs is not self._inputs:
            raise CannotStackError(
                "loss_fn calls the model on something other than the batch's inputs; a stack has "
                "run all models on those already."
            )
        if not torch.is_grad_enabled():
            raise CannotStackError(
                "loss_fn calls the model without gradients; a stack has run all models with them."
            )
        if self._given:
            raise CannotStackError(
                "loss_fn calls the model more than once; a stack runs all models once per step."
            )
        self._given = True
        return self._output

    def __getattr__(self, name: str) -> NoReturn:
        raise CannotStackError(
            f"loss_fn uses the model's {name!r}; in a stack it can only call model(inputs)."
        )


def _cross_entropy(outputs: Tensor, targets: Tensor) -> Tensor:
    each = F.cross_entropy(outputs.flatten(0, 1), targets.flatten(0, 1), reduction="none")
    each = each.reshape(len(outputs), -1)
    if targets.is_floating_point():
        return each.mean(1)
    return each.sum(1) / (targets != _IGNORED).flatten(1).sum(1)


def _squared_errors(outputs: Tensor, targets: Tensor) -> Tensor:
    targets = targets.reshape(outputs.shape).to(outputs.dtype)
    return F.mse_loss(outputs, targets, reduction="none").flatten(1)


_AT_ONCE: tuple[tuple[LossFunction, Callable[[Tensor, Tensor], Tensor]], ...] = (
    (cross_entropy, _cross_entropy),
    (mean_squared_error, lambda outputs, targets: _squared_errors(outputs, targets).mean(1)),
    (summed_squared_error, lambda outputs, targets: _squared_errors(outputs, targets).sum(1)),
)
