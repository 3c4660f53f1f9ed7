"""Take the step that training would take next, and undo it bit for bit.

What an optimiser does depends on its state, so the user's own optimiser takes the step, and its
state is restored afterwards.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Protocol, TypeAlias, runtime_checkable

import torch
from torch import Tensor, nn
from torch.optim import LBFGS, Optimizer
from torch.optim import optimizer as torch_optimizer
from torch.utils._pytree import tree_leaves

from equipoise.instrument.replay import Replay
from equipoise.instrument.saved_objects import SavedObjects
from equipoise.instrument.snapshot import SavedParameters, SavedTensor

Update: TypeAlias = float | Optimizer | Callable[[nn.Module], Any]
"""A learning rate for plain gradient descent, an optimiser, or a function that takes a step."""


@runtime_checkable
class Stateful(Protocol):
    """An object that a step changes beside model and optimiser."""

    def state_dict(self) -> Any:
        """Return the state."""

    def load_state_dict(self, state: Any) -> Any:
        """Restore the state."""


def check_update(
    update: Update, stateful: Sequence[Stateful] | None, parameters: Sequence[Tensor]
) -> None:
    """Refuse an update that cannot take a step, or whose step cannot be undone.

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
    elif isinstance(update, int | float):
        _check_rate(update, parameters)


def _check_rate(rate: float, parameters: Sequence[Tensor]) -> None:
    """Refuse a learning rate that the weights' type cannot hold."""
    largest = min(torch.finfo(p.dtype).max for p in parameters)
    if not -largest <= rate <= largest:
        raise ValueError(
            f"update, a learning rate, must be a number within ±{largest:.3g}; got {rate!r}."
        )


def _check_optimizer(
    optimizer: Optimizer, stateful: Sequence[Stateful] | None, parameters: Sequence[Tensor]
) -> None:
    trained = {id(p) for p in trained_parameters(optimizer)}
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
            "the optimizer has step hooks, which may keep state that the step changes. Name "
            "the objects behind them, such as stateful=[bnp]; stateful=[] if they keep nothing."
        )


def trained_parameters(update: Update) -> list[Tensor]:
    """The optimiser's parameters; none for another kind of update."""
    groups = update.param_groups if isinstance(update, Optimizer) else []
    return [p for group in groups for p in group["params"]]


def parameters_after_step(
    replay: Replay, saved: SavedParameters, gradients: Sequence[Tensor | None], update: Update
) -> tuple[Tensor, ...]:
    """Where the step would lead: one tensor per parameter; the parameters stay where they are.

    Args:
        replay: The model and its parameters.
        saved: The parameters of model and optimiser, which have no gradients now.
        gradients: One per parameter; ``None`` where the loss does not use it.
        update: Takes the step.
    """
    parameters = replay.parameters
    values = saved.values(parameters)
    if isinstance(update, int | float):
        pairs = zip(values, gradients, strict=True)
        return tuple(p if g is None else torch.add(p, g, alpha=-float(update)) for p, g in pairs)
    for parameter, gradient in zip(parameters, gradients, strict=True):
        parameter.grad = None if gradient is None else gradient.clone()
    try:
        with (
            saved.versions_kept(),
            replay.replayed(),
            torch.enable_grad(),
            _optimizer_restored(update),
        ):
            update.step() if isinstance(update, Optimizer) else update(replay.model)
        return tuple(p.detach().clone() for p in parameters)
    finally:
        saved.restore_values()
        saved.remove_gradients()


@contextmanager
def states_restored(stateful: Iterable[Stateful]) -> Iterator[None]:
    """Restore every object's state at the end of the block."""
    states = [(item, copy.deepcopy(item.state_dict())) for item in stateful]
    try:
        yield
    finally:
        for item, state in states:
            item.load_state_dict(state)


@contextmanager
def _optimizer_restored(update: Update) -> Iterator[None]:
    """Restore an optimiser's state, groups and attributes bit for bit, with their identity."""
    saved = optimizer_saved(update) if isinstance(update, Optimizer) else None
    try:
        yield
    finally:
        if saved is not None:
            with torch.no_grad():
                saved.restore()


def optimizer_saved(optimizer: Optimizer, *, moments: bool = True) -> SavedObjects:
    """An optimiser's state, groups and attributes, down to the tensors, but not its parameters.

    Args:
        optimizer: Any.
        moments: Whether to copy the values of tensors with more than one element, too.

    Raises:
        ValueError: If it keeps something that cannot be copied.
    """
    attributes = vars(optimizer)
    fixed = {id(p) for p in trained_parameters(optimizer)}
    # Hooks belong to others, and so does a step that a scheduler has wrapped.
    fixed |= {id(v) for k, v in attributes.items() if k.endswith("_hooks") or k == "step"}
    if not moments:
        leaves = tree_leaves(dict(optimizer.state))
        fixed |= {id(x) for x in leaves if isinstance(x, Tensor) and x.numel() > 1}
    return SavedObjects([(type(optimizer).__name__, attributes)], fixed, SavedTensor)
