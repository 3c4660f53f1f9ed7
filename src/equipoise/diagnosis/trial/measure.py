r"""Verify preconditioning by training: side by side, each arm with its own best learning rate.

Arms see the same weights, the same batches in the same order and the same noise. The rate is
chosen on one seed and judged on others. Because most of what preconditioning gains may come from
the input layer, standardised inputs are an arm of their own.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from equipoise.diagnosis.problem import Model, Problem, seeded
from equipoise.diagnosis.trial.record import Arm, Trial
from equipoise.diagnosis.trial.summary import LAST, arm_record, gain_record, untried
from equipoise.instrument.normalisers import is_batch_norm
from equipoise.instrument.progress import StageCounter
from equipoise.instrument.types import Batch, LossFunction, Progress
from equipoise.layers.convert import convert
from equipoise.preconditioners.bnp.bnp import BNP
from equipoise.preconditioners.bnp.settings import Settings
from equipoise.training.loop import train
from equipoise.training.rates import TunedRate, check_rates, tune_rate
from equipoise.training.record import History

_Attach = Callable[[nn.Module, torch.optim.Optimizer], AbstractContextManager[Any]]
_MakeOptimizer = Callable[..., torch.optim.Optimizer]

# Momentum is what users of SGD have; a factor of three between rates loses little.
_OPTIMIZERS: dict[str, tuple[_MakeOptimizer, tuple[float, ...]]] = {
    "sgd": (partial(torch.optim.SGD, momentum=0.9), (0.003, 0.01, 0.03, 0.1)),
    "adam": (torch.optim.Adam, (0.0003, 0.001, 0.003, 0.01)),
    "adamw": (torch.optim.AdamW, (0.0003, 0.001, 0.003, 0.01)),
}
_EXTENSIONS = 2
# A quarter of the steps is averaged over.
_LEAST_STEPS = 4
# Batches whose features' means and variances standardise the inputs.
_SAMPLE = 16
_PLAIN, _STANDARDISED, _BNP = "as it is", "standardised inputs", "BNP"
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
        if self.optimizer not in _OPTIMIZERS:
            known = ", ".join(_OPTIMIZERS)
            raise ValueError(f"optimizer must be one of {known}, got {self.optimizer!r}.")
        if self.rates is not None:
            check_rates(self.rates)
        if self.steps < _LEAST_STEPS:
            raise ValueError(f"steps must be at least {_LEAST_STEPS}, got {self.steps}.")
        if self.seeds < 1:
            raise ValueError(f"seeds must be at least 1, got {self.seeds}.")


@dataclass(frozen=True, slots=True)
class _Way:
    """How an arm differs from the model as it is."""

    name: str
    change_model: Callable[[nn.Module], nn.Module] = lambda model: model
    change_inputs: Callable[[Tensor], Tensor] = lambda x: x
    attach: _Attach = lambda model, optimizer: contextlib.nullcontext()


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
            trained in. A module keeps its weights, and is left as it is.
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
        ['as it is', 'standardised inputs', 'BNP']
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
    """Train every arm; see :func:`try_bnp`."""
    seed, (make, grid) = problem.seed, _OPTIMIZERS[options.optimizer]
    rates = options.rates or grid
    ways = _ways(problem.fresh(seed), problem.draw(_SAMPLE, seed))
    counter = StageCounter(
        progress, "training side by side", len(ways) * (len(rates) + options.seeds)
    )

    def run(way: _Way, rate: float, number: int) -> History:
        counter.begin()
        changed = way.change_model(problem.fresh(number))
        stepper = make(changed.parameters(), lr=rate)
        batches = ((way.change_inputs(x), y) for x, y in problem.batches(options.steps, number))
        with seeded(number), way.attach(changed, stepper):
            return train(changed, batches, problem.loss_fn, stepper)

    def tuned(way: _Way) -> TunedRate | str:
        return _obstacle(way, problem.fresh(seed), make) or tune_rate(
            lambda rate: run(way, rate, seed).mean_loss(LAST), rates, extensions=_EXTENSIONS
        )

    choices = {way.name: tuned(way) for way in ways}
    histories: dict[str, list[History]] = {way.name: [] for way in ways}
    for number in range(seed + 1, seed + 1 + options.seeds):
        # All ways in turn, so that a busy machine slows them alike.
        for way in ways:
            choice = choices[way.name]
            if isinstance(choice, TunedRate):
                histories[way.name].append(run(way, choice.safest, number))
    counter.finish()
    arms = tuple(_arm(name, choice, histories[name]) for name, choice in choices.items())
    plain = histories[_PLAIN]
    gains = tuple(
        gain_record(name, plain, changed)
        for name, changed in histories.items()
        if changed and plain and changed is not plain
    )
    return Trial(options.optimizer, options.steps, options.seeds, arms, gains)


def _obstacle(way: _Way, model: nn.Module, make: _MakeOptimizer) -> str | None:
    """Why an arm cannot be trained, such as that there is no layer to precondition."""
    try:
        changed = way.change_model(model)
        with way.attach(changed, make(changed.parameters(), lr=0.0)):
            return None
    except ValueError as error:
        return str(error)


def _arm(name: str, choice: TunedRate | str, histories: Sequence[History]) -> Arm:
    if isinstance(choice, str):
        return untried(name, choice)
    return arm_record(name, choice, histories)


def _ways(model: nn.Module, sample: Sequence[Batch]) -> list[_Way]:
    ways = [_Way(_PLAIN)]
    if sample[0][0].is_floating_point():
        ways.append(_Way(_STANDARDISED, change_inputs=_standardiser(model, sample)))
    ways.append(_Way(_BNP, attach=_attach))
    if any(is_batch_norm(module) for module in model.modules()):
        ways.append(
            _Way(_INSTEAD, lambda model: convert(model, "batch", "none").model, attach=_attach)
        )
    return ways


def _attach(model: nn.Module, optimizer: torch.optim.Optimizer) -> AbstractContextManager[Any]:
    return BNP(model).attach(optimizer)


def _standardiser(model: nn.Module, sample: Sequence[Batch]) -> Callable[[Tensor], Tensor]:
    """Standardise features as the preconditioner would: channels before a convolution."""
    x = torch.cat([inputs for inputs, _ in sample])
    layers = (nn.Linear, nn.modules.conv._ConvNd)
    first = next((m for m in model.modules() if isinstance(m, layers)), None)
    over = [0, *range(2, x.ndim)] if isinstance(first, nn.modules.conv._ConvNd) else [0]
    mean, variance = x.mean(over, keepdim=True), x.var(over, correction=0, keepdim=True)
    large, small = Settings().eps
    deviation = (variance + large * variance.max() + small).sqrt()
    return lambda inputs: (inputs - mean) / deviation
