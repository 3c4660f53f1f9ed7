"""The check-up: predict, measure, compare, try remedies, conclude."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from equipoise import probes
from equipoise.diagnosis import verdict
from equipoise.diagnosis.comparison import compare, is_straight, predicted_rate
from equipoise.diagnosis.findings import advice, conclude
from equipoise.diagnosis.initialisation.findings import conclude_initialisation
from equipoise.diagnosis.initialisation.measure import initialisation
from equipoise.diagnosis.initialisation.record import Initialisation
from equipoise.diagnosis.preconditioning.findings import conclude_preconditioning
from equipoise.diagnosis.preconditioning.measure import preconditioning
from equipoise.diagnosis.preconditioning.record import LayerPreconditioning
from equipoise.diagnosis.prediction import TracedModel, traced
from equipoise.diagnosis.problem import Model, Problem, draws_new_weights, facts, name_of
from equipoise.diagnosis.record import (
    SCHEMA_VERSION,
    Checkup,
    Comparison,
    LayerPrediction,
    Remedy,
)
from equipoise.diagnosis.remedies import Outlook, recommend
from equipoise.diagnosis.second_order.findings import conclude_second_order
from equipoise.diagnosis.second_order.measure import second_order
from equipoise.diagnosis.second_order.record import SecondOrderPooling
from equipoise.diagnosis.smoothness.findings import conclude_smoothness
from equipoise.diagnosis.smoothness.measure import (
    SmoothnessOptions,
    smoothness_at_start,
    smoothness_in_training,
)
from equipoise.diagnosis.smoothness.record import Smoothness
from equipoise.diagnosis.smoothness.variants import fixes
from equipoise.diagnosis.trainability.calibration import calibration
from equipoise.diagnosis.trainability.findings import conclude_trainability
from equipoise.diagnosis.trainability.judge import judge, predicted_probability
from equipoise.diagnosis.trainability.record import Trainability
from equipoise.diagnosis.trial.findings import conclude_trial
from equipoise.diagnosis.trial.measure import TrialOptions, run_trial
from equipoise.diagnosis.trial.record import Trial
from equipoise.instrument.modules import unwatched
from equipoise.instrument.normalisers import is_batch_norm
from equipoise.instrument.progress import silent, staged
from equipoise.instrument.types import Batch, LossFunction, Progress
from equipoise.probes.conditioning import LayerConditioning
from equipoise.probes.gradient_growth import GradientGrowth
from equipoise.records import wording
from equipoise.records.finding import Finding
from equipoise.theory.propagation.sites import Share, Site

# Several times as many rows as most layers have inputs.
_ROWS = 1024
# Models that train with a higher probability need no remedy.
_LIKELY = 0.9


def checkup(
    model: Model,
    data: object,
    *,
    loss_fn: LossFunction | None = None,
    batch_size: int = 64,
    seeds: int = 6,
    batches: int = 4,
    device: torch.device | str = "cpu",
    target: str | None = None,
    seed: int = 0,
    trial: TrialOptions | None = None,
    smoothness: SmoothnessOptions | None = None,
    progress: Progress | None = None,
) -> Checkup:
    """Predict from theory, measure on the model, and say what to change.

    Args:
        model: A callable that returns a new model with freshly drawn weights, in the mode it is
            trained in. A module keeps its weights, and is not changed.
        data: A name such as ``"digits"``, a ``DataLoader``, a ``Dataset``, an iterable of
            (input, target) batches, or a pair of tensors.
        loss_fn: ``loss_fn(model, batch)``; by default cross-entropy for whole-number targets
            and the squared error for others.
        batch_size: Samples per batch, where the data do not fix it.
        seeds: Initialisations to measure.
        batches: Batches to measure for each.
        device: Where the model runs.
        target: What to call the model; by default its class or its factory's name.
        seed: Seed of initialisations and batches.
        trial: How to train side by side with and without preconditioning; by default not at all.
        smoothness: How to train and measure smoothness on the way, with and without normalisers
            and with a verified remedy; by default only the initialisation is measured.
        progress: Called with a stage, finished and total steps.

    Returns:
        Everything that was found. After Ctrl-C, what was finished, marked as interrupted.

    Raises:
        ValueError: If the factory, the data, the loss or the batch size cannot be used.

    Examples:
        >>> from equipoise import models
        >>> build = lambda: models.mlp(64, 10, depth=6, width=32)
        >>> report = checkup(build, "digits", seeds=2, batches=1)
        >>> report.attribution[0].kind, len(report.growth.layers)
        ('normalisers', 6)
    """
    for name, value in (("batch_size", batch_size), ("seeds", seeds), ("batches", batches)):
        if value < 1:
            raise ValueError(f"{name} must be at least 1, got {value}.")
    started = time.perf_counter()
    report = progress or silent
    problem = Problem.prepare(
        model,
        data,
        loss_fn=loss_fn,
        batch_size=batch_size,
        batches=batches,
        device=device,
        seed=seed,
    )
    fresh = problem.fresh(seed)
    work = _Work()
    try:
        _run(work, problem, fresh, seeds, report)
        fix = fixes(work.remedies)
        work.smoothness = smoothness_at_start(problem, fix)
        if trial is not None:
            work.trial = run_trial(problem, trial, report)
        if smoothness is not None:
            work.smoothness = smoothness_in_training(problem, smoothness, fix, report)
    except probes.GrowthInterrupted as interruption:
        work.interrupted = True
        work.growth = work.growth or interruption.finished
    except KeyboardInterrupt:  # report what was finished
        work.interrupted = True
    findings = conclude(
        work.growth,
        work.sites,
        work.attribution,
        work.comparisons,
        work.conditioning,
        unwatched(fresh),
        [
            *_left_out(work.untraced, work.unjudged),
            *conclude_initialisation(work.initialisation, work.unchecked),
            *conclude_preconditioning(work.preconditioning),
            *conclude_trial(work.trial),
            *conclude_second_order(work.second_order),
            *conclude_smoothness(work.smoothness),
        ],
        conclude_trainability(
            work.trainability, advice(work.growth, work.attribution, work.remedies)
        ),
    )
    depth = len(work.growth.layers if work.growth else work.predictions)
    return Checkup(
        schema=SCHEMA_VERSION,
        **facts(problem, fresh, target or name_of(model), started),
        interrupted=work.interrupted,
        depth=depth,
        seeds=work.growth.replicates if work.growth else 0,
        batches=work.growth.batches if work.growth else 0,
        verdict=verdict.conclude(work.growth, work.trainability, findings),
        sites=work.sites,
        attribution=work.attribution,
        predictions=work.predictions,
        initialisation=work.initialisation,
        growth=work.growth,
        comparisons=work.comparisons,
        conditioning=work.conditioning,
        remedies=work.remedies,
        findings=findings,
        preconditioning=work.preconditioning,
        second_order=work.second_order,
        trial=work.trial,
        smoothness=work.smoothness,
    )


@dataclass
class _Work:
    """Results so far."""

    sites: tuple[Site, ...] = ()
    attribution: tuple[Share, ...] = ()
    predictions: tuple[LayerPrediction, ...] = ()
    growth: GradientGrowth | None = None
    comparisons: tuple[Comparison, ...] = ()
    conditioning: tuple[LayerConditioning, ...] = ()
    preconditioning: tuple[LayerPreconditioning, ...] = ()
    second_order: tuple[SecondOrderPooling, ...] = ()
    remedies: tuple[Remedy, ...] = ()
    trial: Trial | None = None
    smoothness: Smoothness | None = None
    initialisation: Initialisation | None = None
    unchecked: str = ""
    untraced: str = ""
    unjudged: str = ""
    trainability: Trainability | None = None
    interrupted: bool = False


def _run(work: _Work, problem: Problem, model: nn.Module, seeds: int, report: Progress) -> None:
    seed, loss, batch = problem.seed, problem.loss_fn, problem.first
    sample = _sample(model, problem)
    report("predicting", 0, 1)
    trace = _predicted(work, problem, model)
    report("predicting", 1, 1)
    try:
        work.initialisation = initialisation(model)
    except ValueError as error:  # weights that cannot be copied or are without values
        work.unchecked = str(error)

    redraw = seeds > 1 and draws_new_weights(model, problem.fresh(seed + 1))

    def measure(change: Callable[[], None] | None, replicates: int, stage: str) -> GradientGrowth:
        def initialize(model: nn.Module, replicate: int) -> None:
            if redraw:
                model.load_state_dict(problem.fresh().state_dict())
            if change is not None:
                change()

        return probes.gradient_growth(
            model,
            loss,
            problem.held,
            replicates=replicates if redraw else 1,
            initialize=initialize if redraw or change is not None else None,
            seed=seed,
            progress=staged(report, stage),
        )

    growth = work.growth = measure(None, seeds, "measuring gradients")
    found = work.trainability
    if found is None or found.probability > _LIKELY or not is_straight(growth):
        trace = None  # it holds all tensors of a pass, and is for remedies only
    work.comparisons = compare(growth, work.predictions)
    work.conditioning = probes.conditioning(
        model, batch, forward=loss, progress=staged(report, "measuring conditioning")
    )
    work.preconditioning = preconditioning(
        model, sample, loss, progress=staged(report, "measuring preconditioning")
    )
    work.second_order = second_order(model, batch, loss)

    if trace is not None and growth.rate is not None:

        def predict(
            parameters: Mapping[str, Tensor], trace: TracedModel = trace
        ) -> Outlook | None:
            changed = trace.predict(parameters)
            layers = trace.at_layers(changed)
            rate = predicted_rate(growth, {layer.layer: layer for layer in layers})
            chance = predicted_probability(changed, trace.graph.batch, calibration())
            return None if rate is None or chance is None else Outlook(rate, chance)

        work.remedies = recommend(
            model,
            predict,
            lambda change: measure(change, min(seeds, 3), "trying remedies"),
            growth.rate,
        )


def _sample(model: nn.Module, problem: Problem) -> Batch:
    """A batch with enough rows for condition numbers, if rows are independent."""
    coupled = any(is_batch_norm(m) for m in model.modules())
    if coupled or problem.source.fixed_batches:
        return problem.first
    return problem.joined(_ROWS) or problem.first


def _predicted(work: _Work, problem: Problem, model: nn.Module) -> TracedModel | None:
    """Predict every operation; None if the model cannot be traced."""
    try:
        trace = traced(problem, model)
        propagation = trace.predict()
    except Exception as error:  # whatever a model does, it is measured
        work.untraced = f"{type(error).__name__}: {error}"
        return None
    work.sites, work.attribution = propagation.sites, propagation.attribution
    work.predictions = trace.at_layers(propagation)
    try:
        work.trainability = judge(propagation, trace.graph.batch, calibration())
    except ValueError as error:  # no layer with weights
        work.unjudged = str(error)
    return trace


def _left_out(untraced: str, unjudged: str) -> list[Finding]:
    """What theory could not say, and why."""
    named = (
        ("Not predicted: tracing the model failed", untraced),
        ("Not judged: whether it trains is unknown", unjudged),
    )
    rest = "Everything else was measured."
    return [
        Finding("note", title, f"{wording.capital(reason)} {rest}")
        for title, reason in named
        if reason
    ]
