"""The two ways in which several models take a step: together, and one by one."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from equipoise.training.losses import LossFunction
from equipoise_papers.big.random_states import forked
from equipoise_papers.stacked.layers import StackedModel
from equipoise_papers.stacked.losses import losses_one_by_one, stacked_losses
from equipoise_papers.stacked.members import CannotStackError, described
from equipoise_papers.stacked.optimizer import MakeOptimizer, Stepper, check_closures, stepper
from equipoise_papers.stacked.settings import settings_put_back
from equipoise_papers.stacked.state import Stack

# Trains the given members on a batch of all; returns the loss of each of them. One whose loss is
# not finite keeps the weights that led to it, and is not given again.
Step = Callable[[Tensor, Tensor, Collection[int]], dict[int, float]]


@dataclass(frozen=True, slots=True)
class Task:
    """What is to be trained, and how.

    Args:
        models: Of one architecture.
        loss_fn: Loss of one model on its batch.
        optimizer: Makes an optimiser from parameters and a rate.
        rates: One per model.
    """

    models: Sequence[nn.Module]
    loss_fn: LossFunction
    optimizer: MakeOptimizer
    rates: Sequence[float]


@contextmanager
def one_by_one(task: Task) -> Iterator[Step]:
    """Every model takes its own step, as in :func:`equipoise.training.train`."""
    optimizers = [
        task.optimizer(model.parameters(), rate)
        for model, rate in zip(task.models, task.rates, strict=True)
    ]
    check_closures(optimizers)

    def step(inputs: Tensor, targets: Tensor, members: Collection[int]) -> dict[int, float]:
        losses = {}
        for member in members:
            loss = task.loss_fn(task.models[member], (inputs[member], targets[member]))
            losses[member] = float(loss.detach())
            if math.isfinite(losses[member]):
                optimizers[member].zero_grad(set_to_none=True)
                loss.backward()  # type: ignore[no-untyped-call]  # torch's is not annotated
                optimizers[member].step()
        return losses

    with _no_gradients_left(task.models):
        yield step


def together(task: Task, batch: tuple[Tensor, Tensor]) -> _Together:
    """Prepare a stack of alike models and rehearse a step on the first batch.

    Raises:
        CannotStackError: Naming the module, or the use of the model in ``loss_fn``, that cannot
            be stacked, or what went wrong in the rehearsal; alone it may go right.
    """
    stack = Stack(task.models)
    prepared = _Together(task, stack, StackedModel(task.models[0], stack))
    try:
        prepared.rehearse(*batch)
    except (RuntimeError, TypeError, IndexError, AttributeError) as error:
        raise CannotStackError(f"the first step of the stack fails: {error}") from error
    return prepared


class _Together:
    """A stack of models, ready to be trained."""

    def __init__(self, task: Task, stack: Stack, forward: StackedModel) -> None:
        self._task, self._stack, self._forward = task, stack, forward

    def rehearse(self, inputs: Tensor, targets: Tensor) -> None:
        """Find out what cannot be stacked, without a trace."""
        inputs, targets = inputs.clone(), targets.clone()
        put_back = settings_put_back(self._task.models[0])
        with self._stack.unchanged(), forked(inputs.device), put_back as changed:
            outputs = self._forward(inputs)
            losses = losses_one_by_one(self._task.loss_fn, outputs, inputs, targets)
            self._gradients(losses)
        for name, module, setting in changed:
            raise CannotStackError(
                f"module {described(name, module)} changes its {setting} in the forward pass, and "
                "a stack calls the modules of model 0 alone."
            )

    @contextmanager
    def training(self) -> Iterator[Step]:
        """All models take one step together; those that diverge leave the stack before it."""
        with self._stack.attached(), _no_gradients_left(self._task.models):
            moves = stepper(self._task.optimizer, self._task.rates, self._stack)
            yield lambda inputs, targets, members: self._step(moves, inputs, targets)

    def _step(self, moves: Stepper, inputs: Tensor, targets: Tensor) -> dict[int, float]:
        members = list(self._stack.members)
        if len(members) < len(inputs):
            inputs, targets = inputs[members], targets[members]
        losses = stacked_losses(self._task.loss_fn, self._forward(inputs), inputs, targets)
        gradients = self._gradients(losses)
        values = dict(zip(members, losses.detach().double().tolist(), strict=True))
        diverged = [member for member, value in values.items() if not math.isfinite(value)]
        if diverged:
            rows = self._stack.drop(diverged)
            gradients = [None if g is None else g[rows] for g in gradients]
            moves.keep(rows)
        if self._stack.members:
            moves.step(gradients)
        return values

    def _gradients(self, losses: Tensor) -> list[Tensor | None]:
        # One member's loss does not depend on another's weights, so the sum's gradient is theirs.
        return list(torch.autograd.grad(losses.sum(), self._stack.trained, allow_unused=True))


@contextmanager
def _no_gradients_left(models: Sequence[nn.Module]) -> Iterator[None]:
    try:
        yield
    finally:
        for model in models:
            model.zero_grad(set_to_none=True)
