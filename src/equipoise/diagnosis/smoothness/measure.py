r"""How far gradients can be trusted, with normalisers and without, at the start and in training.

Between two points of one look nothing differs but the parameters. Every arm trains from the same
weights where they fit, on the same batches, at its own best rate, which is chosen on one seed and
used on others.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence

import torch
from torch import nn

from equipoise.data.source import Source
from equipoise.diagnosis import prepare
from equipoise.diagnosis.smoothness.looks import look
from equipoise.diagnosis.smoothness.record import Smoothness, SmoothnessArm, SmoothnessRun
from equipoise.diagnosis.smoothness.runs import Course
from equipoise.diagnosis.smoothness.ways import Change, Way, ways
from equipoise.records.estimate import Estimate
from equipoise.training.losses import LossFunction, default_loss
from equipoise.training.rates import TunedRate, tune_rate

Progress = Callable[[str, int, int], None]

STEPS, LOOKS, POINTS, SEEDS = 60, 5, 8, 3
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


def smoothness_at_start(
    build: Callable[[], nn.Module],
    batch: prepare.Batch,
    loss_fn: LossFunction,
    *,
    fixes: Mapping[str, Change] | None = None,
    seed: int = 0,
) -> Smoothness:
    """Look along the gradient of new weights, in 17 steps from 10⁻⁸ to 1; nothing is trained.

    Args:
        build: Returns a new model with freshly drawn weights, in the mode it is trained in.
        batch: What the loss takes.
        loss_fn: ``loss_fn(model, batch)``.
        fixes: Further changes by name, each of which returns a changed copy of a model.
        seed: Of the weights.

    Returns:
        One look per arm. An arm that cannot be measured says why.

    Examples:
        >>> from equipoise import data, models
        >>> from equipoise.training import cross_entropy
        >>> (batch,) = data.load("digits").batches(32, 1, torch.Generator().manual_seed(0))
        >>> build = lambda: models.mlp(64, 10, depth=12, width=32)
        >>> found = smoothness_at_start(build, batch, cross_entropy)
        >>> [(arm.name, arm.runs[0].looks[0].trusted_step > 0.1) for arm in found.arms]
        [('as it is', False), ('without its normalisers', True)]
    """
    steps = [START_RATE * multiple for multiple in _START_MULTIPLES]
    arms = []
    for way in ways(prepare.fresh(build, batch, seed), fixes or {}):
        try:
            model = way.applied(prepare.fresh(build, batch, seed), batch, loss_fn)
            first = look(model, loss_fn, batch, steps=steps)
        except (ValueError, TypeError) as error:
            arms.append(_untried(way, str(error)))
        else:
            runs = (SmoothnessRun(seed, (first,), math.nan),)
            arms.append(SmoothnessArm(way.name, START_RATE, (), False, runs, _nothing()))
    return Smoothness("sgd", 0, 1, tuple(arms))


def smoothness(
    build: Callable[[], nn.Module],
    source: Source,
    *,
    loss_fn: LossFunction | None = None,
    batch_size: int = 64,
    optimizer: str = "sgd",
    rate: float | None = None,
    steps: int = STEPS,
    looks: int = LOOKS,
    points: int = POINTS,
    seeds: int = SEEDS,
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
        build: Returns a new model with freshly drawn weights, in the mode it is trained in.
        source: Where batches come from.
        loss_fn: ``loss_fn(model, batch)``; by default as in :func:`~equipoise.diagnosis.checkup`.
        batch_size: Samples per batch, where the source does not fix it.
        optimizer: ``"sgd"`` (without momentum, so that d is the gradient), ``"adam"`` or
            ``"adamw"``.
        rate: Learning rate of every arm; by default each has the best one of a small grid.
        steps: Steps of each run.
        looks: How many, from before the first step to after the last.
        points: Points of each look.
        seeds: Initialisations and data orders; rates are chosen on another.
        fixes: Further changes by name, each of which returns a changed copy of a model.
        device: Where the model runs.
        seed: Of the run that chooses the rate; the next ones are looked at.
        progress: Called with a stage, finished and total runs.

    Returns:
        The model as it is, without its normalisers if it has some, and with each fix. An arm
        that cannot be trained says why.

    Raises:
        ValueError: If an option is out of range, or model, loss and data do not fit together.

    Examples:
        >>> from equipoise import data, models
        >>> build = lambda: models.mlp(64, 10, depth=2, width=16)
        >>> found = smoothness(build, data.load("digits"), rate=0.1, steps=4, looks=2, seeds=1)
        >>> [(arm.name, [look.step for look in arm.runs[0].looks]) for arm in found.arms]
        [('as it is', [0, 4]), ('without its normalisers', [0, 4])]

    References:
        [santurkar2018], Section 3.2, Figures 3 and 4.
    """
    check_smoothness(optimizer, rate, steps, looks, points, seeds)
    (first,) = prepare.draw(source, batch_size, 1, torch.device(device), seed)
    make, grid = _OPTIMIZERS[optimizer]
    course = Course(
        build=build,
        source=source,
        first=first,
        loss_fn=loss_fn or default_loss(first),
        batch_size=batch_size,
        make=make,
        steps=steps,
        at=tuple(sorted({round(k * steps / (looks - 1)) for k in range(looks)})),
        multiples=points_around(1.0, points),
    )
    prepare.rehearse(course.fresh(seed), first, course.loss_fn, source.name)
    chosen = ways(course.fresh(seed), fixes or {})
    count = _Count(progress, len(chosen) * (seeds + (0 if rate else len(grid))))

    def score(way: Way, eta: float) -> float:
        count.tick()
        return course.run(way, eta, seed, looking=False).loss

    def arm(way: Way) -> SmoothnessArm:
        try:
            way.applied(course.fresh(seed), first, course.loss_fn)
        except ValueError as error:
            return _untried(way, str(error))
        tuned = TunedRate(rate or math.nan, (), at_edge=False)
        if rate is None:
            tuned = tune_rate(lambda eta: score(way, eta), grid, extensions=_EXTENSIONS)
        runs = []
        for number in range(seed + 1, seed + 1 + seeds):
            count.tick()
            runs.append(
                course.run(way, tuned.rate if rate else tuned.safest, number, looking=True)
            )
        return _arm(way, tuned, runs)

    arms = tuple(arm(way) for way in chosen)
    count.finish()
    return Smoothness(optimizer, steps, seeds, arms)


