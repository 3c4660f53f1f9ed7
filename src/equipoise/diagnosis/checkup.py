"""The check-up: predict, measure, compare, try remedies, conclude."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from equipoise import probes
from equipoise.diagnosis import verdict
from equipoise.diagnosis.comparison import compare, compare_stream
from equipoise.diagnosis.findings import conclude
from equipoise.diagnosis.preconditioning.findings import conclude_preconditioning
from equipoise.diagnosis.preconditioning.measure import preconditioning
from equipoise.diagnosis.preconditioning.record import LayerPreconditioning
from equipoise.diagnosis.prediction.blocks import FoundBlock, find_blocks
from equipoise.diagnosis.prediction.normalisations import batch_covariance
from equipoise.diagnosis.prediction.predict import (
    Network,
    as_block,
    predict,
    typical_network,
)
from equipoise.diagnosis.prediction.residuals import ResidualStack, find_stack, predict_stack
from equipoise.diagnosis.problem import Model, Problem, draws_new_weights, facts, name_of
from equipoise.diagnosis.record import SCHEMA_VERSION, Block, Checkup, Comparison, Remedy
from equipoise.diagnosis.remedies import recommend
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
from equipoise.diagnosis.trial.findings import conclude_trial
from equipoise.diagnosis.trial.measure import TrialOptions, run_trial
from equipoise.diagnosis.trial.record import Trial
from equipoise.instrument.modules import unwatched
from equipoise.instrument.normalisers import is_batch_norm
from equipoise.instrument.progress import silent, staged
from equipoise.instrument.recording.operations import record_operations
from equipoise.instrument.types import Batch, LossFunction, Progress
from equipoise.probes.conditioning import LayerConditioning
from equipoise.probes.gradient_growth import GradientGrowth
from equipoise.theory.batch_norm.explosion import max_trainable_depth

Array = NDArray[np.float64]

# Several times as many rows as most layers have inputs.
_ROWS = 1024


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
        >>> report.blocks[0].activation, len(report.growth.layers)
        ('relu', 6)
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
        work.blocks,
        work.comparisons,
        work.conditioning,
        work.remedies,
        unwatched(fresh),
        [
            *conclude_preconditioning(work.preconditioning),
            *conclude_trial(work.trial),
            *conclude_second_order(work.second_order),
            *conclude_smoothness(work.smoothness),
        ],
    )
    depth = len(work.growth.layers) if work.growth else len(work.blocks)
    return Checkup(
        schema=SCHEMA_VERSION,
        **facts(problem, fresh, target or name_of(model), started),
        interrupted=work.interrupted,
        depth=depth,
        seeds=work.growth.replicates if work.growth else 0,
        batches=work.growth.batches if work.growth else 0,
        verdict=verdict.conclude(work.growth, work.blocks, work.comparisons, findings, depth),
        blocks=tuple(work.blocks),
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

    blocks: list[Block] = field(default_factory=list)
    growth: GradientGrowth | None = None
    comparisons: tuple[Comparison, ...] = ()
    conditioning: tuple[LayerConditioning, ...] = ()
    preconditioning: tuple[LayerPreconditioning, ...] = ()
    second_order: tuple[SecondOrderPooling, ...] = ()
    remedies: tuple[Remedy, ...] = ()
    trial: Trial | None = None
    smoothness: Smoothness | None = None
    interrupted: bool = False


def _run(work: _Work, problem: Problem, model: nn.Module, seeds: int, report: Progress) -> None:
    seed, loss, batch = problem.seed, problem.loss_fn, problem.first
    sample = _sample(model, problem)
    report("predicting", 0, 1)
    operations = record_operations(model, batch, loss)
    found = find_blocks(operations)
    stack = find_stack(operations, found)
    networks: dict[str, Network | None] = {}
    for one in found:
        block, networks[one.layer] = predict(one)
        work.blocks.append(block)
    report("predicting", 1, 1)

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

    work.growth = measure(None, seeds, "measuring gradients")
    typical = _covering_network(work.growth, networks) if _is_chain(found) else None
    opening = found[stack.first].norm if stack is not None else None
    if stack is not None and opening is not None and _is_measured(work.growth, networks):
        report("following the batch", 0, 1)
        covariance = batch_covariance(model, batch, loss, opening)
        _follow_stream(work, stack, found, work.growth, covariance)
        report("following the batch", 1, 1)
    elif typical is not None:
        report("simulating the theory's network", 0, 1)
        rates = [b.rate for b in work.blocks[1:-1] if b.rate is not None]
        width = min(block.features for block in work.blocks)
        work.comparisons = compare(work.growth, rates, typical, width)
        report("simulating the theory's network", 1, 1)

    work.conditioning = probes.conditioning(
        model, batch, forward=loss, progress=staged(report, "measuring conditioning")
    )
    work.preconditioning = preconditioning(
        model, sample, loss, progress=staged(report, "measuring preconditioning")
    )
    work.second_order = second_order(model, batch, loss)

    norms = [one.norm for one in found if one.norm is not None]
    rate = work.growth.rate
    if typical is not None and norms and rate is not None and _too_deep(work):
        work.remedies = recommend(
            typical,
            2 * len(work.growth.layers),  # twice the depth, as a reserve
            norms,
            lambda change: measure(change, min(seeds, 3), "trying remedies"),
            rate,
        )


def _follow_stream(
    work: _Work,
    stack: ResidualStack,
    found: Sequence[FoundBlock],
    growth: GradientGrowth,
    covariance: Array,
) -> None:
    """Predict a residual stream and compare it with the measurement."""
    try:
        prediction = predict_stack(stack, found, work.blocks, covariance)
    except ValueError as error:  # no signal passes, for example if branches start at zero
        for index in range(stack.first, stack.last):
            work.blocks[index] = as_block(found[index], None, None, str(error), False)
        return
    work.blocks = prediction.blocks
    # The model's first layer is never fitted; the stream's end is measured if a norm is there.
    fitted = slice(1 if stack.first == 0 else 0, None if stack.has_tail else -1)
    width = min(block.features for block in work.blocks)
    work.comparisons = compare_stream(
        growth, prediction.log_profiles, fitted, prediction.network, width
    )


def _sample(model: nn.Module, problem: Problem) -> Batch:
    """A batch with enough rows for condition numbers, if rows are independent."""
    coupled = any(is_batch_norm(m) for m in model.modules())
    if coupled or problem.source.fixed_batches:
        return problem.first
    return problem.joined(_ROWS) or problem.first


def _too_deep(work: _Work) -> bool:
    """Whether gradients differ by more than half of what still trains."""
    if work.growth is None or work.growth.rate is None:
        return False
    return len(work.growth.layers) > max_trainable_depth(work.growth.rate) / 2


def _covering_network(
    growth: GradientGrowth, networks: dict[str, Network | None]
) -> Network | None:
    """The theory's network for a typical block, if the measured layers are these blocks."""
    if len(growth.layers) < 4 or not _is_measured(growth, networks):
        return None
    # The last block ends in the head, which is not part of the fit.
    return typical_network(list(networks.values())[:-1])


def _is_chain(found: Sequence[FoundBlock]) -> bool:
    """Whether each block's last layer feeds the next: no branch in parallel."""
    return all(
        block.path.closing is not None and block.path.closing.module is after.feeding
        for block, after in pairwise(found)
    )


def _is_measured(growth: GradientGrowth, networks: dict[str, Network | None]) -> bool:
    """Whether the measured layers are exactly the normalisers that were found."""
    return [layer.layer for layer in growth.layers] == list(networks)
