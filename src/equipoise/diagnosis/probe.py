"""Everything that probes can tell about the loss around a model's weights as they are."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from importlib.metadata import version
from typing import Literal

import torch
from torch import nn

from equipoise import probes
from equipoise.data.source import Source
from equipoise.diagnosis import prepare
from equipoise.diagnosis.smoothness.findings import conclude_smoothness
from equipoise.diagnosis.smoothness.measure import (
    LOOKS,
    POINTS,
    SEEDS,
    START_RATE,
    STEPS,
    check_smoothness,
    points_around,
    smoothness,
)
from equipoise.diagnosis.smoothness.record import Smoothness
from equipoise.probes.covariate_shift import CovariateShift
from equipoise.probes.gradient_growth import GradientGrowth
from equipoise.probes.hessian.record import Hessian
from equipoise.probes.landscape import Landscape
from equipoise.records.finding import Finding
from equipoise.training.losses import LossFunction, default_loss

# Raise by one whenever a stored probe of the old form can no longer be read.
PROBE_SCHEMA = 1


@dataclass(frozen=True, slots=True)
class Probe:
    """Everything that was measured; ``probe.json`` is this record.

    Args:
        schema: :data:`PROBE_SCHEMA` of the writer.
        equipoise: Version of the library that wrote it.
        torch: Version of PyTorch that ran it.
        created: Time of writing, ISO 8601, UTC.
        target: The model as the user named it.
        data: The data as the user named them.
        device: Where the model ran.
        batch_size: Samples per batch.
        parameters: Trainable numbers in the model.
        rate: Learning rate of plain SGD that landscape and covariate shift belong to.
        rate_origin: Whether it was given, tuned by the short training, or is the reference rate.
        seconds: Wall time.
        interrupted: Whether the user stopped it; what was finished is here.
        growth: Gradients layer by layer, at the start.
        landscape: Along the gradient, at the start.
        shift: Internal covariate shift under one step, at the start.
        hessian: Extremal eigenvalues at the start, if they were asked for.
        training: Bands along a short training, if one was asked for.
        findings: Conclusions, most severe first.
    """

    schema: int
    equipoise: str
    torch: str
    created: str
    target: str
    data: str
    device: str
    batch_size: int
    parameters: int
    rate: float
    rate_origin: Literal["given", "tuned", "reference"]
    seconds: float
    interrupted: bool
    growth: GradientGrowth | None
    landscape: Landscape | None
    shift: CovariateShift | None
    hessian: Hessian | None
    training: Smoothness | None
    findings: tuple[Finding, ...]


Progress = Callable[[str, int, int], None]
Origin = Literal["given", "tuned", "reference"]

# Eigenvalues to two digits are what a reader takes in, and half as many products.
_TOLERANCE = 1e-2
_BATCHES = 4


def probe(
    build: Callable[[], nn.Module],
    source: Source,
    *,
    loss_fn: LossFunction | None = None,
    batch_size: int = 64,
    rate: float | None = None,
    steps: int = STEPS,
    looks: int = LOOKS,
    seeds: int = SEEDS,
    hessian: bool = False,
    device: torch.device | str = "cpu",
    target: str = "model",
    seed: int = 0,
    progress: Progress | None = None,
) -> Probe:
    """Probe the loss of a new model, and follow it along a short training.

    Args:
        build: Returns a new model, in the mode it is trained in; one that loads a checkpoint is
            probed there.
        source: Where batches come from.
        loss_fn: ``loss_fn(model, batch)``; by default as in :func:`~equipoise.diagnosis.checkup`.
        batch_size: Samples per batch, where the source does not fix it.
        rate: Learning rate of plain SGD; by default what the short training found best, or 0.1
            without one.
        steps: Steps of the short training, or 0 for none.
        looks: How often it is looked at.
        seeds: Trainings that are looked at.
        hessian: Whether to find extremal eigenvalues of the Hessian, of the whole model and of
            each layer, to 1 %; it takes the longest.
        device: Where the model runs.
        target: The model as the user named it.
        seed: Of weights and batches.
        progress: Called with a stage, finished and total steps.

    Returns:
        Everything that was found. On Ctrl-C, what was finished, marked as interrupted.

    Raises:
        ValueError: If an option is out of range, or model, loss and data do not fit together.

    Examples:
        >>> from equipoise import data, models
        >>> build = lambda: models.mlp(64, 10, depth=3, width=16)
        >>> found = probe(build, data.load("digits"), steps=0)
        >>> found.rate, len(found.landscape.steps), len(found.shift.layers)
        (0.1, 8, 7)
    """
    check_smoothness(rate=rate, steps=steps or STEPS, looks=looks, seeds=seeds)
    started = time.perf_counter()
    place = torch.device(device)
    batches = prepare.draw(source, batch_size, _BATCHES, place, seed)
    loss = loss_fn or default_loss(batches[0])
    model = prepare.fresh(build, batches[0], seed)
    prepare.rehearse(model, batches[0], loss, source.name)
    train = partial(
        smoothness,
        build,
        source,
        loss_fn=loss,
        batch_size=batch_size,
        rate=rate,
        steps=steps,
        looks=looks,
        seeds=seeds,
        device=place,
        seed=seed,
        progress=progress,
    )
    work = _Work(rate or START_RATE, "given" if rate else "reference")
    try:
        _run(work, model, loss, batches, train if steps else None, hessian, progress)
    except KeyboardInterrupt:  # what is finished is still worth a report
        work.interrupted = True
    return Probe(
        schema=PROBE_SCHEMA,
        equipoise=version("equipoise"),
        torch=str(torch.__version__),
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        target=target,
        data=source.name,
        device=str(place),
        batch_size=len(batches[0][0]),
        parameters=sum(p.numel() for p in model.parameters() if p.requires_grad),
        rate=work.rate,
        rate_origin=work.origin,
        seconds=time.perf_counter() - started,
        interrupted=work.interrupted,
        growth=work.growth,
        landscape=work.landscape,
        shift=work.shift,
        hessian=work.hessian,
        training=work.training,
        findings=tuple(conclude_smoothness(work.training)),
    )


@dataclass
class _Work:
    """What is finished so far."""

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
    model: nn.Module,
    loss: LossFunction,
    batches: list[prepare.Batch],
    train: Callable[[], Smoothness] | None,
    hessian: bool,
    progress: Progress | None,
) -> None:
    def stage(name: str) -> Callable[[int, int], None] | None:
        return None if progress is None else partial(progress, name)

    growth = probes.gradient_growth(model, loss, batches, progress=stage("measuring gradients"))
    work.growth = growth
    if train is not None:
        work.training = train()
        tuned = work.training.arms[0].rate
        if work.origin == "reference" and math.isfinite(tuned):
            work.rate, work.origin = tuned, "tuned"
    points = points_around(work.rate, POINTS)
    work.landscape = probes.landscape(model, loss, batches[0], steps=points)
    work.shift = probes.covariate_shift(model, loss, batches[0], work.rate)
    if hessian:
        work.hessian = probes.hessian(
            model,
            loss,
            batches[0],
            blocks="both",
            tolerance=_TOLERANCE,
            progress=stage("measuring curvature"),
        )