def points_around(rate: float, count: int = POINTS) -> tuple[float, ...]:
    """Steps in geometric spacing from half a rate to four times it.

    Examples:
        >>> [round(step, 6) for step in points_around(0.1, 4)]
        [0.05, 0.1, 0.2, 0.4]
    """
    low, high = _REACH
    return tuple(rate * low * (high / low) ** (k / (count - 1)) for k in range(count))


def check_smoothness(
    optimizer: str = "sgd",
    rate: float | None = None,
    steps: int = STEPS,
    looks: int = LOOKS,
    points: int = POINTS,
    seeds: int = SEEDS,
) -> None:
    """Refuse options of :func:`smoothness` that are out of range, before any work."""
    if optimizer not in _OPTIMIZERS:
        known = ", ".join(_OPTIMIZERS)
        raise ValueError(f"optimizer must be one of {known}, got {optimizer!r}.")
    if rate is not None and not 0 < rate < math.inf:
        raise ValueError(f"rate must be a positive number, got {rate}.")
    least = {"steps": (steps, _LEAST_STEPS), "looks": (looks, 2), "points": (points, 2)}
    for name, (value, bound) in {**least, "seeds": (seeds, 1)}.items():
        if value < bound:
            raise ValueError(f"{name} must be at least {bound}, got {value}.")


class _Count:
    """Tells how many runs are finished; extended grids add some, which the total forgoes."""

    _STAGE = "training with looks"

    def __init__(self, progress: Progress | None, total: int) -> None:
        self._progress, self._total, self._done = progress, total, 0

    def tick(self) -> None:
        if self._progress is not None:
            self._progress(self._STAGE, min(self._done, self._total), self._total)
        self._done += 1

    def finish(self) -> None:
        if self._progress is not None:
            self._progress(self._STAGE, self._total, self._total)


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
