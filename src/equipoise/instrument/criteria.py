"""Tell a criterion of (output, target) from a loss of (model, batch)."""

from __future__ import annotations

import inspect
from typing import Any

from torch import nn

# What the first argument of a criterion is called; that of a loss is the model.
_OF_OUTPUTS = (
    "input", "inputs", "output", "outputs", "out", "pred", "preds", "prediction", "predictions",
    "logits", "scores", "y_hat", "yhat", "y_pred",
)  # fmt: skip
_OF_TARGETS = ("target", "targets", "label", "labels", "y", "y_true")
_OF_MODELS = ("model", "m", "module", "net", "network")


def is_criterion(given: Any) -> bool:
    """Whether it takes (output, target) rather than (model, batch), by the arguments' names.

    Examples:
        >>> is_criterion(nn.MSELoss()), is_criterion(nn.functional.cross_entropy)
        (True, True)
        >>> is_criterion(lambda model, batch: model(batch).sum())
        False
    """
    is_module = isinstance(given, nn.Module)
    try:
        names = list(inspect.signature(given.forward if is_module else given).parameters)
    except (TypeError, ValueError):
        names = []
    if names and names[0] in _OF_MODELS:
        return False
    return is_module or (len(names) > 1 and (names[0] in _OF_OUTPUTS or names[1] in _OF_TARGETS))
