r"""Verify preconditioning by training: side by side, each arm with its own best learning rate.

Arms see the same weights, the same batches in the same order and the same noise. The rate is
chosen on one seed and judged on others. Because most of what preconditioning gains may come from
the input layer, standardised inputs are an arm of their own.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from equipoise.data.source import Source
from equipoise.diagnosis import prepare
from equipoise.diagnosis.trial.record import Arm, Trial
from equipoise.diagnosis.trial.summary import LAST, arm_record, gain_record, untried
from equipoise.layers.convert import convert
from equipoise.preconditioners.bnp import BNP
from equipoise.preconditioners.settings import Settings
from equipoise.training.loop import train
from equipoise.training.losses import LossFunction, default_loss
from equipoise.training.rates import TunedRate, check_rates, tune_rate
from equipoise.training.record import History

Batch = tuple[Tensor, Tensor]
Progress = Callable[[str, int, int], None]
Attach = Callable[[nn.Module, torch.optim.Optimizer], AbstractContextManager[Any]]

MakeOptimizer = Callable[..., torch.optim.Optimizer]

STEPS, SEEDS = 200, 3
# Momentum is what users of SGD have; a factor of three between rates loses little.
_OPTIMIZERS: dict[str, tuple[MakeOptimizer, tuple[float, ...]]] = {
    "sgd": (partial(torch.optim.SGD, momentum=0.9), (0.003, 0.01, 0.03, 0.1)),
    "adam": (torch.optim.Adam, (0.0003, 0.001, 0.003, 0.01)),
    "adamw": (torch.optim.AdamW, (0.0003, 0.001, 0.003, 0.01)),
}
OPTIMIZERS = tuple(_OPTIMIZERS)
_EXTENSIONS = 2
# A quarter of the steps is averaged over.
_LEAST_STEPS = 4
# Batches whose features' means and variances standardise the inputs.
_SAMPLE = 16
_PLAIN, _STANDARDISED, _BNP = "as it is", "standardised inputs", "BNP"
_INSTEAD = "BNP instead of batch norm"


@dataclass(frozen=True, slots=True)
class _Way:
    """How an arm differs from the model as it is."""

    name: str
    change_model: Callable[[nn.Module], nn.Module] = lambda model: model
    change_inputs: Callable[[Tensor], Tensor] = lambda x: x
    attach: Attach = lambda model, optimizer: contextlib.nullcontext()


def try_bnp(
    build: Callable[[], nn.Module],
    source: Source,
    *,
    loss_fn: LossFunction | None = None,
    batch_size: int = 64,
    optimizer: str = "sgd",
    rates: Sequence[float] | None = None,
    steps: int = STEPS,
    seeds: int = SEEDS,
    device: torch.device | str = "cpu",
    seed: int = 0,
    progress: Progress | None = None,
) -> Trial:
    """Train with and without preconditioning, and with standardised inputs, and compare.

    Args:
        build: Returns a new model with freshly drawn weights, in the mode it is trained in.
        source: Where batches come from.
        loss_fn: ``loss_fn(model, batch)``; by default as in :func:`~equipoise.diagnosis.checkup`.
        batch_size: Samples per batch, where the source does not fix it.
        optimizer: ``"sgd"`` (momentum 0.9), ``"adam"`` or ``"adamw"``.
        rates: Learning rates to try first; the grid is extended while its best is at an edge.
        steps: Steps of each run.
        seeds: Initialisations and data orders to judge by; the rate is chosen on another.
        device: Where the model runs.
        seed: Of the run that chooses the rate; the next ones judge.
        progress: Called with a stage, finished and total runs.

    Raises:
        ValueError: If an option is out of range.

    Examples:
        >>> from equipoise import data, models
        >>> build = lambda: models.mlp(64, 10, depth=2, width=16, norm="none")
        >>> trial = try_bnp(build, data.load("digits"), steps=40, seeds=2, rates=(0.01, 0.1))
        >>> [arm.name for arm in trial.arms]
        ['as it is', 'standardised inputs', 'BNP']
        >>> trial.gains[-1].difference.value < 0
        True

    References:
        [lange2022], Section 5; the standardised inputs are not in the paper.
    """
    check_trial(optimizer, steps, seeds)
    if rates is not None:
        check_rates(rates)
    make, grid = _OPTIMIZERS[optimizer]
    place = torch.device(device)
    (first,) = prepare.draw(source, batch_size, 1, place, seed)
    loss = loss_fn or default_loss(first)
    model = prepare.fresh(build, first, seed)
    prepare.rehearse(model, first, loss, source.name)
    ways = _ways(model, prepare.draw(source, batch_size, _SAMPLE, place, seed))
    report = _Counted(progress, len(ways) * (len(rates or grid) + seeds))

    def run(way: _Way, rate: float, number: int) -> History:
        report.tick()
        changed = way.change_model(prepare.fresh(build, first, number))
        stepper = make(changed.parameters(), lr=rate)
        batches = _batches(source, batch_size, steps, place, number, way.change_inputs)
        with prepare.seeded(number), way.attach(changed, stepper):
            return train(changed, batches, loss, stepper)

    def tuned(way: _Way) -> TunedRate | str:
        return _obstacle(way, prepare.fresh(build, first, seed), make) or tune_rate(
            lambda rate: run(way, rate, seed).mean_loss(LAST),
            rates or grid,
            extensions=_EXTENSIONS,
        )

    choices = {way.name: tuned(way) for way in ways}
    histories: dict[str, list[History]] = {way.name: [] for way in ways}
    for number in range(seed + 1, seed + 1 + seeds):
        # All ways in turn, so that a busy machine slows them alike.
        for way in ways:
            choice = choices[way.name]
            if isinstance(choice, TunedRate):
                histories[way.name].append(run(way, choice.safest, number))
    report.finish()
    arms = tuple(_arm(name, choice, histories[name]) for name, choice in choices.items())
    plain = histories[_PLAIN]
    gains = tuple(
        gain_record(name, plain, changed)
        for name, changed in histories.items()
        if changed and plain and changed is not plain
    )
    return Trial(optimizer, steps, seeds, arms, gains)


def _obstacle(way: _Way, model: nn.Module, make: MakeOptimizer) -> str | None:
    """Why a way cannot be gone, such as that there is no layer to precondition."""
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
    if any(isinstance(module, nn.modules.batchnorm._BatchNorm) for module in model.modules()):
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


def _batches(
    source: Source,
    batch_size: int,
    steps: int,
    device: torch.device,
    seed: int,
    change: Callable[[Tensor], Tensor],
) -> Iterator[Batch]:
    generator = torch.Generator().manual_seed(seed)
    for x, y in source.batches(batch_size, steps, generator):
        yield change(x.to(device)), y.to(device)


class _Counted:
    """Tells how many runs are finished; extended grids add some, which the total forgoes."""

    def __init__(self, progress: Progress | None, total: int) -> None:
        self._progress, self._total, self._done = progress, total, 0

    def tick(self) -> None:
        if self._progress is not None:
            self._progress("training side by side", min(self._done, self._total), self._total)
        self._done += 1

    def finish(self) -> None:
        if self._progress is not None:
            self._progress("training side by side", self._total, self._total)


def check_trial(optimizer: str = "sgd", steps: int = STEPS, seeds: int = SEEDS) -> None:
    """Refuse options of :func:`try_bnp` that are out of range, before any work."""
    if optimizer not in _OPTIMIZERS:
        raise ValueError(f"optimizer must be one of {', '.join(OPTIMIZERS)}, got {optimizer!r}.")
    if steps < _LEAST_STEPS:
        raise ValueError(f"steps must be at least {_LEAST_STEPS}, got {steps}.")
    if seeds < 1:
        raise ValueError(f"seeds must be at least 1, got {seeds}.")
