"""How the user's optimiser is had for a copy of the model, whatever form it was given in."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias, TypeVar

import torch
from torch import nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from equipoise.diagnosis.inputs.frameworks import is_lightning, is_trainer
from equipoise.diagnosis.optimizer.record import Schedule
from equipoise.diagnosis.optimizer.schedule import rates_of
from equipoise.diagnosis.problem import Model
from equipoise.records.wording import said, with_article

OptimizerOf: TypeAlias = Callable[[nn.Module], torch.optim.Optimizer]
"""A function of the model that returns its optimiser."""

GivenOptimizer: TypeAlias = torch.optim.Optimizer | OptimizerOf | Any
"""An optimiser of the model's parameters, a function of the model, or an optimiser's class."""

_Made: TypeAlias = tuple[tuple[Optimizer, ...], tuple[LRScheduler, ...]]
_Kind = TypeVar("_Kind")

_EXAMPLE = "such as lambda model: torch.optim.SGD(model.parameters(), lr=0.1)"


class NoOptimizerError(ValueError):
    """A function of the model that was to return an optimiser has returned something else."""

    def __init__(self, returned: object) -> None:
        self.kind = type(returned).__name__
        super().__init__(
            f"optimizer(model) returned {self.kind}, not a torch.optim.Optimizer. Return the "
            "optimiser that takes the steps."
        )


@dataclass(frozen=True, slots=True)
class Stepping:
    """How a training of the user's takes its steps.

    Args:
        make: Returns the optimisers of a copy of the model, at the peak of their schedule.
        clip: The largest norm of gradients; None without clipping.
        warms_up: Whether the learning rate starts below its peak.
        obstacle: Why copies of the model cannot take the steps; empty if they can.
        origin: Where it was found, if it was not given.
        schedule: What is known of the schedule.
        left_out: Names of the trainable parameters that no group holds.
    """

    make: Callable[[nn.Module], tuple[Optimizer, ...]]
    clip: float | None = None
    warms_up: bool = False
    obstacle: str = ""
    origin: str = ""
    schedule: Schedule = "known"
    left_out: frozenset[str] = frozenset()


def left_out(model: nn.Module, optimizers: Sequence[Optimizer]) -> tuple[str, ...]:
    """Names of the trainable parameters of a model that no optimiser's groups hold."""
    groups = [group for one in optimizers for group in one.param_groups]
    held = {id(tensor) for group in groups for tensor in group["params"]}
    named = model.named_parameters()
    return tuple(name for name, p in named if p.requires_grad and id(p) not in held)


def optimizer_of(optimizer: OptimizerOf, model: nn.Module) -> Optimizer:
    """Call a function of the model that returns one optimiser.

    Raises:
        ValueError: If it raises or returns anything else.
    """
    found = _called(optimizer, model)
    if not isinstance(found, Optimizer):
        raise NoOptimizerError(found)
    return found


def stepping_of(
    subject: Model,
    optimizer: GivenOptimizer | None,
    model: nn.Module,
    copied: Callable[[], nn.Module],
) -> tuple[Stepping | None, str]:
    """How the training takes its steps, and what was assumed of that.

    Args:
        subject: The model as it was given: a module, a factory or a trainer.
        optimizer: An optimiser of the module's parameters, several of them, also together with
            their schedulers, a function of the model that returns such, or a class of optimisers;
            None for that of a LightningModule or of a Hugging Face Trainer.
        model: A model of the subject's, which is left alone.
        copied: Returns a copy of it, for which an optimiser is made; called only if there is one.

    Returns:
        None and words where nobody says how, or that of a framework cannot be had.

    Raises:
        ValueError: If a given one is none of these, cannot be made or copied, or there is no
            module whose parameters it could hold.
    """
    if optimizer is not None:
        return _given(subject, optimizer, model).stepping(copied()), ""
    own = _own(subject, model)
    if own is None:
        return None, ""
    try:
        return own.stepping(copied()), f"optimiser: that of {own.origin}"
    except NoOptimizerError as error:
        words = f"returned {error.kind}"
    except ValueError as error:
        words = f"raised {said(error.__cause__ or error).rstrip('.')}"
    return None, f"optimiser: none, as {own.origin} {words}; give optimizer="


