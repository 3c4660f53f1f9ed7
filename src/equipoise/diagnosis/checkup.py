"""The check-up: predict, measure, compare, try remedies, conclude."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor, nn

from equipoise import probes
from equipoise.diagnosis import verdict
from equipoise.diagnosis.broken import Broken, broken, conclude_broken
from equipoise.diagnosis.comparison import compare, is_straight, predicted_rate
from equipoise.diagnosis.factories import draws_new_weights
from equipoise.diagnosis.findings import advice, conclude
from equipoise.diagnosis.fix.findings import conclude_fix, proved
from equipoise.diagnosis.fix.measure import run_fix
from equipoise.diagnosis.fix.options import FixOptions
from equipoise.diagnosis.fix.record import Fix
from equipoise.diagnosis.forgotten import Forgotten, conclude_forgotten, forgotten
from equipoise.diagnosis.initialisation.copies import told_by_gradients, told_by_order
from equipoise.diagnosis.initialisation.findings import conclude_initialisation
from equipoise.diagnosis.initialisation.measure import initialisation
from equipoise.diagnosis.initialisation.record import Initialisation
from equipoise.diagnosis.initialisation.stuck import Stuck, conclude_stuck, stuck
from equipoise.diagnosis.inputs.adapt import Loss
from equipoise.diagnosis.mistakes.find import mistakes
from equipoise.diagnosis.mistakes.inputs import OFF
from equipoise.diagnosis.preconditioning import measure as preconditioned
from equipoise.diagnosis.preconditioning.findings import conclude_preconditioning
from equipoise.diagnosis.preconditioning.record import LayerPreconditioning
from equipoise.diagnosis.preconditioning.sizes import prices, samples_wanted, sizes
from equipoise.diagnosis.prediction import TracedModel, traced
from equipoise.diagnosis.price import Plan, free_memory, memory_in_words, plan
from equipoise.diagnosis.problem import Model, Problem, facts, name_of
from equipoise.diagnosis.record import (
    SCHEMA_VERSION,
    Checkup,
    Comparison,
    LayerPrediction,
    Recommendation,
    UnfinishedError,
)
from equipoise.diagnosis.refusals import in_words
from equipoise.diagnosis.remedies import Outlook, recommend
from equipoise.diagnosis.second_order.findings import conclude_second_order
from equipoise.diagnosis.second_order.measure import second_order
from equipoise.diagnosis.second_order.record import SecondOrderPooling
from equipoise.diagnosis.smoothness.findings import conclude_smoothness
from equipoise.diagnosis.smoothness.measure import (
    SmoothnessOptions,
    smoothness_at_start,
    smoothness_in_training,
    steps_of_smoothness,
)
from equipoise.diagnosis.smoothness.record import Smoothness
from equipoise.diagnosis.smoothness.variants import fixes
from equipoise.diagnosis.trainability.calibration import calibration
from equipoise.diagnosis.trainability.findings import conclude_trainability
from equipoise.diagnosis.trainability.judge import REASONS, judge, predicted_probability
from equipoise.diagnosis.trainability.record import LIKELY, Trainability
from equipoise.instrument.clock import Stopwatch
from equipoise.instrument.modules import unwatched
from equipoise.instrument.normalisers import is_batch_norm
from equipoise.instrument.progress import Stages, staged
from equipoise.instrument.threads import suitable_threads
from equipoise.instrument.types import Batch, Progress
from equipoise.numerics.checks import check_flag, check_positive, check_size
from equipoise.numerics.options import named_options
from equipoise.probes.record import GradientGrowth, LayerConditioning
from equipoise.records import wording
from equipoise.records.finding import Finding
from equipoise.theory.propagation.propagate import Propagation
from equipoise.theory.propagation.sites import Share, Site

# Initialisations on which remedies are tried.
_TRIED = 2
# Multiplications that condition numbers may take: about a second.
_EFFORT = 1e10


@named_options
def checkup(
    model: Model,
    data: object = None,
    *,
    loss_fn: Loss | None = None,
    batch_size: int = 64,
    seeds: int = 5,
    batches: int = 2,
    device: torch.device | str | None = None,
    target: str | None = None,
    seed: int = 0,
    fix: FixOptions | str | bool | None = None,
    folder: str | Path | None = None,
    smoothness: SmoothnessOptions | bool | None = None,
    preconditioning: bool = False,
    hessian: bool = False,
    budget: float | None = None,
    notice: Callable[[str], None] | None = None,
    progress: Progress | None = None,
) -> Checkup:
    """Predict from theory, measure on the model, and say what to change.

    It takes about as long as 25 training steps and 3 seconds. What is dearer has to be asked for
    or to fit a budget.

    Args:
        model: A class or a function that returns a new model with freshly drawn weights, in the
            mode it is trained in. A module keeps its weights, and is not changed. A
            LightningModule trains by its ``training_step``, a Hugging Face Trainer by its
            ``compute_loss``.
        data: A ``DataLoader``, a ``Dataset``, an iterable of batches, one batch (a pair of
            tensors, a dictionary), a Lightning data module, or a name such as ``"digits"``; may be
            left out if the model brings them along.
        loss_fn: ``loss_fn(model, batch)``, a criterion of (output, target) such as
            ``nn.CrossEntropyLoss()``, or ``"cross-entropy"`` or ``"mse"``; by default the model's
            own loss, or what outputs and targets ask for.
        batch_size: Samples per batch, where the data do not fix it.
        seeds: Initialisations to measure.
        batches: Batches to measure for each.
        device: Where the model runs; by default where a module is.
        target: What to call the model; by default its class or its factory's name.
        seed: Seed of initialisations and batches.
        fix: Which remedies to train beside the model as it is, and for how long; their family
            alone, such as ``"norms"``, or ``True`` for all; by default none, see
            :func:`equipoise.fix`.
        folder: Where finished runs of ``fix`` are kept, so that an interrupted call can go on.
        smoothness: How to train and measure smoothness on the way, with and without normalisers
            and with a verified remedy; ``True`` for a measurement at initialisation alone.
        preconditioning: Whether to measure what preconditioning would do to condition numbers.
        hessian: Whether to measure those of the Hessian of one unit of every layer too.
        budget: Seconds; optional measurements that fit are made, the cheapest first.
        notice: Called once, before anything is measured, with the time that the check-up takes,
            and with what is left out at which price.
        progress: Called with a stage, finished and total steps.

    Returns:
        Everything that was found. After Ctrl-C, what was finished, marked as interrupted.

    Raises:
        ValueError: If the factory, the data, the loss or the batch size cannot be used, or if one
            of them fails later: then its ``finished`` is the record of what was found before.

    Examples:
        >>> from equipoise import models
        >>> build = lambda: models.mlp(64, 10, depth=6, width=32)
        >>> report = checkup(build, "digits", seeds=2, batches=1)
        >>> report.attribution[0].kind, len(report.growth.layers)
        ('normalisers', 6)
    """
    check_size(batch_size=batch_size, seeds=seeds, batches=batches)
    check_flag(preconditioning=preconditioning, hessian=hessian)
    if budget is not None:
        check_positive(budget=budget)
    if not isinstance(smoothness, SmoothnessOptions | bool | None):
        raise ValueError(
            "smoothness is chosen by equipoise.diagnosis.SmoothnessOptions, True or False; got "
            f"{smoothness!r}."
        )
    asked = {
        "preconditioning": preconditioning,
        "hessian": hessian,
        "smoothness": bool(smoothness),
    }
    remedies = FixOptions.of(fix)
    training = smoothness if isinstance(smoothness, SmoothnessOptions) else None
    started, work = time.perf_counter(), _Work()
    report = work.stages.told_to(progress)
    failure: Exception | None = None
    with suitable_threads() as refine_threads:
        problem = Problem.prepare(
            model,
            data,
            loss_fn=loss_fn,
            batch_size=batch_size,
            batches=batches,
            device=device,
            seed=seed,
        )
        fresh = problem.fresh(problem.seed)
        if problem.device.type == "cpu":
            refine_threads(lambda: problem.rehearse(fresh))
        redraw = seeds > 1 and draws_new_weights(fresh, problem.fresh(problem.seed + 1))
        passes = len(problem.held) * (seeds if redraw else 1)
        chosen = plan(
            problem.step_seconds,
            _prices(problem, fresh, training),
            passes=passes,
            asked=[name for name, wanted in asked.items() if wanted],
            budget=budget,
        )
        if notice is not None:
            memory = memory_in_words(fresh, free_memory(problem.device))
            notice(f"{chosen.notice} {memory}".rstrip())
        try:
            _run(work, problem, fresh, seeds if redraw else 1, chosen, report)
            changes = fixes(work.remedies)
            if chosen.smoothness:
                work.smoothness = smoothness_at_start(problem, changes)
            if remedies is not None:
                work.fix = run_fix(problem, remedies, folder, report)
                work.interrupted = work.fix.interrupted
            if training is not None and not work.interrupted:
                work.smoothness = smoothness_in_training(problem, training, changes, report)
        except probes.GrowthInterrupted as interruption:
            work.interrupted = True
            work.growth = work.growth or interruption.finished
        except KeyboardInterrupt:  # report what was finished
            work.interrupted = True
        except Exception as error:  # also what was finished before the user's code failed
            work.interrupted, failure = True, error
    findings = conclude(
        work.growth,
        work.sites,
        work.attribution,
        work.comparisons,
        work.conditioning,
        unwatched(fresh),
        [
            *([] if work.obstacle else _left_out(work.untraced, work.unjudged)),
            *work.mistakes,
            *conclude_initialisation(work.initialisation, work.unchecked),
            *conclude_broken(work.broken),
            *conclude_stuck(work.stuck),
            *conclude_forgotten(work.forgotten),
            *conclude_preconditioning(work.preconditioning),
            *conclude_second_order(work.second_order),
            *conclude_smoothness(work.smoothness),
        ],
        [
            *conclude_trainability(
                work.trainability,
                proved(work.fix)
                or _of_inputs(work)
                or advice(
                    work.growth,
                    work.attribution,
                    work.remedies,
                    reason="" if work.trainability is None else work.trainability.reason,
                    raced=work.fix is not None and bool(work.fix.gains),
                ),
            ),
            *conclude_fix(work.fix),
        ],
        () if work.initialisation is None or work.stuck else work.initialisation.zero_matrices,
    )
    depth = len(work.growth.layers if work.growth else work.predictions)
    found = Checkup(
        schema=SCHEMA_VERSION,
        **facts(problem, fresh, target or name_of(model), started),
        interrupted=work.interrupted,
        depth=depth,
        seeds=work.growth.replicates if work.growth else 0,
        batches=work.growth.batches if work.growth else 0,
        verdict=verdict.conclude(
            work.growth,
            work.trainability,
            findings,
            work.untraced or work.unjudged,
            work.obstacle,
            next((one for one in work.mistakes if one.severity == "critical"), None),
        ),
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
        fix=work.fix,
        smoothness=work.smoothness,
        left_out=chosen.left_out,
    )
    if failure is not None:
        raise UnfinishedError(work.stages.present, in_words(failure), found) from failure
    return found


def _prices(
    problem: Problem, model: nn.Module, training: SmoothnessOptions | None
) -> dict[str, float]:
    """Seconds of the optional parts."""
    step, found = problem.step_seconds, sizes(model, problem.first, problem.loss_fn)
    samples = samples_wanted(found) if _is_extensible(model, problem) else 0
    inputs, hessian = prices(model, found, samples, step)
    smooth = steps_of_smoothness(model, training) * step
    return {"smoothness": smooth, "preconditioning": inputs, "hessian": hessian}


@dataclass
class _Work:
    """Results so far."""

    watch: Stopwatch = field(default_factory=Stopwatch)
    stages: Stages = field(default_factory=Stages)
    sites: tuple[Site, ...] = ()
    attribution: tuple[Share, ...] = ()
    predictions: tuple[LayerPrediction, ...] = ()
    propagation: Propagation | None = None
    growth: GradientGrowth | None = None
    comparisons: tuple[Comparison, ...] = ()
    conditioning: tuple[LayerConditioning, ...] = ()
    preconditioning: tuple[LayerPreconditioning, ...] = ()
    second_order: tuple[SecondOrderPooling, ...] = ()
    remedies: tuple[Recommendation, ...] = ()
    fix: Fix | None = None
    smoothness: Smoothness | None = None
    initialisation: Initialisation | None = None
    mistakes: Sequence[Finding] = ()
    stuck: Stuck = field(default_factory=Stuck)
    broken: Broken = field(default_factory=Broken)
    forgotten: Forgotten = field(default_factory=Forgotten)
    without_gradient: frozenset[str] = frozenset()
    unchecked: str = ""
    untraced: str = ""
    unjudged: str = ""
    trainability: Trainability | None = None
    interrupted: bool = False

    @property
    def obstacle(self) -> Broken | Stuck | Forgotten:
        """What keeps the model from training, whatever theory says; may be empty."""
        return self.broken or self.stuck or self.forgotten


def _run(
    work: _Work, problem: Problem, model: nn.Module, seeds: int, chosen: Plan, report: Progress
) -> None:
    seed, loss, batch = problem.seed, problem.loss_fn, problem.first
    try:
        work.initialisation = initialisation(model)
    except ValueError as error:  # weights that cannot be copied or are without values
        work.unchecked = str(error)
    redraw = seeds > 1
    report("predicting", 0, 1)
    trace = _predicted(work, problem, model, chosen, len(problem.held) * seeds)
    report("predicting", 1, 1)

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
    work.stuck = stuck(model, loss, problem.more(), work.without_gradient)
    graph = None if trace is None else trace.graph
    work.forgotten = forgotten(model, loss, problem.first, problem.patience, graph)
    work.broken = work.broken or broken(None, growth)
    if work.obstacle:
        work.trainability = None
    found = work.trainability
    if found is None or found.probability > LIKELY or not is_straight(growth):
        # They hold all tensors of a pass, and are for remedies only.
        trace = work.propagation = None
    work.comparisons = compare(growth, work.predictions)
    work.conditioning = probes.conditioning(
        model,
        batch,
        forward=loss,
        effort=_EFFORT,
        progress=staged(report, "measuring conditioning"),
    )
    if chosen.preconditioning:
        work.preconditioning = preconditioned.preconditioning(
            model,
            _sample(model, problem),
            loss,
            hessian=chosen.hessian,
            progress=staged(report, "measuring preconditioning"),
        )
    work.second_order = second_order(model, batch, loss)

    if trace is not None and growth.rate is not None:

        def predict(
            parameters: Mapping[str, Tensor], trace: TracedModel = trace
        ) -> Outlook | None:
            changed = trace.predict(parameters) if parameters else work.propagation
            if changed is None:
                return None
            layers = trace.at_layers(changed)
            rate = predicted_rate(growth, {layer.layer: layer for layer in layers})
            chance = predicted_probability(changed, trace.graph.batch, calibration())
            return None if rate is None or chance is None else Outlook(rate, chance)

        work.remedies = recommend(
            model,
            predict,
            lambda change: measure(change, min(seeds, _TRIED), "trying remedies"),
            growth.rate,
            patience=chosen.theory_seconds(work.watch.seconds(), min(seeds, _TRIED)),
        )
        work.propagation = None


def _is_extensible(model: nn.Module, problem: Problem) -> bool:
    """Whether more samples change nothing but the rows of layers' inputs."""
    return not (problem.source.fixed_batches or any(map(is_batch_norm, model.modules())))


