r"""How far gradients are reliable, with normalisers and without, at the start and in training.

All points of one measurement differ in the parameters alone. Every variant trains from the same
weights where they fit, on the same batches, at its own best learning rate, which is chosen on one
seed and used on others.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import nn

from equipoise.diagnosis.inputs.adapt import Loss
from equipoise.diagnosis.problem import Model, Problem
from equipoise.diagnosis.short_training import (
    ADAPTIVE,
    EXTENSIONS,
    NOT_TRAINED,
    MakeOptimizer,
    Variant,
    check_options,
    mean_over_seeds,
)
from equipoise.diagnosis.smoothness.along_step import measure_along_step
from equipoise.diagnosis.smoothness.record import Smoothness, SmoothnessArm, SmoothnessRun
from equipoise.diagnosis.smoothness.training import Course
from equipoise.diagnosis.smoothness.variants import Change, changed, variants
from equipoise.instrument.normalisers import is_batch_norm
from equipoise.instrument.progress import StageCounter
from equipoise.instrument.types import Progress
from equipoise.numerics.checks import check_positive, check_whole
from equipoise.numerics.options import named_options
from equipoise.training.rates import TunedRate, tune_rate

# What [santurkar2018] trains VGG with. At initialisation no rate is tuned yet, so the points lie
# wide apart: a batch-normalised ReLU network of 32 layers crosses kinks at 2·10⁻⁷, and a network
# on a plateau does not change at 1.
START_RATE = 0.1
_START_MULTIPLES = tuple(10.0 ** (k / 2) for k in range(-14, 3))
# [santurkar2018], appendix A.2.1: from half the rate to four times it.
_REACH = (0.5, 4.0)
# Steps' worth of time that the internal covariate shift of one step takes.
_OF_A_SHIFT = 4
# Plain SGD, whose step is the gradient, as in [santurkar2018].
_OPTIMIZERS: dict[str, tuple[MakeOptimizer, tuple[float, ...]]] = {
    "sgd": (torch.optim.SGD, (0.01, 0.03, 0.1, 0.3)),
    **ADAPTIVE,
}


@dataclass(frozen=True, slots=True)
class SmoothnessOptions:
    """How long a model trains, and how often and at how many points it is measured meanwhile.

    Args:
        optimizer: ``"sgd"`` (without momentum, so that its step is the gradient), ``"adam"`` or
            ``"adamw"``.
        rate: Learning rate of every variant; by default each has the best one of a small grid.
        steps: Steps of each run, at least 4.
        measurements: How many, from before the first step to after the last; at least 2.
        points: Points of each measurement, at least 2.
        seeds: Initialisations and data orders; rates are chosen on another seed.

    Raises:
        ValueError: If an option is out of range.
    """

    optimizer: str = "sgd"
    rate: float | None = None
    steps: int = 60
    measurements: int = 5
    points: int = 8
    seeds: int = 3

    def __post_init__(self) -> None:
        check_options(self.optimizer, _OPTIMIZERS, self.steps, self.seeds)
        check_whole("measurements", self.measurements, 2)
        check_whole("points", self.points, 2)
        if self.rate is not None:
            check_positive(rate=self.rate)


def smoothness_at_start(problem: Problem, fixes: Mapping[str, Change] | None = None) -> Smoothness:
    """Measure along the gradient of new weights, in 17 steps from 10⁻⁸ to 1, without training.

    Args:
        problem: Model, data and loss; its seed is that of the weights.
        fixes: Further changes by name, each of which returns a changed copy of a model.

    Returns:
        One measurement per variant. A variant that cannot be measured says why.

    Examples:
        >>> from equipoise import data, models
        >>> build = lambda: models.mlp(64, 10, depth=12, width=32)
        >>> found = smoothness_at_start(Problem.prepare(build, data.load("digits"), batch_size=32))
        >>> [(arm.name, arm.runs[0].measurements[0].reliable_step > 0.1) for arm in found.arms]
        [('unchanged', False), ('without normalisers', True)]
    """
    steps = [START_RATE * multiple for multiple in _START_MULTIPLES]
    seed, arms = problem.seed, []
    for variant in variants(problem.fresh(seed), fixes or {}):
        try:
            model = changed(variant, problem.fresh(seed), problem)
            measurement = measure_along_step(model, problem.loss_fn, problem.first, steps=steps)
        except (ValueError, TypeError) as error:
            arms.append(_not_tried(variant, str(error)))
        else:
            runs = (SmoothnessRun(seed, (measurement,), math.nan),)
            arms.append(SmoothnessArm(variant.name, START_RATE, (), False, runs, NOT_TRAINED))
    return Smoothness("sgd", 0, 1, tuple(arms))


def steps_of_smoothness(model: nn.Module, training: SmoothnessOptions | None) -> int:
    """About how many training steps :func:`smoothness_at_start` takes, or trainings.

    Examples:
        >>> model = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2), nn.Linear(2, 1))
        >>> steps_of_smoothness(model, None), steps_of_smoothness(model, SmoothnessOptions())
        (54, 1800)
    """
    others = {"a remedy": lambda model: model} if any(map(is_batch_norm, model.modules())) else {}
    count = len(variants(model, others))
    if training is None:
        return count * (len(_START_MULTIPLES) + 1)
    grid = 0 if training.rate else len(_OPTIMIZERS[training.optimizer][1])
    at_points = training.measurements * (training.points + _OF_A_SHIFT)
    return count * (training.steps * (grid + training.seeds) + training.seeds * at_points)


@named_options
def smoothness(
    model: Model,
    data: object = None,
    options: SmoothnessOptions | None = None,
    *,
    loss_fn: Loss | None = None,
    batch_size: int = 64,
    fixes: Mapping[str, Change] | None = None,
    device: torch.device | str | None = None,
    seed: int = 0,
    progress: Progress | None = None,
) -> Smoothness:
    r"""Train for a short while, and measure loss and gradient along the optimiser's steps.

    A measurement takes loss and gradient at :math:`\theta - \eta d`, where η = learning rate is
    the step that the optimiser would take, at points in geometric spacing from ½ to 4 times the
    rate, and the internal covariate shift of that step. It does not change the training, bit for
    bit.

    Args:
        model: A class or a function that returns a new model with freshly drawn weights, in the
            mode it is trained in. A module keeps its weights, and is not changed. A
            LightningModule trains by its ``training_step``, a Hugging Face Trainer by its
            ``compute_loss``.
        data: A ``DataLoader``, a ``Dataset``, an iterable of batches, one batch (a pair of
            tensors, a dictionary), a Lightning data module, or a name such as ``"digits"``; may be
            left out if the model brings them along.
        options: Optimiser, rate, steps, measurements and seeds; by default
            :class:`SmoothnessOptions`'s own.
        loss_fn: ``loss_fn(model, batch)``; by default as in :func:`equipoise.checkup`.
        batch_size: Samples per batch, where the data do not fix it.
        fixes: Further changes by name, each of which returns a changed copy of a model.
        device: Where the model runs; by default where a module is.
        seed: Seed of the run that chooses the rate; the next ones are measured.
        progress: Called with a stage, finished and total runs.

    Returns:
        The unchanged model, the model without its normalisers if it has some, and with each fix.
        A variant that cannot be trained says why.

    Raises:
        ValueError: If model, loss and data do not fit together.

    Examples:
        >>> from equipoise import models
        >>> build = lambda: models.mlp(64, 10, depth=2, width=16)
        >>> options = SmoothnessOptions(rate=0.1, steps=4, measurements=2, seeds=1)
        >>> found = smoothness(build, "digits", options)
        >>> [(arm.name, [m.step for m in arm.runs[0].measurements]) for arm in found.arms]
        [('unchanged', [0, 4]), ('without normalisers', [0, 4])]

    References:
        [santurkar2018], Section 3.2, Figures 3 and 4.
    """
    problem = Problem.prepare(
        model, data, loss_fn=loss_fn, batch_size=batch_size, device=device, seed=seed
    )
    return smoothness_in_training(problem, options or SmoothnessOptions(), fixes or {}, progress)


def smoothness_in_training(
    problem: Problem,
    options: SmoothnessOptions,
    fixes: Mapping[str, Change],
    progress: Progress | None,
) -> Smoothness:
    """Train every variant and measure it on the way; see :func:`smoothness`."""
    seed, seeds, rate = problem.seed, options.seeds, options.rate
    make, grid = _OPTIMIZERS[options.optimizer]
    intervals = options.measurements - 1
    measured_at = {round(k * options.steps / intervals) for k in range(intervals + 1)}
    course = Course(
        problem=problem,
        make=make,
        steps=options.steps,
        measured_at=tuple(sorted(measured_at)),
        multiples=points_around(1.0, options.points),
    )
    chosen = variants(problem.fresh(seed), fixes)
    counter = StageCounter(
        progress, "measuring smoothness", len(chosen) * (seeds + (0 if rate else len(grid)))
    )

    def final_loss(variant: Variant, eta: float) -> float:
        counter.begin()
        return course.run(variant, eta, seed, measured=False).loss

    def arm(variant: Variant) -> SmoothnessArm:
        try:
            changed(variant, problem.fresh(seed), problem)
        except ValueError as error:
            return _not_tried(variant, str(error))
        tuned = TunedRate(rate or math.nan, (), at_edge=False)
        if rate is None:
            tuned = tune_rate(lambda eta: final_loss(variant, eta), grid, extensions=EXTENSIONS)
        runs = []
        for number in range(seed + 1, seed + 1 + seeds):
            counter.begin()
            runs.append(course.run(variant, rate or tuned.safest, number, measured=True))
        return _arm(variant, tuned, runs)

    arms = tuple(arm(variant) for variant in chosen)
    counter.finish()
    return Smoothness(options.optimizer, options.steps, seeds, arms)


def points_around(rate: float, count: int = 8) -> tuple[float, ...]:
    """Steps in geometric spacing from half a rate to four times it.

    Examples:
        >>> [round(step, 6) for step in points_around(0.1, 4)]
        [0.05, 0.1, 0.2, 0.4]
    """
    low, high = _REACH
    return tuple(rate * low * (high / low) ** (k / (count - 1)) for k in range(count))


def _arm(variant: Variant, tuned: TunedRate, runs: Sequence[SmoothnessRun]) -> SmoothnessArm:
    loss = mean_over_seeds([run.loss for run in runs])
    return SmoothnessArm(variant.name, tuned.rate, tuned.scores, tuned.at_edge, tuple(runs), loss)


def _not_tried(variant: Variant, reason: str) -> SmoothnessArm:
    return SmoothnessArm(variant.name, math.nan, (), False, (), NOT_TRAINED, reason)
