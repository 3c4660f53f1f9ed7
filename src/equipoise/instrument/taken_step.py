"""Take the step that training would take, look where it leads, and take it back.

What an optimiser does depends on what it remembers, so it is the user's own optimiser that steps;
what it remembers is put back bit for bit.
"""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Protocol, TypeAlias, runtime_checkable

import torch
from torch import Tensor, nn
from torch.optim import LBFGS, Optimizer
from torch.optim import optimizer as torch_optimizer

from equipoise.instrument.held import Held
from equipoise.instrument.replay import Replay

Update: TypeAlias = float | Optimizer | Callable[[nn.Module], Any]


@runtime_checkable
class Stateful(Protocol):
    """Whatever a step changes beside model and optimiser."""

    def state_dict(self) -> Any:
        """What is to be put back."""

    def load_state_dict(self, state: Any) -> Any:
        """Put it back."""


def checked_update(
    update: Update, stateful: Sequence[Stateful] | None, parameters: Sequence[Tensor]
) -> None:
    """Refuse what cannot step, or cannot be taken back.

    Raises:
        TypeError: If the update is no learning rate, optimiser or function, or LBFGS.
        ValueError: If it trains none of the parameters, or has hooks that may keep state.
    """
    for item in stateful or ():
        if not isinstance(item, Stateful):
            raise TypeError(
                "stateful takes objects with state_dict() and load_state_dict(), got "
                f"{type(item).__name__}."
            )
    if isinstance(update, LBFGS):
        raise TypeError(
            "LBFGS evaluates a closure inside its step. Give update as a function of the model "
            "that calls step(closure)."
        )
    if isinstance(update, Optimizer):
        _check_optimizer(update, stateful, parameters)
    elif isinstance(update, bool) or not (isinstance(update, int | float) or callable(update)):
        raise TypeError(
            "update must be a learning rate, a torch.optim.Optimizer or a function of the model, "
            f"got {type(update).__name__}."
        )


def _check_optimizer(
    optimizer: Optimizer, stateful: Sequence[Stateful] | None, parameters: Sequence[Tensor]
) -> None:
    trained = {id(p) for p in trained_by(optimizer)}
    if not any(id(p) in trained for p in parameters):
        raise ValueError(
            "the optimizer trains no parameter of this model. Give the one that was built on "
            "model.parameters()."
        )
    hooked = (
        optimizer._optimizer_step_pre_hooks
        or optimizer._optimizer_step_post_hooks
        or torch_optimizer._global_optimizer_pre_hooks
        or torch_optimizer._global_optimizer_post_hooks
    )
    if hooked and stateful is None:
        raise ValueError(
            "the optimizer has step hooks, and what they keep would change with the step. Name "
            "the objects behind them, such as stateful=[bnp]; stateful=[] if they keep nothing."
        )


def trained_by(update: Update) -> list[Tensor]:
    """The optimiser's parameters; none for another kind of update."""
    groups = update.param_groups if isinstance(update, Optimizer) else []
    return [p for group in groups for p in group["params"]]


def moved(
    replay: Replay, held: Held, gradients: Sequence[Tensor | None], update: Update
) -> tuple[Tensor, ...]:
    """Where the step leads to: one tensor per parameter, which stays where it is.

    Args:
        replay: The model and its parameters.
        held: Holds the parameters of model and optimiser.
        gradients: Of the parameters; ``None`` where the loss does not use one.
        update: What makes the step.
    """
    parameters = replay.parameters
    here = held.values(parameters)
    if isinstance(update, int | float):
        pairs = zip(here, gradients, strict=True)
        return tuple(p if g is None else torch.add(p, g, alpha=-update) for p, g in pairs)
    for parameter, gradient in zip(parameters, gradients, strict=True):
        parameter.grad = None if gradient is None else gradient.clone()
    try:
        with (
            held.same_versions(),
            replay.replayed(),
            torch.enable_grad(),
            remembered(update),
        ):
            update.step() if isinstance(update, Optimizer) else update(replay.model)
        return tuple(p.detach().clone() for p in parameters)
    finally:
        with torch.no_grad():
            held.put_back()


@contextmanager
def kept(stateful: Iterable[Stateful]) -> Iterator[None]:
    """Put every object's state back at the end of the block."""
    states = [(item, copy.deepcopy(item.state_dict())) for item in stateful]
    try:
        yield
    finally:
        for item, state in states:
            item.load_state_dict(state)


@contextmanager
def remembered(update: Update) -> Iterator[None]:
    """Put an optimiser's state, groups and attributes back bit for bit, with their identity."""
    if not isinstance(update, Optimizer):
        with contextlib.nullcontext():
            yield
        return
    put_back = _remember(vars(update), {id(p) for p in trained_by(update)})
    try:
        yield
    finally:
        with torch.no_grad():
            put_back()


def _remember(value: Any, parameters: set[int]) -> Callable[[], Any]:
    """A function that gives a value its old contents, down to the tensors, and returns it."""
    if isinstance(value, Tensor) and id(value) not in parameters:
        data = value.detach().clone()

        def restore_tensor() -> Tensor:
            value.data.copy_(data)
            return value

        return restore_tensor
    if isinstance(value, dict):
        items = {key: _remember(item, parameters) for key, item in value.items()}

        def restore_dict() -> dict[Any, Any]:
            restored = {key: item() for key, item in items.items()}
            value.clear()
            value.update(restored)
            return value

        return restore_dict
    if isinstance(value, list):
        entries = [_remember(item, parameters) for item in value]

        def restore_list() -> list[Any]:
            value[:] = [entry() for entry in entries]
            return value

        return restore_list
    return lambda: value
