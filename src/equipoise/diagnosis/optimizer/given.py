"""How the user's optimiser is had for a copy of the model, whatever form it was given in."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias

import torch
from torch import nn

from equipoise.diagnosis.inputs.frameworks import is_lightning, is_trainer
from equipoise.diagnosis.problem import Model
from equipoise.records.wording import said

OptimizerOf: TypeAlias = Callable[[nn.Module], torch.optim.Optimizer]
"""A function of the model that returns its optimiser."""

GivenOptimizer: TypeAlias = torch.optim.Optimizer | OptimizerOf | Any
"""An optimiser of the model's parameters, a function of the model, or an optimiser's class."""

_EXAMPLE = "such as lambda model: torch.optim.SGD(model.parameters(), lr=0.1)"


@dataclass(frozen=True, slots=True)
class Stepping:
    """How a training of the user's takes its steps.

    Args:
        make: Returns the optimisers of a copy of the model.
        clip: The largest norm of gradients; None without clipping.
        warms_up: Whether the learning rate rises from zero at the start.
        by_hand: Whether the model steps them itself.
        origin: Where it was found, if it was not given.
    """

    make: Callable[[nn.Module], tuple[torch.optim.Optimizer, ...]]
    clip: float | None = None
    warms_up: bool = False
    by_hand: bool = False
    origin: str = ""


def optimizer_of(optimizer: OptimizerOf, model: nn.Module) -> torch.optim.Optimizer:
    """Call a function of the model that returns one optimiser.

    Raises:
        ValueError: If it raises or returns anything else.
    """
    found = _called(optimizer, model)
    if not isinstance(found, torch.optim.Optimizer):
        raise ValueError(
            f"optimizer(model) returned {type(found).__name__}, not a torch.optim.Optimizer. "
            "Return the optimiser that takes the steps."
        )
    return found


def stepping_of(
    subject: Model, optimizer: GivenOptimizer | None, model: nn.Module
) -> tuple[Stepping | None, str]:
    """How the training takes its steps, and what was assumed of that.

    Args:
        subject: The model as it was given: a module, a factory or a trainer.
        optimizer: An optimiser of the module's parameters, several of them, a function of the
            model that returns them, or a class of optimisers; None for that of a LightningModule
            or of a Hugging Face Trainer.
        model: A copy of the model, for which an optimiser is made.

    Returns:
        None and words where nobody says how, or that of a framework cannot be had.

    Raises:
        ValueError: If a given one is none of these, cannot be made or copied, or there is no
            module whose parameters it could hold.
    """
    if optimizer is not None:
        given = _given(subject, optimizer, model)
        given.make(model)
        return given, ""
    own = _own(subject, model)
    if own is None:
        return None, ""
    try:
        own.make(model)
    except ValueError as error:
        words = said(error.__cause__ or error).rstrip(".")
        return None, f"optimiser: none, as {own.origin} raised {words}; give optimizer="
    return own, f"optimiser: that of {own.origin}"


def _given(subject: Model, optimizer: GivenOptimizer, fresh: nn.Module) -> Stepping:
    held = _optimizers_in(optimizer)
    if held:
        module: Any = subject
        if is_trainer(subject):
            module = module.model
        if not isinstance(module, nn.Module):
            raise ValueError(
                "optimizer holds the parameters of one model, but the model is given as a "
                f"function that makes new ones. Give a function of the model, {_EXAMPLE}."
            )
        return Stepping(partial(_transferred, held, module), warms_up=_warms_up(held))
    if not callable(optimizer):
        raise ValueError(
            f"optimizer is a {type(optimizer).__name__}. Give the optimiser of the model's "
            f"parameters, or a function of the model, {_EXAMPLE}."
        )
    by_hand = is_lightning(fresh) and not getattr(fresh, "automatic_optimization", True)
    return Stepping(partial(_made, optimizer), by_hand=by_hand)


def peak_rate(group: Mapping[str, Any]) -> float:
    """The largest learning rate of a group: of its schedule, where that has set one.

    Returns:
        The rate; nan of optimisers that have none or find their own, as Adafactor may.

    Examples:
        >>> peak_rate({"lr": 0.0, "initial_lr": 0.1}), peak_rate({"lr": 0.004, "max_lr": 0.1})
        (0.1, 0.1)
        >>> peak_rate({"lr": None})
        nan
    """
    if group.get("lr") is None:
        return math.nan
    return max(float(group.get(name, 0.0)) for name in ("lr", "initial_lr", "max_lr"))


def _own(subject: Model, fresh: nn.Module) -> Stepping | None:
    """That of a LightningModule or of a Hugging Face Trainer."""
    if is_trainer(subject):
        return _of_trainer(subject)
    if not is_lightning(fresh):
        return None
    by_hand = not getattr(fresh, "automatic_optimization", True)

    def configured(model: Any) -> Any:
        return model.configure_optimizers()

    return Stepping(partial(_made, configured), by_hand=by_hand, origin="configure_optimizers")


def _of_trainer(trainer: Any) -> Stepping | None:
    if not callable(getattr(trainer, "create_optimizer", None)):
        return None
    settings = trainer.args
    clip = float(getattr(settings, "max_grad_norm", None) or 0.0)
    warms_up = bool(getattr(settings, "warmup_steps", 0) or getattr(settings, "warmup_ratio", 0))
    if trainer.optimizer is not None and getattr(trainer, "model_init", None) is None:
        make = partial(_transferred, (trainer.optimizer,), trainer.model)
    else:
        make = partial(_made, partial(_created, trainer))
    return Stepping(make, clip=clip or None, warms_up=warms_up, origin="the Trainer")


def _created(trainer: Any, model: nn.Module) -> torch.optim.Optimizer:
    """What a Trainer would make for another model, without a trace in it."""
    other = copy.copy(trainer)
    other.model = other.model_wrapped = model
    other.optimizer = None
    other.create_optimizer()
    return other.optimizer  # type: ignore[no-any-return]  # set by the line before


def _made(optimizer: Any, model: nn.Module) -> tuple[torch.optim.Optimizer, ...]:
    """The optimisers that a function of the model, or a class of optimisers, makes."""
    kind = optimizer
    while isinstance(kind, partial):
        kind = kind.func
    if isinstance(kind, type) and issubclass(kind, torch.optim.Optimizer):
        wanted = [p for p in model.parameters() if p.requires_grad]
        returned = _called(lambda _: optimizer(wanted), model)
    else:
        returned = _called(optimizer, model)
    found = _optimizers_in(returned)
    if not found:
        raise ValueError(
            f"optimizer(model) returned {type(returned).__name__}, not a torch.optim.Optimizer. "
            "Return the optimiser that takes the steps."
        )
    return found


def _called(optimizer: Callable[[nn.Module], Any], model: nn.Module) -> Any:
    try:
        return optimizer(model)
    except Exception as error:  # users' code may raise anything
        raise ValueError(
            f"optimizer(model) raised {said(error)} Give a function of the model, {_EXAMPLE}."
        ) from error


def _optimizers_in(value: Any) -> tuple[torch.optim.Optimizer, ...]:
    """Optimisers in the forms that ``configure_optimizers`` may return, in their order."""
    match value:
        case torch.optim.Optimizer():
            return (value,)
        case Mapping():
            return _optimizers_in(list(value.values()))
        case str():
            return ()
        case Sequence():
            return tuple(one for inner in value for one in _optimizers_in(inner))
    return ()


def _transferred(
    optimizers: Sequence[torch.optim.Optimizer], given: nn.Module, model: nn.Module
) -> tuple[torch.optim.Optimizer, ...]:
    """Copies of optimisers that hold a copy's parameters in the place of the given model's."""
    memo: dict[int, Any] = {
        id(old): new for old, new in zip(given.parameters(), model.parameters(), strict=True)
    }
    try:
        return tuple(copy.deepcopy(one, memo) for one in optimizers)
    except Exception as error:  # optimisers of others may hold anything
        raise ValueError(
            f"the optimiser cannot be copied ({type(error).__name__}: {error}). Give a function "
            f"of the model, {_EXAMPLE}."
        ) from error


def _warms_up(optimizers: Sequence[torch.optim.Optimizer]) -> bool:
    """Whether a schedule has lowered a learning rate for the start."""
    groups = [group for one in optimizers for group in one.param_groups]
    return any(
        float(group["lr"]) < peak_rate(group) for group in groups if group.get("lr") is not None
    )
