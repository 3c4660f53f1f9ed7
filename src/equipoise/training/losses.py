"""Losses: each is called with a model and a batch and returns a scalar."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

from torch import Tensor, nn
from torch.nn import functional as F

from equipoise.instrument.forward import run_on_batch

# PyTorch's default of ignore_index.
IGNORED = -100


class UnsuitableBatchError(ValueError):
    """Model, loss and data do not fit together; the message says why."""


def cross_entropy(model: nn.Module, batch: Any) -> Tensor:
    """Mean cross-entropy of logits, of shape ``[N, classes, ...]``.

    Raises:
        UnsuitableBatchError: If there are no logits, or, on a CPU, a class that has none; to look
            at targets elsewhere would wait for the device, whose own assertion ends the process.
    """
    logits = run_on_batch(model, batch)
    targets = batch[1]
    if not isinstance(logits, Tensor):
        raise UnsuitableBatchError(
            f"the model returned {type(logits).__name__}, and cross-entropy needs a tensor of "
            "logits. Give a loss of your own: loss_fn=."
        )
    try:
        return F.cross_entropy(logits, targets)
    except IndexError as error:
        found = unknown_class(targets, logits.shape[1 if logits.ndim > 1 else 0])
        if found is None:
            raise
        raise found from error


def unknown_class(targets: Tensor, classes: int) -> UnsuitableBatchError | None:
    """What is wrong with labels of which some have no logit; None if all have one.

    Examples:
        >>> import torch
        >>> unknown_class(torch.tensor([0, 3, -100]), classes=4) is None
        True
        >>> print(unknown_class(torch.tensor([0, 4]), classes=4))
        the data have class 4, but the model returned only 4 logits. Give it at least one ...
    """
    counted = targets[targets != IGNORED]
    if not counted.numel():
        return None
    least, largest = int(counted.min()), int(counted.max())
    if least < 0:
        return UnsuitableBatchError(
            f"the data have class {least}, and classes are counted from 0. If it marks what is to "
            f"be left out, give loss_fn=nn.CrossEntropyLoss(ignore_index={least})."
        )
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

    Images also fit their flattened form, ``[N, pixels]``, and tokens theirs, ``[N · T, ...]``. All
    other shapes with equally many numbers may be another layout, such as channels last, in which
    every number met a wrong one.

    Examples:
        >>> import torch
        >>> fit(torch.zeros(8, 1), torch.zeros(8)), fit(torch.zeros(3, 2), torch.zeros(2, 3))
        (True, False)
    """
    first, second = _longer_than_one(output), _longer_than_one(targets)
    if first == second or _joins_first_axes(first, second) or _joins_first_axes(second, first):
        return True
    if 2 not in (output.ndim, targets.ndim) or min(output.ndim, targets.ndim) < 2:
        return False
    return _longer_than_one(output.flatten(1)) == _longer_than_one(targets.flatten(1))


def _longer_than_one(tensor: Tensor) -> list[int]:
    return [size for size in tensor.shape if size != 1]


def _joins_first_axes(joined: Sequence[int], apart: Sequence[int]) -> bool:
    count = len(apart) - len(joined) + 1
    return count > 1 and [prod(apart[:count]), *apart[count:]] == [*joined]


def layout_hint(output: Tensor, targets: Tensor) -> str:
    """What to do about equally many numbers in other shapes, with a space before; or nothing.

    Examples:
        >>> import torch
        >>> layout_hint(torch.zeros(3, 2), torch.zeros(2, 3))
        ' If only the order of the axes differs, permute the targets.'
    """
    if sorted(output.shape) != sorted(targets.shape):
        return ""
    return " If only the order of the axes differs, permute the targets."
