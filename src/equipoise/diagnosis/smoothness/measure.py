r"""How far gradients can be trusted, with normalisers and without, at the start and in training.

Between two points of one look nothing differs but the parameters. Every arm trains from the same
weights where they fit, on the same batches, at its own best rate, which is chosen on one seed and
used on others.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

from equipoise.diagnosis.problem import Model, Problem
from equipoise.diagnosis.smoothness.looks import look
from equipoise.diagnosis.smoothness.record import Smoothness, SmoothnessArm, SmoothnessRun
from equipoise.diagnosis.smoothness.runs import Course
from equipoise.diagnosis.smoothness.ways import Change, Way, ways
from equipoise.instrument.progress import StageCounter
from equipoise.instrument.types import LossFunction, Progress
from equipoise.records.estimate import Estimate
from equipoise.training.rates import TunedRate, tune_rate

# What [santurkar2018] trains VGG with. At the start no rate is tuned yet, so points lie wide:
# a batch-normalised ReLU network, 32 layers deep, has crossed kinks at 2·10⁻⁷, one on a plateau
# changes nothing at 1.
START_RATE = 0.1
_START_MULTIPLES = tuple(10.0 ** (k / 2) for k in range(-14, 3))
# [santurkar2018], appendix A.2.1: from half the rate to four times it.
_REACH = (0.5, 4.0)
# Plain SGD, whose step is the gradient, as in [santurkar2018]. A factor of three loses little.
_OPTIMIZERS: dict[str, tuple[type[torch.optim.Optimizer], tuple[float, ...]]] = {
    "sgd": (torch.optim.SGD, (0.01, 0.03, 0.1, 0.3)),
    "adam": (torch.optim.Adam, (0.0003, 0.001, 0.003, 0.01)),
    "adamw": (torch.optim.AdamW, (0.0003, 0.001, 0.003, 0.01)),
}
_EXTENSIONS = 2
_LEAST_STEPS = 4


@dataclass(frozen=True, slots=True)
class SmoothnessOptions:
    """How long a model trains with looks at the loss on the way, and how many points a look has.

    Args:
        optimizer: ``"sgd"`` (without momentum, so that its step is the gradient), ``"adam"`` or
            ``"adamw"``.
        rate: Learning rate of every arm; by default each has the best one of a small grid.
        steps: Steps of each run, at least 4.
        looks: How many, from before the first step to after the last; at least 2.
        points: Points of each look, at least 2.
        seeds: Initialisations and data orders; rates are chosen on another.

    Raises:
        ValueError: If an option is out of range.
    """

    optimizer: str = "sgd"
    rate: float | None = None
    steps: int = 60
    looks: int = 5
    points: int = 8
    seeds: int = 3

    def __post_init__(self) -> None:
        if self.optimizer not in _OPTIMIZERS:
            known = ", ".join(_OPTIMIZERS)
            raise ValueError(f"optimizer must be one of {known}, got {self.optimizer!r}.")
        if self.rate is not None and not 0 < self.rate < math.inf:
            raise ValueError(f"rate must be a positive number, got {self.rate}.")
        for name, least in {"steps": _LEAST_STEPS, "looks": 2, "points": 2, "seeds": 1}.items():
            value = getattr(self, name)
            if value < least:
                raise ValueError(f"{name} must be at least {least}, got {value}.")


def smoothness_at_start(problem: Problem, fixes: Mapping[str, Change] | None = None) -> Smoothness:
    """Look along the gradient of new weights, in 17 steps from 10⁻⁸ to 1; nothing is trained.

    Args:
        problem: Model, data and loss; its seed is that of the weights.
        fixes: Further changes by name, each of which returns a changed copy of a model.

    Returns:
        One look per arm. An arm that cannot be measured says why.

    Examples:
        >>> from equipoise import data, models
        >>> build = lambda: models.mlp(64, 10, depth=12, width=32)
        >>> found = smoothness_at_start(Problem.prepare(build, data.load("digits"), batch_size=32))
        >>> [(arm.name, arm.runs[0].looks[0].trusted_step > 0.1) for arm in found.arms]
        [('as it is', False), ('without its normalisers', True)]
    """
    steps = [START_RATE * multiple for multiple in _START_MULTIPLES]
    seed, arms = problem.seed, []
    for way in ways(problem.fresh(seed), fixes or {}):
        try:
            model = way.applied(problem.fresh(seed), problem)
            first = look(model, problem.loss_fn, problem.first, steps=steps)
        except (ValueError, TypeError) as error:
            arms.append(_untried(way, str(error)))
        else:
            runs = (SmoothnessRun(seed, (first,), math.nan),)
            arms.append(SmoothnessArm(way.name, START_RATE, (), False, runs, _nothing()))
    return Smoothness("sgd", 0, 1, tuple(arms))


def smoothness(
    model: Model,
    data: object,
    options: SmoothnessOptions | None = None,
    *,
    loss_fn: LossFunction | None = None,
    batch_size: int = 64,
    fixes: Mapping[str, Change] | None = None,
    device: torch.device | str = "cpu",
    seed: int = 0,
    progress: Progress | None = None,
) -> Smoothness:
    r"""Train for a short while and look along the optimiser's step on the way.

    A look measures loss and gradient at :math:`\theta - \eta d`, where η = rate is the step that
    the optimiser would take, at points in geometric spacing from ½ to 4 times the rate, and the
    internal covariate shift of that step. Looks leave training as it is, bit for bit.

    Args:
        model: A callable that returns a new model with freshly drawn weights, in the mode it is
            trained in. A module keeps its weights, and is left as it is.
        data: A name such as ``"digits"``, a ``DataLoader``, a ``Dataset``, an iterable of
            (input, target) batches, or a pair of tensors.
        options: Optimiser, rate, steps, looks and seeds; by default
            :class:`SmoothnessOptions`'s own.
        loss_fn: ``loss_fn(model, batch)``; by default as in :func:`equipoise.checkup`.
        batch_size: Samples per batch, where the data do not fix it.
        fixes: Further changes by name, each of which returns a changed copy of a model.
        device: Where the model runs.
        seed: Seed of the run that chooses the rate; the next ones are looked at.
        progress: Called with a stage, finished and total runs.

    Returns:
        The model as it is, without its normalisers if it has some, and with each fix. An arm
        that cannot be trained says why.

    Raises:
        ValueError: If model, loss and data do not fit together.

    Examples:
        >>> from equipoise import models
        >>> build = lambda: models.mlp(64, 10, depth=2, width=16)
        >>> options = SmoothnessOptions(rate=0.1, steps=4, looks=2, seeds=1)
        >>> found = smoothness(build, "digits", options)
        >>> [(arm.name, [look.step for look in arm.runs[0].looks]) for arm in found.arms]
        [('as it is', [0, 4]), ('without its normalisers', [0, 4])]

    References:
        [santurkar2018], Section 3.2, Figures 3 and 4.
    """
    problem = Problem.prepare(
        model, data, loss_fn=loss_fn, batch_size=batch_size, device=device, seed=seed
    )
    return follow(problem, options or SmoothnessOptions(), fixes or {}, progress)


def follow(
    problem: Problem,
    options: SmoothnessOptions,
    fixes: Mapping[str, Change],
    progress: Progress | None,
) -> Smoothness:
    """Train every arm with looks on the way; see :func:`smoothness`."""
    seed, seeds, rate = problem.seed, options.seeds, options.rate
    make, grid = _OPTIMIZERS[options.optimizer]
    intervals = options.looks - 1
    course = Course(
        problem=problem,
        make=make,
        steps=options.steps,
        at=tuple(sorted({round(k * options.steps / intervals) for k in range(options.looks)})),
        multiples=points_around(1.0, options.points),
    )
    chosen = ways(problem.fresh(seed), fixes)
    counter = StageCounter(
        progress, "training with looks", len(chosen) * (seeds + (0 if rate else len(grid)))
    )

    def score(way: Way, eta: float) -> float:
        counter.begin()
        return course.run(way, eta, seed, looking=False).loss

    def arm(way: Way) -> SmoothnessArm:
        try:
            way.applied(problem.fresh(seed), problem)
        except ValueError as error:
            return _untried(way, str(error))
        tuned = TunedRate(rate or math.nan, (), at_edge=False)
        if rate is None:
            tuned = tune_rate(lambda eta: score(way, eta), grid, extensions=_EXTENSIONS)
        runs = []
        for number in range(seed + 1, seed + 1 + seeds):
            counter.begin()
            runs.append(
                course.run(way, tuned.rate if rate else tuned.safest, number, looking=True)
            )
        return _arm(way, tuned, runs)

    arms = tuple(arm(way) for way in chosen)
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


def _arm(way: Way, tuned: TunedRate, runs: Sequence[SmoothnessRun]) -> SmoothnessArm:
    loss = _mean([run.loss for run in runs])
    return SmoothnessArm(way.name, tuned.rate, tuned.scores, tuned.at_edge, tuple(runs), loss)


def _untried(way: Way, reason: str) -> SmoothnessArm:
    return SmoothnessArm(way.name, math.nan, (), False, (), _nothing(), reason)


def _nothing() -> Estimate:
    return Estimate(math.nan, math.nan, "not trained")


def _mean(losses: Sequence[float]) -> Estimate:
    if not all(map(math.isfinite, losses)):
        return Estimate(math.inf, math.nan, "mean over seeds")
    error = statistics.stdev(losses) / math.sqrt(len(losses)) if len(losses) > 1 else math.nan
    return Estimate(statistics.fmean(losses), error, "mean over seeds")
