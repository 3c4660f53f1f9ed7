"""Ask whether a model will train, by itself or in a test suite."""

from __future__ import annotations

from functools import partial

import torch
from torch import nn

from equipoise.diagnosis.broken import broken, conclude_broken
from equipoise.diagnosis.forgotten import conclude_forgotten, forgotten
from equipoise.diagnosis.initialisation.stuck import conclude_stuck, stuck
from equipoise.diagnosis.inputs.adapt import Loss
from equipoise.diagnosis.mistakes.find import mistakes
from equipoise.diagnosis.optimizer.check import check_optimizer
from equipoise.diagnosis.optimizer.findings import conclude_optimizer
from equipoise.diagnosis.optimizer.given import GivenOptimizer, stepping_of
from equipoise.diagnosis.prediction import TracedModel, traced, traced_after_step, traced_with
from equipoise.diagnosis.problem import Model, Problem
from equipoise.diagnosis.trainability.calibration import calibration
from equipoise.diagnosis.trainability.judge import judge
from equipoise.diagnosis.trainability.record import Trainability
from equipoise.numerics.checks import check_within
from equipoise.numerics.options import named_options
from equipoise.records import wording
from equipoise.theory.propagation.propagate import propagate


@named_options
def trainability(
    model: Model,
    data: object = None,
    *,
    loss_fn: Loss | None = None,
    batch_size: int = 64,
    device: torch.device | str | None = None,
    seed: int = 0,
    depth: bool = True,
) -> Trainability:
    r"""How probably a model trains, from theory and one traced pass.

    Args:
        model: A module, which is not changed; a function or class that makes one; or a Hugging
            Face Trainer.
        data: A ``DataLoader``, a ``Dataset``, an iterable of batches, one batch (a pair of
            tensors, a dictionary), a Lightning data module, or a name such as ``"digits"``; may be
            left out if the model brings them along.
        loss_fn: ``loss_fn(model, batch)``, a criterion of (output, target) such as
            ``nn.CrossEntropyLoss()``, or ``"cross-entropy"`` or ``"mse"``; by default the model's
            own loss, or what outputs and targets ask for.
        batch_size: Samples per batch, where the data do not fix it.
        device: Where the model runs; by default where a module is.
        seed: Seed of a factory's weights and of the batch.
        depth: Whether to find how many of its repeated blocks could train, which takes as long as
            several predictions.

    Returns:
        A probability P with its interval, the reason, and what it rests on:
        :math:`\log P / (1 - P) = a - \sum_i b_i x_i` of nine quantities :math:`x_i`, predicted
        and measured. What they are, what "trains" means, and how often the answer was right, is
        in docs/trainability.md.

    Raises:
        ValueError: If model, loss and data do not fit together, no operation of the model has a
            gradient, gradients are not finite, weights can never move, or the output does not
            depend on the input.

    Examples:
        >>> from equipoise import models
        >>> shallow, deep = (
        ...     trainability(lambda: models.mlp(64, 10, depth=depth, width=64), "digits")
        ...     for depth in (4, 100)
        ... )
        >>> shallow.probability > 0.9, deep.probability < 0.1
        (True, True)
        >>> deep.reason
        'similar inputs are driven apart: gradients explode towards the input'
    """
    problem = Problem.prepare(
        model, data, loss_fn=loss_fn, batch_size=batch_size, device=device, seed=seed
    )
    fresh = problem.fresh(problem.seed)
    return _judged(traced(problem, fresh), fresh, depth=depth)


def _judged(found: TracedModel, fresh: nn.Module, *, depth: bool) -> Trainability:
    problem, graph = found.problem, found.graph
    never = stuck(fresh, problem.loss_fn, problem.more(), graph.without_gradient)
    deaf = forgotten(fresh, problem.loss_fn, problem.first, problem.patience, graph.has_functions)
    for finding in [
        *conclude_broken(broken(graph)),
        *conclude_stuck(never),
        *conclude_forgotten(deaf),
    ]:
        raise ValueError(f"{finding.title}. {finding.detail} {finding.remedy}")
    return judge(
        propagate(graph),
        graph.batch,
        calibration(),
        depth=depth,
        again=partial(traced_with, problem, fresh),
        stepped=partial(traced_after_step, problem, fresh),
    )


@named_options
def assert_trainable(
    model: Model,
    data: object = None,
    *,
    at_least: float = 0.5,
    loss_fn: Loss | None = None,
    optimizer: GivenOptimizer | None = None,
    batch_size: int = 64,
    device: torch.device | str | None = None,
    seed: int = 0,
) -> Trainability:
    """Fail if a model will probably not train, or to no good; for test suites.

    Args:
        model: A module, which is not changed; a function or class that makes one; or a Hugging
            Face Trainer.
        data: A ``DataLoader``, a ``Dataset``, an iterable of batches, one batch, a Lightning data
            module, or a name such as ``"digits"``; may be left out if the model brings them along.
        at_least: Probability of training that is asked for.
        loss_fn: A function of (model, batch) or of (output, target), ``"cross-entropy"`` or
            ``"mse"``; by default it is found, as in :func:`equipoise.checkup`.
        optimizer: Your optimiser, in any form that :func:`equipoise.checkup` takes: then some of
            its steps are tried too.
        batch_size: Samples per batch, where the data do not fix it.
        device: Where the model runs; by default where a module is.
        seed: Seed of a factory's weights and of the batch.

    Returns:
        The probability with its interval and reason, as from
        :func:`equipoise.diagnosis.trainability`.

    Raises:
        AssertionError: If the probability is lower, or a critical mistake was found, such as a
            loss with its sign turned or a learning rate that is too large; the message tells
            the reason.
        ValueError: If ``at_least`` is no probability, model, loss and data do not fit together,
            or no operation of the model has a gradient.

    Examples:
        >>> from equipoise import models
        >>> assert_trainable(lambda: models.mlp(64, 10, depth=4, width=64), "digits").outside
        ()
    """
    check_within("at_least", at_least, "[0, 1]", "It is a probability, such as 0.5.")
    problem = Problem.prepare(
        model, data, loss_fn=loss_fn, batch_size=batch_size, device=device, seed=seed
    )
    fresh = problem.fresh(problem.seed)
    taken = traced(problem, fresh)
    found = _judged(taken, fresh, depth=False)
    if found.probability < at_least:
        chance = wording.chance(found.probability, found.low, found.high)
        raise AssertionError(
            f"the model trains with a probability of {chance}, and "
            f"{wording.percent(at_least)} are asked for"
            + (f": {found.reason}." if found.reason else ".")
        )
    stepping, _ = stepping_of(model, optimizer, fresh, partial(problem.fresh, problem.seed))
    steps = None if stepping is None else check_optimizer(problem, stepping)
    left_out = () if stepping is None else stepping.left_out
    for finding in (
        *conclude_optimizer(steps),
        *mistakes(taken.graph, fresh, taken.problem, left_out),
    ):
        if finding.severity == "critical":
            raise AssertionError(
                f"the model is not ready to train. {finding.title}. {finding.detail} "
                f"{finding.remedy or ''}".rstrip()
            )
    return found
