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
            "logits. Give a loss of your own: loss_fn=."
        )
    try:
        return F.cross_entropy(logits, targets)
    except IndexError as error:  # on a CPU; to look at targets elsewhere would wait for the device
        raise _unknown_class(logits, targets) or error from error


def _unknown_class(logits: Tensor, targets: Tensor) -> UnsuitableBatchError | None:
    largest, classes = int(targets.max()), logits.shape[1 if logits.ndim > 1 else 0]
    if largest < classes:
        return None
    return UnsuitableBatchError(
        f"the data have class {largest}, but the model returned only {classes} logits. Give it at "
        "least one output per class."
    )


def mean_squared_error(model: nn.Module, batch: Any) -> Tensor:
    """Mean squared difference between outputs and targets, as :func:`squared_error`."""
    return squared_error(run_on_batch(model, batch), batch[1])


def squared_error(output: Tensor, targets: Tensor) -> Tensor:
    """Mean squared difference between outputs and :func:`laid_out_as` targets."""
    return F.mse_loss(output, laid_out_as(output, targets))


def laid_out_as(output: Tensor, targets: Tensor) -> Tensor:
    """Targets in the shape and type of the output that they belong to.

    Raises:
        UnsuitableBatchError: If the shapes differ by more than :func:`fit` allows.

    Examples:
        >>> import torch
        >>> laid_out_as(torch.zeros(2, 1), torch.tensor([3, 4]))
        tensor([[3.],
                [4.]])
    """
    if not fit(output, targets):
        raise UnsuitableBatchError(
            f"the model returned shape {tuple(output.shape)}, the targets have shape "
            f"{tuple(targets.shape)}; this loss needs them to be the same."
            f"{layout_hint(output, targets)}"
        )
    return targets.reshape(output.shape).to(output.dtype)


def fit(output: Tensor, targets: Tensor) -> bool:
    """Whether numbers belong together one by one: their shapes are equal but for axes of length 1.

    Images also fit their flattened form, ``[N, pixels]``. All other shapes with equally many
    numbers may be another layout, such as channels last, in which every number met a wrong one.

    Examples:
        >>> import torch
        >>> fit(torch.zeros(8, 1), torch.zeros(8)), fit(torch.zeros(3, 2), torch.zeros(2, 3))
        (True, False)
    """
    if 2 in (output.ndim, targets.ndim) and min(output.ndim, targets.ndim) > 1:
        output, targets = output.flatten(1), targets.flatten(1)
    first, second = ([size for size in tensor.shape if size != 1] for tensor in (output, targets))
    return first == second


def layout_hint(output: Tensor, targets: Tensor) -> str:
    """What to do about equally many numbers in other shapes, with a space before; or nothing.

    Examples:
        >>> import torch
        >>> layout_hint(torch.zeros(3, 2), torch.zeros(2, 3))
        ' If only the order of the axes differs, permute the targets.'
    """
    if output.numel() != targets.numel():
        return ""
    return " If only the order of the axes differs, permute the targets."
