"""The losses of K models, computed from their outputs."""

from __future__ import annotations

from collections.abc import Callable
from typing import NoReturn, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from equipoise.instrument import Batch, LossFunction
from equipoise.training import cross_entropy, mean_squared_error
from equipoise_papers.stacked.checks import CannotStackError

# Targets that cross-entropy ignores, PyTorch's default.
_IGNORED = -100


def stacked_losses(
    loss_fn: LossFunction, outputs: Tensor, inputs: Tensor, targets: Tensor
) -> Tensor:
    """Losses ``[K]`` from outputs, inputs and targets ``[K, B, ...]``.

    The losses of :mod:`equipoise.training` are computed for all models at once, others, and
    squared errors of targets in another shape, model by model, with K calls.
    """
    # Compared by identity, because a loss need not be hashable.
    for known, compute in _AT_ONCE:
        if known is loss_fn and (compute is _cross_entropy or outputs.shape == targets.shape):
            return compute(outputs, targets)
    return losses_one_by_one(loss_fn, outputs, inputs, targets)


def losses_one_by_one(
    loss_fn: LossFunction, outputs: Tensor, inputs: Tensor, targets: Tensor
) -> Tensor:
    """The same by K calls of ``loss_fn``, which also makes its own checks.

    Raises:
        CannotStackError: If ``loss_fn`` does more with the model than call it on the inputs,
            once, with gradients and without autocast.
    """
    members = zip(outputs.unbind(), inputs.unbind(), targets.unbind(), strict=True)
    losses = [
        loss_fn(cast("nn.Module", _KnownOutput(x, output)), (x, y)) for output, x, y in members
    ]
    if losses[0].ndim:
        raise ValueError(
            f"loss_fn must return a scalar, got shape {tuple(losses[0].shape)}: take the mean."
        )
    return torch.stack(losses)


class _KnownOutput:
    """Takes the place of a model whose output is known already, for one call with gradients."""

    def __init__(self, inputs: Tensor, output: Tensor) -> None:
        self._inputs, self._output = inputs, output
        self._called = False

    def __call__(self, inputs: Tensor) -> Tensor:
        """Return the output.

        Raises:
            CannotStackError: Under autocast, without gradients, on other inputs, or at a second
                call, where a model in training could return something else and would update
                its statistics again.
        """
        if torch.is_autocast_enabled(self._inputs.device.type):
            raise CannotStackError(
                "loss_fn runs the model under autocast; a stack has run all models before, "
                "without it."
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
        if self._called:
            raise CannotStackError(
                "loss_fn calls the model more than once; a stack runs all models once per step."
            )
        self._called = True
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
    return F.mse_loss(outputs, targets.to(outputs.dtype), reduction="none").flatten(1)


def summed_squared_error(model: nn.Module, batch: Batch) -> Tensor:
    """Squared differences summed over samples and outputs, as [santurkar2018] trains.

    Raises:
        ValueError: If outputs and targets have different shapes.
    """
    inputs, targets = batch
    outputs: Tensor = model(inputs)
    if outputs.shape != targets.shape:
        raise ValueError(
            f"the model returned shape {tuple(outputs.shape)}, the targets have "
            f"{tuple(targets.shape)}; the squared error needs them to be the same."
        )
    return F.mse_loss(outputs, targets.to(outputs.dtype), reduction="sum")


_AT_ONCE: tuple[tuple[LossFunction, Callable[[Tensor, Tensor], Tensor]], ...] = (
    (cross_entropy, _cross_entropy),
    (mean_squared_error, lambda outputs, targets: _squared_errors(outputs, targets).mean(1)),
    (summed_squared_error, lambda outputs, targets: _squared_errors(outputs, targets).sum(1)),
)
