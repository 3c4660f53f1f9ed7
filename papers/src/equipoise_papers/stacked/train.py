"""Several small models of one architecture, each with its own rate and data, train together."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from itertools import chain
from typing import Literal, get_args

from torch import Tensor, nn

from equipoise.training.loop import Clock
from equipoise.training.losses import LossFunction
from equipoise.training.record import Evaluation, History
from equipoise_papers.stacked.batches import check_stacked
from equipoise_papers.stacked.choice import worthwhile
from equipoise_papers.stacked.members import CannotStackError, check_members, check_stackable
from equipoise_papers.stacked.methods import Step, Task, one_by_one, together
from equipoise_papers.stacked.optimizer import MakeOptimizer

Method = Literal["auto", "stacked", "one by one"]


def train_many(
    models: Sequence[nn.Module],
    batches: Iterable[tuple[Tensor, Tensor]],
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
    models at once: K linear layers are one batched product, K batch norms one wider batch norm,
    K convolutions one convolution in groups, and what has no rule of its own is mapped by
    ``torch.func.vmap``. Results agree with those of single trainings to rounding, except where
    a model draws noise: the draws of all models then come from one stream.

    Not stacked are models that differ in more than their numbers (settings, order, hooks), and
    layers that change plain attributes in their forward pass or that cannot be mapped, as
    ``BatchRenorm`` and ``FourThingsBatchNorm`` of this package.

    Args:
        models: K of them, on one device, each with its own weights. They stay in their modes,
            and at the end hold their trained weights and statistics, and no gradients.
        batches: One per step, inputs ``[K, B, ...]`` and targets ``[K, B, ...]``; see
            :func:`stacked_batches`.
        loss_fn: ``loss_fn(model, (x, y))``, a scalar, for one model and its own batch. Those of
            this package are computed for all models at once. Any other is called model by
            model, on outputs that are known already: it may call ``model(x)``, once and with
            gradients, and nothing else.
        optimizer: Makes an optimiser from all parameters of a model and its rate, as
            ``torch.optim.SGD`` or ``partial(torch.optim.RMSprop, alpha=0.9)`` do. SGD, RMSprop,
            Adam and others whose step is the rate times something that depends on the gradients
            alone step once for all models. With weight decay, step hooks or options that differ
            between models, and for other classes, each model has its own.
        rates: Learning rates, one per model.
        evaluate_at: Numbers of steps; 0 is before the first.
        evaluate: Called with a model and the number of steps taken, at each of ``evaluate_at``;
            it leaves the model as it is.
        method: ``"stacked"``, ``"one by one"``, or ``"auto"``: the stack where the models can be
            stacked and :func:`~equipoise_papers.stacked.choice.worthwhile` expects a gain. The
            choice depends on shapes alone, never on how busy the machine is.

    Returns:
        One history per model. The first loss that is not finite ends a model's own training,
        before its step. Each gets an equal share of the time of all.

    Raises:
        ValueError: If the models have different tensors or share any, rates or batches do not
            fit their number, or ``method="stacked"`` meets what cannot be stacked.

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
    check_members(models, rates)
    if method not in get_args(Method):
        raise ValueError(f"method must be one of {', '.join(get_args(Method))}; got {method!r}.")
    log = _Log(models, evaluate, set(evaluate_at))
    checked = (check_stacked(batch, len(models)) for batch in batches)
    first = next(checked, None)
    if first is not None:
        with _chosen(method, Task(models, loss_fn, optimizer, rates), first) as step:
            for inputs, targets in chain([first], checked):
                log.evaluate()
                log.add(step(inputs, targets, log.training))
                if not log.training:
                    break
    log.evaluate()
    return log.histories()


def _chosen(
    method: Method, task: Task, batch: tuple[Tensor, Tensor]
) -> AbstractContextManager[Step]:
    if method != "one by one":
        try:
            check_stackable(task.models)
            if method == "stacked" or worthwhile(task.models, batch[0]):
                return together(task, batch).training()
        except CannotStackError:
            if method == "stacked":
                raise
    return one_by_one(task)


class _Log:
    """What happens to every model."""

    def __init__(
        self,
        models: Sequence[nn.Module],
        evaluate: Callable[[nn.Module, int], Evaluation] | None,
        due: set[int],
    ) -> None:
        self.training = list(range(len(models)))
        self._models, self._evaluate, self._due = models, evaluate, due
        self._losses: list[list[float]] = [[] for _ in models]
        self._evaluations: list[list[Evaluation]] = [[] for _ in models]
        self._diverged: dict[int, int] = {}
        self._steps = 0
        self._clock = Clock(next(models[0].parameters()).device)

    def add(self, losses: dict[int, float]) -> None:
        """A step's losses; whoever's is not finite has ended."""
        for member in self.training:
            self._losses[member].append(losses[member])
            if not abs(losses[member]) < float("inf"):
                self._diverged[member] = self._steps
        self.training = [member for member in self.training if member not in self._diverged]
        self._steps += 1

    def evaluate(self) -> None:
        """Evaluate what still trains, if it is due."""
        if self._evaluate is not None and self._steps in self._due:
            with self._clock.paused():
                for member in self.training:
                    found = self._evaluate(self._models[member], self._steps)
                    self._evaluations[member].append(found)

    def histories(self) -> tuple[History, ...]:
        """One per model, each with an equal share of the time."""
        seconds = self._clock.stop() / len(self._models)
        return tuple(
            History(tuple(losses), seconds, tuple(evaluations), self._diverged.get(member))
            for member, (losses, evaluations) in enumerate(
                zip(self._losses, self._evaluations, strict=True)
            )
        )
