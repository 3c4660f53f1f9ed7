"""Several small models of one architecture, each with its own rate and data, train together."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from itertools import chain
from typing import Literal, get_args

import torch
from torch import Tensor, nn

from equipoise.instrument import Batch, LossFunction, untouched
from equipoise.training import Evaluation, History
from equipoise_papers.stacked.attributes import attributes_restored
from equipoise_papers.stacked.batches import check_stacked
from equipoise_papers.stacked.checks import (
    CannotStackError,
    check_models,
    check_stackable,
    described,
)
from equipoise_papers.stacked.choice import worthwhile
from equipoise_papers.stacked.layers import StackedModel
from equipoise_papers.stacked.losses import losses_one_by_one, stacked_losses
from equipoise_papers.stacked.optimizer import MakeOptimizer, Stepper, check_closures, stepper
from equipoise_papers.stacked.stack import Stack
from equipoise_papers.stopwatch import Stopwatch

Method = Literal["auto", "stacked", "one by one"]

# Trains the given models on a batch for all models; returns the loss of each of them. A model
# whose loss is not finite keeps the weights that led to it, and is not among the next ones.
Step = Callable[[Tensor, Tensor, Collection[int]], dict[int, float]]


def train_many(
    models: Sequence[nn.Module],
    batches: Iterable[Batch],
    loss_fn: LossFunction,
    optimizer: MakeOptimizer,
    rates: Sequence[float],
    *,
    evaluate_at: Sequence[int] = (),
    evaluate: Callable[[nn.Module, int], Evaluation] | None = None,
    method: Method = "auto",
) -> tuple[History, ...]:
    """Train models of one architecture as if each were alone, in less time.

    Small models spend most of their time between operations. A stack computes each layer of all
    models at once: K linear layers become one batched product, K batch norms one wider batch
    norm, K convolutions one convolution in groups, and layers without a rule are mapped by
    ``torch.func.vmap``. Results agree with those of single trainings to rounding, except where
    a model draws noise: the draws of all models then come from one stream.

    A stack cannot hold models that differ in more than their numbers (attributes, order, hooks),
    nor layers that change plain attributes in their forward pass or that cannot be mapped, such
    as ``BatchRenorm`` and ``FourThingsBatchNorm`` of :mod:`equipoise.layers`.

    Args:
        models: K of them, on one device, each with its own weights. They stay in their modes,
            and at the end hold their trained weights and statistics, and no gradients.
        batches: One per step, inputs ``[K, B, ...]`` and targets ``[K, B, ...]``; see
            :func:`stacked_batches`.
        loss_fn: ``loss_fn(model, (x, y))``, a scalar, for one model and its own batch. Losses of
            :mod:`equipoise.training` are computed for all models at once. Any other is called
            model by model, on outputs that are known already: it may call ``model(x)``, once and
            with gradients, and nothing else.
        optimizer: Makes an optimiser from all parameters of a model and its rate, as
            ``torch.optim.SGD`` or ``partial(torch.optim.RMSprop, alpha=0.9)`` do. SGD, RMSprop,
            Adam, AdamW and others whose step is the rate times something that depends on the
            gradients alone step once for all models. With other weight decay, step hooks or
            options that differ between models, and for other classes, each model has its own.
        rates: Learning rates, one per model.
        evaluate_at: Numbers of steps; 0 is before the first.
        evaluate: Called with a model and the number of steps taken, at each of ``evaluate_at``;
            it leaves the model as it is.
        method: ``"stacked"``, ``"one by one"``, or ``"auto"``: the stack where the models can be
            stacked and :func:`~equipoise_papers.stacked.worthwhile` expects a gain. The choice
            depends on shapes alone, never on how busy the machine is.

    Returns:
        One history per model. The first loss that is not finite ends a model's own training,
        before its step. The time of all is divided equally between them.

    Raises:
        ValueError: If the models have different tensors or share any, rates or batches do not
            fit their number, or ``method="stacked"`` is given what cannot be stacked.

    Examples:
        >>> import torch
        >>> layers = [nn.Linear(1, 1, bias=False) for _ in range(2)]
        >>> for layer in layers:
        ...     _ = nn.init.constant_(layer.weight, 3.0)
        >>> batches = [(torch.ones(2, 1, 1), torch.zeros(2, 1, 1))] * 3
        >>> histories = train_many(layers, batches, lambda m, b: m(b[0]).square().mean(),
        ...                        torch.optim.SGD, rates=[0.25, 0.5])
        >>> [history.losses for history in histories]  # the weight is halved, and goes to 0
        [(9.0, 2.25, 0.5625), (9.0, 0.0, 0.0)]
    """
    check_models(models, rates)
    if method not in get_args(Method):
        raise ValueError(f"method must be one of {', '.join(get_args(Method))}; got {method!r}.")
    log = _Log(models, evaluate, set(evaluate_at))
    checked = (check_stacked(batch, len(models)) for batch in batches)
    first = next(checked, None)
    if first is not None:
        with _chosen(method, _Task(models, loss_fn, optimizer, rates), first) as step:
            for inputs, targets in chain([first], checked):
                log.evaluate_if_due()
                log.add(step(inputs, targets, log.training))
                if not log.training:
                    break
    log.evaluate_if_due()
    return log.histories()


@dataclass(frozen=True, slots=True)
class _Task:
    models: Sequence[nn.Module]
    loss_fn: LossFunction
    optimizer: MakeOptimizer
    rates: Sequence[float]


def _chosen(method: Method, task: _Task, batch: Batch) -> AbstractContextManager[Step]:
    if method != "one by one":
        try:
            check_stackable(task.models)
            if method == "stacked" or worthwhile(task.models, batch[0]):
                return _rehearsed(task, batch).training()
        except CannotStackError:
            if method == "stacked":
                raise
    return _one_by_one(task)


@contextmanager
def _one_by_one(task: _Task) -> Iterator[Step]:
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

    with _gradients_cleared(task.models):
        yield step


def _rehearsed(task: _Task, batch: Batch) -> _StackedTraining:
    """Prepare a stack, and try a step on the first batch.

    Raises:
        CannotStackError: Naming the module, or the use of the model in ``loss_fn``, that cannot
            be stacked, or the error of the rehearsal, which may not occur one by one.
    """
    training = _StackedTraining(task)
    try:
        training.rehearse(*batch)
    except (RuntimeError, TypeError, IndexError, AttributeError) as error:
        raise CannotStackError(f"the first step of the stack fails: {error}") from error
    return training


class _StackedTraining:
    """All models take each step together."""

    def __init__(self, task: _Task) -> None:
        self._task = task
        self._stack = Stack(task.models)
        self._forward = StackedModel(task.models[0], self._stack)

    def rehearse(self, inputs: Tensor, targets: Tensor) -> None:
        """Compute a step without taking it, and leave everything as it was."""
        first, inputs, targets = self._task.models[0], inputs.clone(), targets.clone()
        with self._stack.unchanged(), untouched(first), attributes_restored(first) as changed:
            outputs = self._forward(inputs)
            losses = losses_one_by_one(self._task.loss_fn, outputs, inputs, targets)
            self._gradients(losses)
        for name, module, attribute in changed:
            raise CannotStackError(
                f"module {described(name, module)} changes its {attribute} in the forward pass, "
                "and a stack calls only the modules of model 0."
            )

    @contextmanager
    def training(self) -> Iterator[Step]:
        """Attach the models to the stack; models that diverge leave it before their step."""
        with self._stack.attached(), _gradients_cleared(self._task.models):
            optimizer = stepper(self._task.optimizer, self._task.rates, self._stack)
            yield lambda inputs, targets, members: self._step(optimizer, inputs, targets)

    def _step(self, optimizer: Stepper, inputs: Tensor, targets: Tensor) -> dict[int, float]:
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
            optimizer.keep(rows)
        if self._stack.members:
            optimizer.step(gradients)
        return values

    def _gradients(self, losses: Tensor) -> list[Tensor | None]:
        # A model's loss does not depend on another's weights, so the sum has all gradients.
        return list(torch.autograd.grad(losses.sum(), self._stack.trained, allow_unused=True))


@contextmanager
def _gradients_cleared(models: Sequence[nn.Module]) -> Iterator[None]:
    """Set all gradients to ``None`` at the end of the block."""
    try:
        yield
    finally:
        for model in models:
            model.zero_grad(set_to_none=True)


class _Log:
    """Losses and evaluations of every model; ``training`` lists those that have not diverged."""

    def __init__(
        self,
        models: Sequence[nn.Module],
        evaluate: Callable[[nn.Module, int], Evaluation] | None,
        evaluate_at: set[int],
    ) -> None:
        self.training = list(range(len(models)))
        self._models, self._evaluate, self._evaluate_at = models, evaluate, evaluate_at
        self._losses: list[list[float]] = [[] for _ in models]
        self._evaluations: list[list[Evaluation]] = [[] for _ in models]
        self._diverged_at: dict[int, int] = {}
        self._steps = 0
        self._watch = Stopwatch(next(models[0].parameters()).device)

    def add(self, losses: dict[int, float]) -> None:
        """Add the losses of a step; models whose loss is not finite have diverged."""
        for member in self.training:
            self._losses[member].append(losses[member])
            if not abs(losses[member]) < float("inf"):
                self._diverged_at[member] = self._steps
        self.training = [member for member in self.training if member not in self._diverged_at]
        self._steps += 1

    def evaluate_if_due(self) -> None:
        """Evaluate the models that have not diverged, if an evaluation is due."""
        if self._evaluate is not None and self._steps in self._evaluate_at:
            with self._watch.paused():
                for member in self.training:
                    found = self._evaluate(self._models[member], self._steps)
                    self._evaluations[member].append(found)

    def histories(self) -> tuple[History, ...]:
        """One per model, with an equal share of the time."""
        seconds = self._watch.seconds() / len(self._models)
        return tuple(
            History(tuple(losses), seconds, tuple(evaluations), self._diverged_at.get(member))
            for member, (losses, evaluations) in enumerate(
                zip(self._losses, self._evaluations, strict=True)
            )
        )