@dataclass(frozen=True, slots=True)
class _Makings:
    """What makes optimisers and schedulers for a copy of the model.

    Args:
        make: Returns both.
        clip: The largest norm of gradients; None without clipping.
        warms_up: Whether the framework lets the learning rate rise at the start.
        obstacle: Why copies of the model cannot take the steps; empty if they can.
        origin: Where it was found, if it was not given.
    """

    make: Callable[[nn.Module], _Made]
    clip: float | None = None
    warms_up: bool = False
    obstacle: str = ""
    origin: str = ""

    def stepping(self, model: nn.Module) -> Stepping:
        """Make optimisers and schedulers once, to see which rates they reach."""
        optimizers, schedulers = self.make(model)
        rates = rates_of(optimizers, schedulers)
        return Stepping(
            partial(_at_peaks, self.make, rates.peaks),
            self.clip,
            self.warms_up or rates.warms_up,
            self.obstacle,
            self.origin,
            rates.schedule,
            frozenset(left_out(model, optimizers)),
        )


def _at_peaks(
    make: Callable[[nn.Module], _Made], peaks: Sequence[float], model: nn.Module
) -> tuple[Optimizer, ...]:
    """Make optimisers, and set their learning rates to the peaks of their schedules."""
    optimizers, _ = make(model)
    groups = [group for one in optimizers for group in one.param_groups]
    for group, peak in zip(groups, peaks, strict=True):
        for name in ("initial_lr", "max_lr"):
            group.pop(name, None)
        if not math.isnan(peak):
            group["lr"] = peak
    return optimizers


def _given(subject: Model, optimizer: GivenOptimizer, fresh: nn.Module) -> _Makings:
    obstacle = _by_hand(fresh)
    held = _all_in(optimizer, Optimizer)
    if held:
        module: Any = subject
        if is_trainer(subject):
            module = module.model
        if not isinstance(module, nn.Module):
            raise ValueError(
                "optimizer holds the parameters of one model, but the model is given as a "
                f"function that makes new ones. Give a function of the model, {_EXAMPLE}."
            )
        schedulers: tuple[LRScheduler, ...] = _all_in(optimizer, LRScheduler)
        make = partial(_transferred, (held, schedulers), module)
        return _Makings(make, obstacle=obstacle or _hooked(held))
    if not callable(optimizer):
        raise ValueError(
            f"optimizer is {with_article(type(optimizer).__name__)}. Give the optimiser of the "
            f"model's parameters, or a function of the model, {_EXAMPLE}."
        )
    return _Makings(partial(_made, optimizer), obstacle=obstacle)


def _by_hand(model: nn.Module) -> str:
    """Words if a LightningModule takes its steps itself."""
    by_hand = is_lightning(model) and not getattr(model, "automatic_optimization", True)
    return "the model takes its steps by hand" if by_hand else ""


def _hooked(optimizers: Sequence[Optimizer]) -> str:
    """Words if hooks change or watch the steps of optimisers: they belong to one model."""
    kinds = ("_optimizer_step_pre_hooks", "_optimizer_step_post_hooks")
    if not any(getattr(one, kind, None) for one in optimizers for kind in kinds):
        return ""
    return (
        "hooks on its steps, such as those of BNP, belong to the given model; give a function of "
        "the model that registers them"
    )


def _own(subject: Model, fresh: nn.Module) -> _Makings | None:
    """That of a LightningModule or of a Hugging Face Trainer."""
    if is_trainer(subject):
        return _of_trainer(subject)
    if not is_lightning(fresh):
        return None

    def configured(model: Any) -> Any:
        return model.configure_optimizers()

    make = partial(_made, configured)
    return _Makings(make, obstacle=_by_hand(fresh), origin="configure_optimizers")


