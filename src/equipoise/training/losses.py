"""Losses: each is called with a model and a batch and returns a scalar."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn
from torch.nn import functional as F

from equipoise.instrument.forward import run_on_batch


class UnsuitableBatchError(ValueError):
    """Model, loss and data do not fit together; the message says why."""


def cross_entropy(model: nn.Module, batch: Any) -> Tensor:
    """Mean cross-entropy of logits, of shape ``[N, classes, ...]``."""
    logits = run_on_batch(model, batch)
    targets = batch[1]
    if not isinstance(logits, Tensor):
        raise UnsuitableBatchError(
            f"the model returned {type(logits).__name__}, and cross-entropy needs a tensor of "
            "logits. Give a loss of your own: --loss file.py:name."
        )
    if not targets.is_floating_point() and logits.ndim > 1 and targets.numel():
        classes = logits.shape[1]
        if int(targets.max()) >= classes:
            raise UnsuitableBatchError(
                f"the data have class {int(targets.max())}, but the model returned only {classes} "
                "logits. Give it at least one output per class."
            )
    return F.cross_entropy(logits, targets)


def mean_squared_error(model: nn.Module, batch: Any) -> Tensor:
    """Mean squared difference between outputs and targets of the same shape."""
    output = run_on_batch(model, batch)
    targets = batch[1]
    if output.shape != targets.shape:
        if output.numel() != targets.numel():
            raise UnsuitableBatchError(
                f"the model returned shape {tuple(output.shape)}, the targets have "
                f"{tuple(targets.shape)}; the squared error needs them to be the same."
            )
        targets = targets.reshape(output.shape)
    return F.mse_loss(output, targets.to(output.dtype))
