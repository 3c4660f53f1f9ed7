r"""Train with and without preconditioning, side by side, each at its own best learning rate.

All variants see the same weights, the same batches in the same order and the same noise. The
learning rate is chosen on one seed and judged on others. Because most of what preconditioning
gains may come from the input layer, standardised inputs are a variant of their own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from equipoise.diagnosis.problem import Model, Problem, seeded
from equipoise.diagnosis.short_training import (
    ADAPTIVE,
    EXTENSIONS,
    LAST,
    UNCHANGED,
    MakeOptimizer,
    Variant,
    check_options,
)
from equipoise.diagnosis.trial.record import Arm, Trial
from equipoise.diagnosis.trial.summary import arm_record, gain_record, not_tried
from equipoise.instrument.normalisers import is_batch_norm
from equipoise.instrument.progress import StageCounter
from equipoise.instrument.types import Batch, LossFunction, Progress
from equipoise.layers.convert import convert
from equipoise.preconditioners.bnp.bnp import BNP
from equipoise.preconditioners.bnp.settings import Settings
from equipoise.training.loop import train
from equipoise.training.rates import TunedRate, check_rates, tune_rate
from equipoise.training.record import History

# SGD has the momentum that most users give it.
_OPTIMIZERS: dict[str, tuple[MakeOptimizer, tuple[float, ...]]] = {
    "sgd": (partial(torch.optim.SGD, momentum=0.9), (0.003, 0.01, 0.03, 0.1)),
    **ADAPTIVE,
}
# Batches whose features' means and variances standardise the inputs.
_SAMPLE = 16
STANDARDISED, BNP_NAME = "standardised inputs", "BNP"
_INSTEAD = "BNP instead of batch norm"


@dataclass(frozen=True, slots=True)
class TrialOptions:
    """How long and how often a trial trains.

    Args:
        optimizer: ``"sgd"`` (momentum 0.9), ``"adam"`` or ``"adamw"``.
        rates: Learning rates to try first, by default a grid of four; the grid is extended while
            its best is at an edge.
        steps: Steps of each run, at least 4.
        seeds: Initialisations and data orders to judge by; the rate is chosen on another.

    Raises:
        ValueError: If an option is out of range.
    """

    optimizer: str = "sgd"
    rates: tuple[float, ...] | None = None
    steps: int = 200
    seeds: int = 3

    def __post_init__(self) -> None:
        check_options(self.optimizer, _OPTIMIZERS, self.steps, self.seeds)
        if self.rates is not None:
            check_rates(self.rates)


def try_bnp(
    model: Model,
    data: object,
    options: TrialOptions | None = None,
    *,
    loss_fn: LossFunction | None = None,
    batch_size: int = 64,
    device: torch.device | str = "cpu",
    seed: int = 0,
    progress: Progress | None = None,
) -> Trial:
    """Train with and without preconditioning, and with standardised inputs, and compare.

    Args:
        model: A callable that returns a new model with freshly drawn weights, in the mode it is
            trained in. A module keeps its weights, and is not changed.
        data: A name such as ``"digits"``, a ``DataLoader``, a ``Dataset``, an iterable of
            (input, target) batches, or a pair of tensors.
        options: Optimiser, rates, steps and seeds; by default :class:`TrialOptions`'s own.
        loss_fn: ``loss_fn(model, batch)``; by default as in :func:`equipoise.checkup`.
        batch_size: Samples per batch, where the data do not fix it.
        device: Where the model runs.
        seed: Seed of the run that chooses the rate; the next ones judge.
        progress: Called with a stage, finished and total runs.

    Raises:
        ValueError: If model, loss and data do not fit together.

    Examples:
        >>> from equipoise import models
        >>> build = lambda: models.mlp(64, 10, depth=2, width=16, norm="none")
        >>> options = TrialOptions(steps=40, seeds=2, rates=(0.01, 0.1))
        >>> trial = try_bnp(build, "digits", options)
        >>> [arm.name for arm in trial.arms]
        ['unchanged', 'standardised inputs', 'BNP']
        >>> trial.gains[-1].difference.value < 0
        True

    References:
        [lange2022], Section 5; the standardised inputs are not in the paper.
    """
    problem = Problem.prepare(
        model, data, loss_fn=loss_fn, batch_size=batch_size, device=device, seed=seed
    )
    return run_trial(problem, options or TrialOptions(), progress)


def run_trial(problem: Problem, options: TrialOptions, progress: Progress | None) -> Trial:
    """Train every variant; see :func:`try_bnp`."""
    seed, (make, grid) = problem.seed, _OPTIMIZERS[options.optimizer]
    rates = options.rates or grid
    variants = _variants(problem.fresh(seed), problem.draw(_SAMPLE, seed))
    counter = StageCounter(
        progress, "training side by side", len(variants) * (len(rates) + options.seeds)
    )

    def run(variant: Variant, rate: float, number: int) -> History:
        counter.begin()
        model = variant.change_model(problem.fresh(number))
        optimizer = make(model.parameters(), lr=rate)
        drawn = problem.batches(options.steps, number)
        batches = ((variant.change_inputs(x), y) for x, y in drawn)
        with seeded(number), variant.attach(model, optimizer):
            return train(model, batches, problem.loss_fn, optimizer)

    def tuned(variant: Variant) -> TunedRate | str:
        return _obstacle(variant, problem.fresh(seed), make) or tune_rate(
            lambda rate: run(variant, rate, seed).mean_loss(LAST), rates, extensions=EXTENSIONS
        )

    choices = {variant.name: tuned(variant) for variant in variants}
    histories: dict[str, list[History]] = {variant.name: [] for variant in variants}
    for number in range(seed + 1, seed + 1 + options.seeds):
        # All variants in turn, so that a busy machine slows them alike.
        for variant in variants:
            choice = choices[variant.name]
            if isinstance(choice, TunedRate):
                histories[variant.name].append(run(variant, choice.safest, number))
    counter.finish()
    arms = tuple(_arm(name, choice, histories[name]) for name, choice in choices.items())
    plain = histories[UNCHANGED]
    gains = tuple(
        gain_record(name, plain, changed)
        for name, changed in histories.items()
        if changed and plain and changed is not plain
    )
    return Trial(options.optimizer, options.steps, options.seeds, arms, gains)


def _obstacle(variant: Variant, model: nn.Module, make: MakeOptimizer) -> str | None:
    """Why a variant cannot be trained, such as that there is no layer to precondition."""
    try:
        changed = variant.change_model(model)
        with variant.attach(changed, make(changed.parameters(), lr=0.0)):
            return None
    except ValueError as error:
        return str(error)


def _arm(name: str, choice: TunedRate | str, histories: Sequence[History]) -> Arm:
    if isinstance(choice, str):
        return not_tried(name, choice)
    return arm_record(name, choice, histories)


def _variants(model: nn.Module, sample: Sequence[Batch]) -> list[Variant]:
    found = [Variant(UNCHANGED)]
    if sample[0][0].is_floating_point():
        found.append(Variant(STANDARDISED, change_inputs=_standardiser(model, sample)))
    found.append(Variant(BNP_NAME, attach=_attach))
    if any(is_batch_norm(module) for module in model.modules()):
        found.append(Variant(_INSTEAD, _without_batch_norm, attach=_attach))
    return found


def _without_batch_norm(model: nn.Module) -> nn.Module:
    return convert(model, "batch", "none").model


def _attach(model: nn.Module, optimizer: torch.optim.Optimizer) -> AbstractContextManager[Any]:
    return BNP(model).attach(optimizer)


def _standardiser(model: nn.Module, sample: Sequence[Batch]) -> Callable[[Tensor], Tensor]:
    """Standardise features as the preconditioner would: per channel before a convolution."""
    x = torch.cat([inputs for inputs, _ in sample])
    layers = (nn.Linear, nn.modules.conv._ConvNd)
    first = next((m for m in model.modules() if isinstance(m, layers)), None)
    over = [0, *range(2, x.ndim)] if isinstance(first, nn.modules.conv._ConvNd) else [0]
    mean, variance = x.mean(over, keepdim=True), x.var(over, correction=0, keepdim=True)
    large, small = Settings().eps
    deviation = (variance + large * variance.max() + small).sqrt()
    return lambda inputs: (inputs - mean) / deviation
