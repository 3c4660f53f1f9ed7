"""The training loop: steps, a listener, evaluations, and an end when the loss diverges."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributions import Distribution

from equipoise.instrument.clock import Clock
from equipoise.instrument.types import LossFunction
from equipoise.numerics.options import named_options
from equipoise.training.record import Evaluation, History

# Reading a loss waits for the accelerator: steps from one look for divergence to the next.
_CHECK_EVERY = 50


@named_options
def train(
    model: nn.Module,
    batches: Iterable[Any],
    loss_fn: LossFunction,
    optimizer: torch.optim.Optimizer,
    *,
    scheduler: torch.optim.lr_scheduler.LRScheduler | None = None,
    listener: Callable[[int, float], None] | None = None,
    evaluate: Callable[[int], Evaluation] | None = None,
    evaluate_at: Sequence[int] = (),
) -> History:
    r"""Take one step per batch.

    .. math:: g_t = \nabla\mathcal L_{b_t}(\theta_t), \qquad
              \theta_{t+1} = \mathrm{step}(\theta_t, g_t)

    The model stays in its mode and on its device; batches must be on the same device. What is
    attached to the optimiser, such as :class:`equipoise.BNP`, works as in any other loop.

    Args:
        model: The model to train.
        batches: One per step; training ends with the last.
        loss_fn: ``loss_fn(model, batch)``, a scalar.
        optimizer: Any that steps without a closure.
        scheduler: Stepped after every optimiser step.
        listener: Called after each step with its number (from 1) and its loss.
        evaluate: Called with the number of steps taken, at each of ``evaluate_at``.
        evaluate_at: Numbers of steps; 0 is before the first.

    Returns:
        The losses. The first one that is not finite ends training, before its step; on
        accelerators up to 49 more steps are taken, whose losses are left out. Distributions that
        refuse parameters which are no numbers give such a loss, too.

    Examples:
        >>> from torch import nn
        >>> layer = nn.Linear(1, 1, bias=False)
        >>> _ = nn.init.constant_(layer.weight, 3.0)
        >>> optimizer = torch.optim.SGD(layer.parameters(), lr=0.25)
        >>> history = train(layer, [torch.ones(1, 1)] * 3, lambda m, x: m(x).square().mean(),
        ...                 optimizer)
        >>> history.losses  # the weight is halved by each step
        (9.0, 2.25, 0.5625)
    """
    device = next(model.parameters()).device
    check_every = 1 if device.type == "cpu" or listener is not None else _CHECK_EVERY
    due = set(evaluate_at) if evaluate is not None else set()
    losses: list[Tensor] = []
    evaluations: list[Evaluation] = []
    clock = Clock(device)
    clock.start(wait=True)
    for step, batch in enumerate(batches):
        if step in due and evaluate is not None:
            with clock.paused():
                evaluations.append(evaluate(step))
        loss = loss_of(model, batch, loss_fn)
        losses.append(loss.detach())
        if step % check_every == 0 and not torch.isfinite(losses[-1]):
            break
        optimizer.zero_grad(set_to_none=True)
        loss.backward()  # type: ignore[no-untyped-call]  # torch's is not annotated
        optimizer.step()
        if scheduler is not None:
            scheduler.step()
        if listener is not None:
            with clock.paused():
                listener(step + 1, float(losses[-1]))
    seconds = clock.seconds(wait=True)
    values = torch.stack(losses).double().tolist() if losses else []
    diverged_at = next((i for i, value in enumerate(values) if not abs(value) < torch.inf), None)
    if diverged_at is None and len(values) in due and evaluate is not None:
        evaluations.append(evaluate(len(values)))
    finished = values if diverged_at is None else values[: diverged_at + 1]
    return History(tuple(finished), seconds, tuple(evaluations), diverged_at)


def loss_of(model: nn.Module, batch: Any, loss_fn: LossFunction) -> Tensor:
    """The loss; where a distribution refuses what a diverged model gives, what it is unchecked.

    Raises:
        Exception: Whatever the model raises otherwise, and where the unchecked loss is finite.
    """
    try:
        return loss_fn(model, batch)
    except ValueError as error:
        if not _is_of_a_distribution(error):
            raise
        checked = Distribution._validate_args
        Distribution.set_default_validate_args(False)
        try:
            loss = loss_fn(model, batch)
        except Exception:  # it has other checks, too
            loss = None
        finally:
            Distribution.set_default_validate_args(checked)
        if loss is None or torch.isfinite(loss):
            raise
        return loss


def _is_of_a_distribution(error: Exception) -> bool:
    """Whether a check of ``torch.distributions`` has raised it."""
    *_, (frame, _) = traceback.walk_tb(error.__traceback__)
    return str(frame.f_globals.get("__name__")).startswith(
        Distribution.__module__.rpartition(".")[0]
    )
