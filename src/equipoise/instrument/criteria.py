"""Tell a criterion of (output, target) from a loss of (model, batch)."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
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
    names = _arguments(given)
    if names and names[0] in _OF_MODELS:
        return False
    return isinstance(given, nn.Module) or (
        len(names) > 1 and (names[0] in _OF_OUTPUTS or names[1] in _OF_TARGETS)
    )


def refuse_criterion(given: Any) -> None:
    """Refuse a criterion in the place of a loss.

    Raises:
        TypeError: Naming it, and what to give instead.

    Examples:
        >>> refuse_criterion(nn.MSELoss())
        Traceback (most recent call last):
        TypeError: loss_fn must be a function of (model, batch), and MSELoss is one of (output, ...
    """
    if is_criterion(given):
        name = getattr(given, "__name__", type(given).__name__)
        raise TypeError(
            f"loss_fn must be a function of (model, batch), and {name} is one of (output, target)."
            " Give such as lambda model, batch: criterion(model(batch[0]), batch[1])."
        )


def says_what_it_takes(given: Any) -> bool:
    """Whether the name of its first argument, or its class, leaves no doubt.

    Examples:
        >>> says_what_it_takes(lambda model, batch: None), says_what_it_takes(lambda o, t: None)
        (True, False)
    """
    names = _arguments(given)
    told = isinstance(given, nn.Module) or len(names) < 2
    return told or names[0] in (*_OF_MODELS, *_OF_OUTPUTS)


def needed_arguments(given: Any) -> list[str]:
    """Names of the arguments by position that a loss cannot do without; empty if it has no say.

    Examples:
        >>> needed_arguments(lambda model, batch, scale=1.0, *more: None)
        ['model', 'batch']
    """
    parameters = _parameters(given).values()
    by_position = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    return [one.name for one in by_position if one.default is one.empty]


def takes_only_one(given: Any) -> bool:
    """Whether a loss can be called with one argument, and not with two.

    Examples:
        >>> takes_only_one(lambda batch: None), takes_only_one(lambda *arguments: None)
        (True, False)
    """
    taken = _parameters(given).values()
    by_position = [p for p in taken if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    return len(by_position) == 1 and all(p.kind is not p.VAR_POSITIONAL for p in taken)


def _arguments(given: Any) -> list[str]:
    return list(_parameters(given))


def _parameters(given: Any) -> Mapping[str, inspect.Parameter]:
    try:
        called = given.forward if isinstance(given, nn.Module) else given
        return inspect.signature(called).parameters
    except (TypeError, ValueError):
        return {}
