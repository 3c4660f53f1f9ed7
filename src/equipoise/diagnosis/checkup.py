"""The check-up: predict, measure, compare, try remedies, conclude."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import torch

from equipoise.diagnosis import verdict
from equipoise.diagnosis.broken import conclude_broken
from equipoise.diagnosis.examination import Examination
from equipoise.diagnosis.factories import draws_new_weights
from equipoise.diagnosis.findings import advice, conclude
from equipoise.diagnosis.fix.findings import conclude_fix, proved
from equipoise.diagnosis.fix.options import FixOptions
from equipoise.diagnosis.forgotten import conclude_forgotten
from equipoise.diagnosis.initialisation.findings import conclude_initialisation
from equipoise.diagnosis.initialisation.stuck import conclude_stuck
from equipoise.diagnosis.inputs.adapt import Loss
from equipoise.diagnosis.mistakes.data.inputs import OFF
from equipoise.diagnosis.mistakes.training.plateaus import ENDLESS
from equipoise.diagnosis.mistakes.training.reach import MOST
from equipoise.diagnosis.optimizer.given import GivenOptimizer, stepping_of
from equipoise.diagnosis.optimizer.trial import STEPS
from equipoise.diagnosis.preconditioning.findings import conclude_preconditioning
from equipoise.diagnosis.price import OF_LAYERS, free_memory, memory_in_words, plan, prices
from equipoise.diagnosis.problem import Model, Problem, facts, name_of
from equipoise.diagnosis.record import SCHEMA_VERSION, Checkup, UnfinishedError
from equipoise.diagnosis.refusals import in_words
from equipoise.diagnosis.second_order.findings import conclude_second_order
from equipoise.diagnosis.smoothness.findings import conclude_smoothness
from equipoise.diagnosis.smoothness.measure import SmoothnessOptions
from equipoise.diagnosis.trainability.findings import conclude_trainability
from equipoise.diagnosis.trainability.judge import REASONS
from equipoise.instrument.clock import Stopwatch
from equipoise.instrument.modules import unwatched
from equipoise.instrument.progress import Stages
from equipoise.instrument.threads import suitable_threads
from equipoise.instrument.types import Progress
from equipoise.numerics.checks import check_flag, check_positive, check_size
from equipoise.numerics.options import named_options
from equipoise.records import wording
from equipoise.records.finding import Finding


@named_options
def checkup(
    model: Model,
    data: object = None,
    *,
    loss_fn: Loss | None = None,
    optimizer: GivenOptimizer | None = None,
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
        optimizer: Your optimiser, so that what it holds and what its steps do to the loss is
            looked at too: one that holds the module's parameters, a class of ``torch.optim`` (or a
            ``partial`` of one), or a function of the model that returns it, such as
            ``lambda model: torch.optim.SGD(model.parameters(), lr=0.1)``; with its schedule,
            ``([optimizer], [scheduler])``. By default that of a LightningModule's
            ``configure_optimizers`` or of a Hugging Face Trainer.
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
        ValueError: If the factory, the data, the loss, the optimiser or the batch size cannot be
            used, or if one of them fails later: then its ``finished`` is the record of what was
            found before.

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
    asked = {
        "preconditioning": preconditioning,
        "hessian": hessian,
        "smoothness": bool(smoothness),
    }
    remedies, training = FixOptions.of(fix), _training(smoothness)
    started, watch, stages = time.perf_counter(), Stopwatch(), Stages()
    report = stages.told_to(progress)
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
        stepping, words = stepping_of(
            model, optimizer, fresh, partial(problem.fresh, problem.seed)
        )
        if words:
            problem = replace(problem, assumptions=(*problem.assumptions, words))
        if problem.device.type == "cpu":
            refine_threads(lambda: problem.rehearse(fresh))
        redraw = seeds > 1 and draws_new_weights(fresh, problem.fresh(problem.seed + 1))
        examined = Examination(
            problem,
            fresh,
            plan(
                problem.step_seconds,
                prices(problem, fresh, training),
                passes=len(problem.held) * (seeds if redraw else 1),
                further=0 if stepping is None else STEPS,
                asked=[name for name, wanted in asked.items() if wanted],
                budget=budget,
            ),
            seeds=seeds if redraw else 1,
            report=report,
            watch=watch,
            stepping=stepping,
        )
        if notice is not None:
            memory = memory_in_words(fresh, free_memory(problem.device), problem.kept_bytes)
            notice(f"{examined.plan.notice} {memory}".rstrip())
        examined.run(remedies, training, folder)
    found = _record(examined, target or name_of(model), started)
    if examined.failure is not None:
        words = in_words(examined.failure)
        raise UnfinishedError(stages.present, words, found) from examined.failure
    return found


def _training(smoothness: SmoothnessOptions | bool | None) -> SmoothnessOptions | None:
    """How smoothness is measured in a training, if that was asked for."""
    if isinstance(smoothness, SmoothnessOptions):
        return smoothness
    if not isinstance(smoothness, bool | None):
        raise ValueError(
            "smoothness is chosen by equipoise.diagnosis.SmoothnessOptions, True or False; got "
            f"{smoothness!r}."
        )
    return None


def _record(examined: Examination, target: str, started: float) -> Checkup:
    """What was found, with findings and verdict."""
    growth, findings = examined.growth, _findings(examined)
    return Checkup(
        schema=SCHEMA_VERSION,
        **facts(examined.problem, examined.model, target, started),
        interrupted=examined.interrupted,
        depth=len(growth.layers if growth else examined.predictions),
        seeds=growth.replicates if growth else 0,
        batches=growth.batches if growth else 0,
        verdict=verdict.conclude(
            growth,
            examined.trainability,
            findings,
            unknown=examined.untraced or examined.unjudged,
            obstacle=examined.obstacle,
            mistake=next((one for one in examined.mistakes if _heads(one, examined)), None),
            rest=next((one for one in examined.mistakes if one.title == MOST), None),
            zeros=_zeros(examined),
        ),
        sites=examined.sites,
        attribution=examined.attribution,
        predictions=examined.predictions,
        initialisation=examined.initialisation,
        growth=growth,
        comparisons=examined.comparisons,
        conditioning=examined.conditioning,
        optimizer=examined.optimizer,
        remedies=examined.remedies,
        proposal=examined.proposal,
        findings=findings,
        preconditioning=examined.preconditioning,
        second_order=examined.second_order,
        fix=examined.fix,
        smoothness=examined.smoothness,
        left_out=tuple(
            one
            for one in examined.plan.left_out
            if not examined.unmeasured or one.option not in OF_LAYERS
        ),
    )


def _heads(mistake: Finding, examined: Examination) -> bool:
    """Whether it stands before any forecast; one that is bad knows of plateaus."""
    found = examined.trainability
    is_known = mistake.title == ENDLESS and found is not None and found.probability < 0.5
    return mistake.severity == "critical" and not is_known


def _findings(examined: Examination) -> tuple[Finding, ...]:
    """What the numbers and the sections say, the most severe first."""
    initialised = examined.initialisation
    return conclude(
        examined.growth,
        examined.sites,
        examined.attribution,
        examined.comparisons,
        examined.conditioning,
        unwatched={} if examined.unmeasured else unwatched(examined.model),
        further=[
            *([] if examined.obstacle else _without_theory(examined)),
            *examined.mistakes,
            *conclude_initialisation(initialised, examined.unchecked),
            *conclude_broken(examined.broken),
            *conclude_stuck(examined.stuck),
            *conclude_forgotten(examined.forgotten),
            *conclude_preconditioning(examined.preconditioning),
            *conclude_second_order(examined.second_order),
            *conclude_smoothness(examined.smoothness),
        ],
        leading=[
            *conclude_trainability(examined.trainability, _advice(examined)),
            *conclude_fix(examined.fix),
        ],
        zeros=_zeros(examined),
        dead=examined.stuck.silent or examined.stuck.part,
        behind=examined.behind_weights,
        in_sequence=examined.in_sequence,
    )


def _zeros(examined: Examination) -> tuple[str, ...]:
    """Matrices that start at zero, and are moved by training."""
    initialised = examined.initialisation
    return () if initialised is None or examined.stuck else initialised.zero_matrices


def _advice(examined: Examination) -> str:
    """What to change: what was proved on the model, inputs if these are the reason, or theory."""
    found, race = examined.trainability, examined.fix
    reason = "" if found is None else found.reason
    off = next((one.remedy or "" for one in examined.mistakes if one.title == OFF), "")
    return (
        proved(race)
        or (off if reason in (REASONS["size"], REASONS["collapse"]) else "")
        or advice(
            examined.growth,
            examined.attribution,
            examined.remedies,
            examined.proposal,
            reason=reason,
            raced=race is not None and bool(race.gains),
        )
    )


def _without_theory(examined: Examination) -> list[Finding]:
    """What theory could not say, and why."""
    named = (
        ("Not predicted: theory could not follow the model", examined.untraced),
        ("Not judged: whether it trains is unknown", examined.unjudged),
    )
    rest = "" if examined.unmeasured else " Everything else was measured."
    found = [
        Finding("note", title, f"{wording.capital(reason.rstrip('.'))}.{rest}")
        for title, reason in named
        if reason
    ]
    if examined.unmeasured:
        nor = " Nor was what preconditioning would do." if examined.plan.preconditioning else ""
        found.append(
            Finding(
                "note",
                "Gradients of layers were not measured",
                wording.capital(examined.unmeasured) + nor,
                "Move what the loss calls into forward(), and call the model.",
            )
        )
    return found
