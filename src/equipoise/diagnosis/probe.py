"""Measure the loss around a model's weights with every probe, and along a short training."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, replace

import torch
from torch import nn

from equipoise import probes
from equipoise.diagnosis.inputs.adapt import Loss
from equipoise.diagnosis.problem import Model, Problem, facts, name_of
from equipoise.diagnosis.record import PROBE_SCHEMA, Origin, Probe, UnfinishedError
from equipoise.diagnosis.refusals import in_words
from equipoise.diagnosis.smoothness.findings import conclude_smoothness
from equipoise.diagnosis.smoothness.measure import (
    START_RATE,
    SmoothnessOptions,
    points_around,
    smoothness_in_training,
)
from equipoise.diagnosis.smoothness.record import Smoothness
from equipoise.instrument.progress import Stages, staged
from equipoise.instrument.snapshot import surroundings_kept
from equipoise.instrument.types import Progress
from equipoise.numerics.options import named_options
from equipoise.probes.hessian.record import Hessian
from equipoise.probes.record import CovariateShift, GradientGrowth, Landscape

# Two digits of an eigenvalue are enough for a reader, and take half as many products.
_TOLERANCE = 1e-2
_BATCHES = 4
_SHORT_TRAINING = SmoothnessOptions()


@named_options
def measure(
    model: Model,
    data: object = None,
    *,
    loss_fn: Loss | None = None,
    batch_size: int = 64,
    rate: float | None = None,
    training: SmoothnessOptions | None = _SHORT_TRAINING,
    hessian: bool = False,
    device: torch.device | str | None = None,
    target: str | None = None,
    seed: int = 0,
    progress: Progress | None = None,
) -> Probe:
    """Measure the loss around a new model's weights, and along a short training.

    This takes 20 forward and backward passes, and the short training 1,500 more for the model with
    its normalisers and as many without, half of them where ``rate`` is given.

    Args:
        model: A class or a function that returns a new model with freshly drawn weights, in the
            mode it is trained in. A module keeps its weights, and is not changed. A
            LightningModule trains by its ``training_step``, a Hugging Face Trainer by its
            ``compute_loss``.
        data: A ``DataLoader``, a ``Dataset``, an iterable of batches, one batch (a pair of
            tensors, a dictionary), a Lightning data module, or a name such as ``"digits"``; may be
            left out if the model brings them along.
        loss_fn: ``loss_fn(model, batch)``; by default as in :func:`equipoise.checkup`.
        batch_size: Samples per batch, where the data do not fix it.
        rate: Learning rate of plain SGD; by default what the short training found best, or 0.1
            without one.
        training: How long the short training is and how often it is measured; ``None`` for no
            training. Its learning rate is ``rate``.
        hessian: Whether to find the extremal eigenvalues of the Hessian, of the whole model and
            of each layer, to 1 %; this takes the longest.
        device: Where the model runs; by default where a module is.
        target: What to call the model; by default its class or its factory's name.
        seed: Seed of weights and batches.
        progress: Called with a stage, finished and total steps.

    Returns:
        Everything that was found. After Ctrl-C, what was finished, marked as interrupted.

    Raises:
        ValueError: If an option is out of range, or model, loss and data do not fit together, or
            fail later: then its ``finished`` is the record of what was found before.

    Examples:
        >>> from equipoise import models
        >>> build = lambda: models.mlp(64, 10, depth=3, width=16)
        >>> found = measure(build, "digits", training=None)
        >>> found.rate, len(found.landscape.steps), len(found.shift.layers)
        (0.1, 8, 7)
    """
    checked = replace(training or _SHORT_TRAINING, rate=rate)
    training = checked if training is not None else None
    started = time.perf_counter()
    problem = Problem.prepare(
        model,
        data,
        loss_fn=loss_fn,
        batch_size=batch_size,
        batches=_BATCHES,
        device=device,
        seed=seed,
    )
    fresh = problem.fresh(problem.seed)
    work = _Work(rate or START_RATE, "given" if rate else "reference")
    stages, failure = Stages(), None
    try:
        with surroundings_kept(fresh):
            _run(work, problem, fresh, training, hessian, stages.told_to(progress))
    except KeyboardInterrupt:  # report what was finished
        work.interrupted = True
    except BaseException as error:  # the user's code may exit, too
        work.interrupted, failure = True, error
    found = Probe(
        schema=PROBE_SCHEMA,
        **facts(problem, fresh, target or name_of(model), started),
        interrupted=work.interrupted,
        rate=work.rate,
        rate_origin=work.origin,
        growth=work.growth,
        landscape=work.landscape,
        shift=work.shift,
        hessian=work.hessian,
        training=work.training,
        findings=tuple(conclude_smoothness(work.training)),
    )
    if failure is not None:
        raise UnfinishedError(stages.present, in_words(failure), found) from failure
    return found


@dataclass
class _Work:
    """Results so far."""

    rate: float
    origin: Origin
    growth: GradientGrowth | None = None
    landscape: Landscape | None = None
    shift: CovariateShift | None = None
    hessian: Hessian | None = None
    training: Smoothness | None = None
    interrupted: bool = False


def _run(
    work: _Work,
    problem: Problem,
    model: nn.Module,
    training: SmoothnessOptions | None,
    hessian: bool,
    report: Progress,
) -> None:
    loss, batch = problem.loss_fn, problem.first
    measuring = staged(report, "measuring gradients")
    work.growth = probes.gradient_growth(model, loss, problem.held, progress=measuring)
    if training is not None:
        work.training = smoothness_in_training(problem, training, {}, report)
        tuned = work.training.arms[0].rate
        if work.origin == "reference" and math.isfinite(tuned):
            work.rate, work.origin = tuned, "tuned"
    report("measuring the landscape", 0, 1)
    work.landscape = probes.landscape(model, loss, batch, steps=points_around(work.rate))
    report("measuring covariate shift", 0, 1)
    work.shift = probes.covariate_shift(model, loss, batch, work.rate)
    if hessian:
        work.hessian = probes.hessian(
            model,
            loss,
            batch,
            blocks="both",
            tolerance=_TOLERANCE,
            progress=staged(report, "measuring curvature"),
        )