def _sample(model: nn.Module, problem: Problem) -> Batch:
    """A batch with enough rows for condition numbers, if rows are independent."""
    if not _is_extensible(model, problem):
        return problem.first
    samples = samples_wanted(sizes(model, problem.first, problem.loss_fn))
    return problem.joined(samples) or problem.first


def _told(
    work: _Work, trace: TracedModel, problem: Problem, model: nn.Module
) -> Sequence[Finding]:
    """Judge copies of layers and constant ones by the pass; a note if that fails."""
    if work.initialisation is None:
        return ()
    try:
        found = told_by_order(work.initialisation, trace.graph)
        work.initialisation = told_by_gradients(found, model, problem.loss_fn, problem.first)
    except Exception as error:  # it is not to cost the prediction
        return (
            Finding("note", "Layers that start alike were not looked at", wording.said(error)),
        )
    return ()


def _predicted(
    work: _Work, problem: Problem, model: nn.Module, chosen: Plan, passes: int
) -> TracedModel | None:
    """Predict every operation; None if the model cannot be traced.

    Args:
        work: Where it is written to.
        problem: What is checked.
        model: One of the factory's models.
        chosen: What the check-up costs.
        passes: That are still to be measured.
    """
    try:
        trace = traced(problem, model)
        work.broken = broken(trace.graph)
        work.mistakes = [
            *_told(work, trace, problem, model),
            *mistakes(trace.graph, model, problem),
        ]
        work.without_gradient = frozenset(trace.graph.without_gradient)
        begin = time.process_time()
        propagation = trace.predict(allowance=chosen.theory_seconds(work.watch.seconds(), passes))
    except Exception as error:  # whatever a model does, it is measured
        work.untraced = f"tracing the model failed with {type(error).__name__}: {error}"
        return None
    work.propagation = propagation
    work.sites, work.attribution = propagation.sites, propagation.attribution
    work.predictions = trace.at_layers(propagation)
    try:
        work.trainability = judge(
            propagation,
            trace.graph.batch,
            calibration(),
            took=time.process_time() - begin,
            allowance=chosen.seconds_left(work.watch.seconds(), passes),
        )
    except ValueError as error:  # no layer with weights
        work.unjudged = str(error)
    return trace


def _of_inputs(work: _Work) -> str:
    """The remedy, if it is the inputs that keep a model from training."""
    reason = "" if work.trainability is None else work.trainability.reason
    off = next((one.remedy or "" for one in work.mistakes if one.title == OFF), "")
    return off if reason in (REASONS["size"], REASONS["collapse"]) else ""


def _left_out(untraced: str, unjudged: str) -> list[Finding]:
    """What theory could not say, and why."""
    named = (
        ("Not predicted: theory could not follow the model", untraced),
        ("Not judged: whether it trains is unknown", unjudged),
    )
    rest = "Everything else was measured."
    return [
        Finding("note", title, f"{wording.capital(reason.rstrip('.'))}. {rest}")
        for title, reason in named
        if reason
    ]
