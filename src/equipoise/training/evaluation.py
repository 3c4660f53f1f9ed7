"""Loss and accuracy on held-out data; the model's modes are restored."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from equipoise.instrument.types import LossFunction
from equipoise.numerics.options import named_options
from equipoise.training.losses import IGNORED
from equipoise.training.record import Evaluation

_ROWS = 1000


@named_options
def evaluate(
    model: nn.Module,
    inputs: Tensor,
    targets: Tensor,
    loss_fn: LossFunction,
    *,
    step: int = 0,
    rows: int = _ROWS,
) -> Evaluation:
    """Mean loss per sample and accuracy, in evaluation mode.

    Args:
        model: Its modes are restored; buffers do not change in evaluation mode.
        inputs: Shape ``[N, ...]``.
        targets: Shape ``[N, ...]``; integers are classes, of every sample or position, and those
            that PyTorch's cross-entropy ignores count for nothing.
        loss_fn: A mean over samples.
        step: Steps of training taken so far.
        rows: Samples per forward pass.

    Raises:
        ValueError: If there are no samples, of which there is no mean.

    Examples:
        >>> from equipoise.training.losses import cross_entropy
        >>> x, y = torch.tensor([[9.0, 0.0], [9.0, 0.0]]), torch.tensor([0, 1])
        >>> evaluate(nn.Identity(), x, y, cross_entropy).accuracy
        0.5
    """
    if not len(inputs):
        raise ValueError(
            f"evaluate needs at least one sample, got inputs of shape {tuple(inputs.shape)}. Hold "
            "some out, or leave the evaluation out."
        )
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    loss, right, judged = 0.0, 0, 0
    classes = not targets.is_floating_point()
    try:
        with torch.no_grad():
            for x, y in zip(torch.split(inputs, rows), torch.split(targets, rows), strict=True):
                loss += float(loss_fn(model, (x, y))) * len(x)
                if classes:
                    right += int((model(x).argmax(1) == y).sum())
                    judged += int((y != IGNORED).sum())
    finally:
        for module, training in modes:
            module.training = training
    return Evaluation(step, loss / len(inputs), right / judged if judged else None)