def _of_trainer(trainer: Any) -> _Makings | None:
    if not callable(getattr(trainer, "create_optimizer", None)):
        return None
    settings = trainer.args
    clip = float(getattr(settings, "max_grad_norm", None) or 0.0)
    warms_up = bool(getattr(settings, "warmup_steps", 0) or getattr(settings, "warmup_ratio", 0))
    if trainer.optimizer is not None and getattr(trainer, "model_init", None) is None:
        held = (trainer.optimizer,)
        schedulers = _all_in([getattr(trainer, "lr_scheduler", None)], LRScheduler)
        make, obstacle = partial(_transferred, (held, schedulers), trainer.model), _hooked(held)
    else:
        make, obstacle = partial(_made, partial(_created, trainer)), ""
    return _Makings(make, clip or None, warms_up, obstacle, "the Trainer")


def _created(trainer: Any, model: nn.Module) -> Optimizer:
    """What a Trainer would make for another model, without a trace in it."""
    other = copy.copy(trainer)
    other.model = other.model_wrapped = model
    other.optimizer = None
    other.create_optimizer()
    return other.optimizer  # type: ignore[no-any-return]  # set by the line before


def _made(optimizer: Any, model: nn.Module) -> _Made:
    """What a function of the model, or a class of optimisers, makes."""
    kind = optimizer
    while isinstance(kind, partial):
        kind = kind.func
    if isinstance(kind, type) and issubclass(kind, Optimizer):
        wanted = [p for p in model.parameters() if p.requires_grad]
        returned = _called(lambda _: optimizer(wanted), model)
    else:
        returned = _called(optimizer, model)
    found: tuple[Optimizer, ...] = _all_in(returned, Optimizer)
    if not found:
        raise NoOptimizerError(returned)
    return found, _all_in(returned, LRScheduler)


def _called(optimizer: Callable[[nn.Module], Any], model: nn.Module) -> Any:
    try:
        return optimizer(model)
    except Exception as error:  # users' code may raise anything
        raise ValueError(
            f"optimizer(model) raised {said(error)} Give a function of the model, {_EXAMPLE}."
        ) from error


def _all_in(value: Any, kind: type[_Kind]) -> tuple[_Kind, ...]:
    """Optimisers or schedulers in the forms that ``configure_optimizers`` may return, in order."""
    if isinstance(value, kind):
        return (value,)
    if isinstance(value, Mapping):
        value = list(value.values())
    if isinstance(value, Sequence) and not isinstance(value, str):
        return tuple(one for inner in value for one in _all_in(inner, kind))
    return ()


def _transferred(held: _Made, given: nn.Module, model: nn.Module) -> _Made:
    """Copies of optimisers that hold a copy's parameters in the place of the given model's.

    Other tensors that they hold, such as those of a loss with parameters, are not copied.
    """
    optimizers, schedulers = held
    groups = [group for one in optimizers for group in one.param_groups]
    memo: dict[int, Any] = {id(tensor): tensor for group in groups for tensor in group["params"]}
    memo |= {id(old): new for old, new in zip(given.parameters(), model.parameters(), strict=True)}
    try:
        copies = tuple(_copied(one, memo) for one in optimizers)
        return copies, tuple(copy.deepcopy(one, memo) for one in schedulers)
    except Exception as error:  # optimisers of others may hold anything
        raise ValueError(
            f"the optimiser cannot be copied ({said(error).rstrip('.')}). Give a function "
            f"of the model, {_EXAMPLE}."
        ) from error


def _copied(optimizer: Optimizer, memo: dict[int, Any]) -> Optimizer:
    """A copy with all attributes: PyTorch's own way drops those that subclasses add.

    A ``step`` among them is what a scheduler has put there to count steps of the original.
    """
    made = copy.deepcopy(optimizer, memo)
    if type(optimizer).__getstate__ is Optimizer.__getstate__:
        for name, value in vars(optimizer).items():
            if name not in vars(made) and name != "step":
                setattr(made, name, copy.deepcopy(value, memo))
    return made
