"""What a check-up looks at and measures, stage by stage, up to where it is interrupted."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

from torch import Tensor, nn

from equipoise import probes
from equipoise.diagnosis.broken import Broken, broken
from equipoise.diagnosis.comparison import compare, is_straight, predicted_rate
from equipoise.diagnosis.fix.applied import code_lines
from equipoise.diagnosis.fix.measure import run_fix
from equipoise.diagnosis.fix.options import FixOptions
from equipoise.diagnosis.fix.propose import promising, propose
from equipoise.diagnosis.fix.record import Fix, Proposal
from equipoise.diagnosis.forgotten import Forgotten, forgotten
from equipoise.diagnosis.initialisation.copies import told_by_gradients, told_by_order
from equipoise.diagnosis.initialisation.measure import initialisation
from equipoise.diagnosis.initialisation.record import Initialisation
from equipoise.diagnosis.initialisation.stuck import Stuck, drawn_again, stuck
from equipoise.diagnosis.initialisation.ties import told_by_logits
from equipoise.diagnosis.mistakes.find import Search
from equipoise.diagnosis.optimizer.check import check_optimizer
from equipoise.diagnosis.optimizer.findings import conclude_optimizer
from equipoise.diagnosis.optimizer.given import Stepping
from equipoise.diagnosis.optimizer.record import OptimizerCheck
from equipoise.diagnosis.preconditioning.measure import preconditioning
from equipoise.diagnosis.preconditioning.record import LayerPreconditioning
from equipoise.diagnosis.preconditioning.sizes import samples_wanted, sizes
from equipoise.diagnosis.prediction import (
    TracedModel,
    in_sequence,
    traced,
    traced_after_step,
    traced_with,
    with_fewer_samples,
)
from equipoise.diagnosis.price import FOR_A_VERDICT, Plan
from equipoise.diagnosis.problem import Problem
from equipoise.diagnosis.record import Comparison, LayerPrediction, Recommendation
from equipoise.diagnosis.refusals import in_words, too_little_memory
from equipoise.diagnosis.remedies import Outlook, recommend
from equipoise.diagnosis.second_order.measure import second_order
from equipoise.diagnosis.second_order.record import SecondOrderPooling
from equipoise.diagnosis.smoothness.measure import (
    SmoothnessOptions,
    smoothness_at_start,
    smoothness_in_training,
)
from equipoise.diagnosis.smoothness.record import Smoothness
from equipoise.diagnosis.smoothness.variants import fixes
from equipoise.diagnosis.sources import behind_weights
from equipoise.diagnosis.trainability.calibration import calibration
from equipoise.diagnosis.trainability.judge import REASONS, judge, predicted_probability
from equipoise.diagnosis.trainability.quantities import lack_time
from equipoise.diagnosis.trainability.record import LIKELY, Trainability
from equipoise.instrument.batches import samples
from equipoise.instrument.clock import Stopwatch
from equipoise.instrument.copies import take_over
from equipoise.instrument.memory import lacks_memory, let_go
from equipoise.instrument.progress import staged
from equipoise.instrument.types import Batch, Progress
from equipoise.probes.gradient_growth import GrowthInterrupted, NothingRanError
from equipoise.probes.record import GradientGrowth, LayerConditioning
from equipoise.records.finding import Finding
from equipoise.records.wording import said
from equipoise.theory.propagation.propagate import Propagation
from equipoise.theory.propagation.sites import Share, Site

# Initialisations on which remedies are tried.
_TRIED = 2
# Multiplications that condition numbers may take: about a second.
_EFFORT = 1e10


@dataclass
class Examination:
    """One model under examination, and what has been found of it so far.

    Args:
        problem: What is checked.
        model: One of the problem's models; every stage leaves it bit for bit as it is.
        plan: Which optional parts are run, and what the others may cost.
        seeds: Initialisations to measure; one if the factory draws no new ones.
        report: Called with a stage, finished and total steps.
        watch: Started with the check-up.
        stepping: How the user's training takes its steps, if that is known.
    """

    problem: Problem
    model: nn.Module
    plan: Plan
    seeds: int
    report: Progress
    watch: Stopwatch
    stepping: Stepping | None = None
    initialisation: Initialisation | None = None
    unchecked: str = ""
    sites: tuple[Site, ...] = ()
    attribution: tuple[Share, ...] = ()
    predictions: tuple[LayerPrediction, ...] = ()
    in_sequence: frozenset[tuple[str, str]] = frozenset()
    trainability: Trainability | None = None
    untraced: str = ""
    unjudged: str = ""
    unmeasured: str = ""
    alike: Sequence[Finding] = ()
    search: Search | None = None
    unused: frozenset[str] = frozenset()
    without_gradient: frozenset[str] = frozenset()
    behind_weights: frozenset[str] = frozenset()
    growth: GradientGrowth | None = None
    broken: Broken = field(default_factory=Broken)
    stuck: Stuck = field(default_factory=Stuck)
    forgotten: Forgotten = field(default_factory=Forgotten)
    comparisons: tuple[Comparison, ...] = ()
    conditioning: tuple[LayerConditioning, ...] = ()
    preconditioning: tuple[LayerPreconditioning, ...] = ()
    second_order: tuple[SecondOrderPooling, ...] = ()
    remedies: tuple[Recommendation, ...] = ()
    proposal: Proposal | None = None
    fix: Fix | None = None
    smoothness: Smoothness | None = None
    optimizer: OptimizerCheck | None = None
    interrupted: bool = False
    failure: BaseException | None = None

    @property
    def obstacle(self) -> Broken | Stuck | Forgotten:
        """What keeps the model from training, whatever theory says; may be empty."""
        return self.broken or self.stuck or self.forgotten

    @property
    def mistakes(self) -> list[Finding]:
        """Of the use of the model, and what could not be looked at."""
        return [
            *conclude_optimizer(self.optimizer),
            *self.alike,
            *(self.search.found if self.search is not None else ()),
        ]

    def run(
        self,
        remedies: FixOptions | None,
        training: SmoothnessOptions | None,
        folder: str | Path | None,
    ) -> None:
        """Go through all stages; Ctrl-C and failures of the user's code end them, and are kept.

        Args:
            remedies: Which remedies to train, if any.
            training: How to measure smoothness on the way, if that was asked for.
            folder: Where finished trainings are kept.
        """
        try:
            self._measure(propose=remedies is None)
            self._train(remedies, training, folder)
        except GrowthInterrupted as interruption:
            self.interrupted = True
            self.growth = self.growth or interruption.finished
        except KeyboardInterrupt:  # report what was finished
            self.interrupted = True
        except BaseException as error:  # the user's code may exit, too
            self.interrupted, self.failure = True, error
            let_go(error)

    def _measure(self, *, propose: bool) -> None:
        self._check_initialisation()
        self.report("predicting", 0, 1)
        trace, propagation = self._predict()
        has_functions = trace is not None and trace.graph.has_functions
        if not self._is_doubted:
            # They hold all tensors of a pass, and are for remedies only.
            trace = propagation = None
        if self.search is not None:
            self.search.finish()
        self.report("predicting", 1, 1)
        try:
            self.growth = self._gradients("measuring gradients", self.seeds)
        except NothingRanError as error:
            if self.untraced or not self._is_trained_without_layers:
                raise
            self.unmeasured = str(error)
        self._find_obstacles(has_functions)
        if self.stepping is not None and not self.obstacle:
            self.optimizer = check_optimizer(
                self.problem, self.stepping, self.report, unused=self.unused
            )
        if self.growth is None:
            return
        self.comparisons = compare(self.growth, self.predictions)
        if not self._is_doubted:  # of what will not train, whatever theory says
            trace = propagation = None
        self._measure_layers()
        if trace is not None and propagation is not None and not self._is_drawn_too_small:
            if self._has_a_rate:
                self._try_remedies(trace, propagation)
            if propose:
                self._propose(propagation)

    def _check_initialisation(self) -> None:
        try:
            self.initialisation = initialisation(self.model)
        except ValueError as error:  # weights that cannot be copied or are without values
            self.unchecked = str(error)

    def _predict(self) -> tuple[TracedModel | None, Propagation | None]:
        """Trace a pass, look for mistakes in it, and predict every operation.

        Returns:
            The pass, without one if the model cannot be traced, and the prediction.
        """
        problem = self.problem
        while True:
            try:
                return self._predict_on(problem)
            except Exception as error:  # whatever a model does, it is measured
                fewer = with_fewer_samples(problem, error)
                if fewer is None:
                    words = f"tracing the model failed with {said(error)}"
                    self.untraced = too_little_memory(error) if lacks_memory(error) else words
                    let_go(error)
                    return None, None
            problem = fewer

    def _predict_on(self, problem: Problem) -> tuple[TracedModel, Propagation]:
        """The same, of so many samples or of as many of them as go into memory."""
        passes = len(self.problem.held) * self.seeds
        trace = traced(problem, self.model)
        self.broken = broken(trace.graph)
        self.alike = (
            *self._compare_units(trace),
            *_fewer_samples(trace.problem, self.problem),
        )
        left_out = () if self.stepping is None else self.stepping.left_out
        self.search = Search(trace.graph, self.model, trace.problem, left_out)
        self.unused = frozenset(self._trainable.difference(trace.graph.weights))
        passes += self.search.looks
        self.without_gradient = frozenset(trace.graph.without_gradient)
        self.behind_weights = behind_weights({n.number: n for n in trace.graph.nodes})
        allowance = self.plan.theory_seconds(self.watch.seconds(), passes)
        propagation = self._judge(trace, allowance, passes)
        if self.trainability is None and lack_time(propagation.sites):
            propagation = self._judge(trace, max(allowance, FOR_A_VERDICT), passes)
        self.sites, self.attribution = propagation.sites, propagation.attribution
        self.predictions = trace.at_layers(propagation)
        self.in_sequence = in_sequence(trace)
        return trace, propagation

    def _judge(self, trace: TracedModel, allowance: float, passes: int) -> Propagation:
        """Predict every operation in so much time, and whether the model trains."""
        begin = time.process_time()
        propagation = trace.predict(allowance=allowance)
        try:
            self.trainability = judge(
                propagation,
                self._samples_beside(trace),
                calibration(),
                took=time.process_time() - begin,
                allowance=self.plan.seconds_left(self.watch.seconds(), passes),
                again=partial(traced_with, trace.problem, self.model),
                stepped=partial(traced_after_step, trace.problem, self.model),
            )
            self.unjudged = ""
        except ValueError as error:  # no layer with weights
            self.unjudged = str(error)
        return propagation

    def _samples_beside(self, trace: TracedModel) -> int:
        """Samples of the whole batch, of which the pass may have had some."""
        is_whole = trace.problem is self.problem
        return trace.graph.batch if is_whole else samples(self.problem.first)

    def _compare_units(self, trace: TracedModel) -> Sequence[Finding]:
        """Judge copies, constant layers and ties by the pass; a note if that fails."""
        if self.initialisation is None:
            return ()
        try:
            found = told_by_logits(self.initialisation, trace.graph)
            found = told_by_order(found, trace.graph)
            self.initialisation = told_by_gradients(
                found, self.model, trace.problem.loss_fn, trace.problem.first, trace.graph
            )
        except Exception as error:  # it is not to cost the prediction
            return (
                Finding("note", "Layers that start alike were not looked at", in_words(error)),
            )
        return ()

    def _gradients(
        self, stage: str, seeds: int, change: Callable[[], None] | None = None
    ) -> GradientGrowth:
        """Measure gradients, over initialisations where there are several, after a change."""
        redraw = self.seeds > 1

        def initialize(model: nn.Module, replicate: int) -> None:
            if redraw:
                take_over(model, self.problem.fresh())
            if change is not None:
                change()

        self.report(stage, 0, seeds * len(self.problem.held))
        return probes.gradient_growth(
            self.model,
            self.problem.loss_fn,
            self.problem.held,
            replicates=seeds,
            initialize=initialize if redraw or change is not None else None,
            seed=self.problem.seed,
            progress=staged(self.report, stage),
        )

    def _find_obstacles(self, has_functions: bool) -> None:
        """Look for what keeps the model from training, which overrules what theory promises."""
        loss = self.problem.loss_fn
        self.stuck = stuck(self.model, loss, self.problem.more(), self.without_gradient)
        if self.stuck.silent and self.seeds > 1:
            others = (self.problem.fresh(self.problem.seed + k) for k in range(1, self.seeds))
            self.stuck = drawn_again(self.stuck, others, loss, self.problem.held)
        self.forgotten = forgotten(
            self.model, loss, self.problem.first, self.problem.patience, has_functions
        )
        self.broken = self.broken or broken(None, self.growth)
        if self.obstacle:
            self.trainability = None

    @property
    def _is_trained_without_layers(self) -> bool:
        """Whether the traced pass shows gradients of weights, of which no call of a layer has."""
        return bool(self._trainable - self.without_gradient)

    @property
    def _trainable(self) -> set[str]:
        return {name for name, p in self.model.named_parameters() if p.requires_grad}

    @property
    def _is_doubted(self) -> bool:
        """Whether theory doubts that it trains."""
        return self.trainability is not None and self.trainability.probability <= LIKELY

    @property
    def _is_drawn_too_small(self) -> bool:
        """Whether it is doubted for a reason that theory of its first pass knows nothing of."""
        found = self.trainability
        return found is not None and found.reason == REASONS["settling"]

    @property
    def _has_a_rate(self) -> bool:
        """Whether measured gradients have a rate to improve."""
        growth = self.growth
        return growth is not None and growth.rate is not None and is_straight(growth)

    def _measure_layers(self) -> None:
        """Condition numbers, what preconditioning would do to them, and second-order pooling."""
        model, loss = self.model, self.problem.loss_fn
        self.conditioning = probes.conditioning(
            model,
            self.problem.first,
            forward=loss,
            effort=_EFFORT,
            progress=staged(self.report, "measuring conditioning"),
        )
        if self.plan.preconditioning:
            self.preconditioning = preconditioning(
                model,
                self._sample(),
                loss,
                hessian=self.plan.hessian,
                progress=staged(self.report, "measuring preconditioning"),
            )
        self.second_order = second_order(model, self.problem.first, loss)

    def _sample(self) -> Batch:
        """A batch with enough rows for condition numbers, if rows are independent."""
        problem = self.problem
        if not problem.is_extensible(self.model):
            return problem.first
        found = sizes(self.model, problem.first, problem.loss_fn)
        return problem.joined(samples_wanted(found)) or problem.first

    def _try_remedies(self, trace: TracedModel, propagation: Propagation) -> None:
        """Predict other values of parameters, and measure the mildest that could train."""
        growth, seeds = self.growth, min(self.seeds, _TRIED)
        count = self._samples_beside(trace)
        if growth is None or growth.rate is None:
            return

        def predict(parameters: Mapping[str, Tensor]) -> Outlook | None:
            changed = trace.predict(parameters) if parameters else propagation
            layers = trace.at_layers(changed)
            rate = predicted_rate(growth, {layer.layer: layer for layer in layers})
            chance = predicted_probability(changed, count, calibration())
            return None if rate is None or chance is None else Outlook(rate, chance)

        self.remedies = recommend(
            self.model,
            predict,
            lambda change: self._gradients("trying remedies", seeds, change),
            growth.rate,
            patience=self.plan.theory_seconds(self.watch.seconds(), seeds),
        )

    def _propose(self, propagation: Propagation) -> None:
        """Name what theory expects more of than of the model as it is and of verified remedies."""
        if self.trainability is None:
            return
        verified = [one.predicted_probability for one in self.remedies if one.verified]
        known = max(self.trainability.probability, *verified, 0.0)
        if known > LIKELY:
            return
        patience = self.plan.theory_seconds(self.watch.seconds(), 0)
        batch = samples(self.problem.first)
        best = promising(propose(propagation, self.model, batch, patience=patience), known)
        if best is not None:
            self.proposal = replace(best, code=code_lines(best.remedy))

    def _train(
        self,
        remedies: FixOptions | None,
        training: SmoothnessOptions | None,
        folder: str | Path | None,
    ) -> None:
        """Train remedies beside the model as it is, and measure smoothness on the way."""
        changes = fixes(self.remedies)
        if self.plan.smoothness:
            self.smoothness = smoothness_at_start(self.problem, changes)
        if remedies is not None:
            if self.optimizer is not None:
                remedies = remedies.beside(self.optimizer.optimizer)
            self.fix = run_fix(self.problem, remedies, folder, self.report)
            self.interrupted = self.fix.interrupted
        if training is not None and not self.interrupted:
            self.smoothness = smoothness_in_training(self.problem, training, changes, self.report)


def _fewer_samples(taken: Problem, whole: Problem) -> Sequence[Finding]:
    """A note where a pass had less than the whole batch."""
    if taken is whole:
        return ()
    count, all_of_them = samples(taken.first), samples(whole.first)
    return (
        Finding(
            "note",
            f"Theory saw {count} of {all_of_them} samples",
            "The tensors of all operations of a pass did not go into the device's memory with "
            "more of them; gradients were measured on all. Batch norm's statistics are those of "
            f"{count} samples in what is predicted.",
            f"To predict it at {all_of_them}, check it up on a device with more memory.",
        ),
    )
