"""Propose remedies, train the best of them beside the model as it is, and rank them."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import torch
from torch import nn

from equipoise.diagnosis.fix.applied import apply, code_lines
from equipoise.diagnosis.fix.division import Division, divide
from equipoise.diagnosis.fix.gains import gain_record
from equipoise.diagnosis.fix.options import OPTIMIZERS, FixOptions
from equipoise.diagnosis.fix.propose import propose
from equipoise.diagnosis.fix.race import Contender, Plan, Race
from equipoise.diagnosis.fix.record import Arm, Fix, Gain, Proposal
from equipoise.diagnosis.fix.remedy import Remedy
from equipoise.diagnosis.fix.runs import Runs, fingerprint, train_once
from equipoise.diagnosis.fix.summary import arm_record
from equipoise.diagnosis.fix.words import UNCHANGED, in_words
from equipoise.diagnosis.inputs.adapt import Loss
from equipoise.diagnosis.problem import Model, Problem
from equipoise.diagnosis.trainability.calibration import calibration
from equipoise.diagnosis.trainability.judge import judge
from equipoise.instrument.batches import samples
from equipoise.instrument.progress import StageCounter
from equipoise.instrument.recording.tracer import trace
from equipoise.instrument.snapshot import surroundings_kept, untouched
from equipoise.instrument.types import Progress
from equipoise.numerics.options import named_options
from equipoise.records.wording import said
from equipoise.theory.propagation.propagate import propagate

# Steps that are timed before the race is planned; the first ones are slower.
_TIMED = 4
# Part of the budget in which changed models are judged before they are trained.
_TO_JUDGE = 0.2
_RUNS = "fix-runs.json"


@named_options
def fix(
    model: Model,
    data: object = None,
    options: FixOptions | str | None = None,
    *,
    loss_fn: Loss | None = None,
    batch_size: int = 64,
    device: torch.device | str | None = None,
    seed: int = 0,
    folder: str | Path | None = None,
    progress: Progress | None = None,
) -> Fix:
    """Find what makes a model train better: propose remedies, train the best, rank them.

    Every arm has the same weights where shapes allow, the same batches and noise, and its own best
    learning rate of a small grid, chosen on one seed and judged on others. A fifth of the data is
    held out before anything is trained.

    Args:
        model: As for :func:`equipoise.checkup`: a factory or class, a module, which is not
            changed, a LightningModule, or a Hugging Face Trainer.
        data: As for :func:`equipoise.checkup`.
        options: Which remedies, and for how long, or a family's name, such as ``"norms"``; by
            default all, for about a minute.
        loss_fn: As for :func:`equipoise.checkup`.
        batch_size: Samples per batch, where the data do not fix it.
        device: Where the model runs; by default where a module is.
        seed: Seed of the runs that choose rates; the next ones judge.
        folder: Where finished runs are kept, so that an interrupted call goes on where it ended.
        progress: Called with a stage, finished and total runs.

    Returns:
        What was proposed, trained and found. ``.best`` is the recommended remedy, for
        :func:`equipoise.apply`, or ``None`` if none helps. After Ctrl-C, what was finished.

    Raises:
        ValueError: If model, loss and data do not fit together.

    Examples:
        >>> from equipoise import models
        >>> build = lambda: models.mlp(64, 10, depth=3, width=16)
        >>> options = FixOptions("starts", steps=12, arms=1, seeds=2, rates=(0.01, 0.1))
        >>> found = fix(build, "digits", options)
        >>> found.arms[0].name, found.judged_by, len(found.gains)
        ('as it is', 'training', 1)
    """
    chosen = FixOptions.of(options) or FixOptions()
    if folder is not None and Path(folder).is_file():
        raise ValueError(f"folder {str(folder)!r} is a file. Name a folder for finished runs.")
    problem = Problem.prepare(
        model, data, loss_fn=loss_fn, batch_size=batch_size, device=device, seed=seed
    )
    return run_fix(problem, chosen, folder, progress)


def run_fix(
    problem: Problem,
    options: FixOptions,
    folder: str | Path | None = None,
    progress: Progress | None = None,
) -> Fix:
    """Propose, train and rank; see :func:`fix`."""
    started = time.perf_counter()
    work = _Work(problem, options)
    try:
        with surroundings_kept(problem.fresh(problem.seed)):
            work.propose(progress)
            work.train(None if folder is None else Path(folder), progress)
    except KeyboardInterrupt:  # report what was finished
        work.interrupted = True
    return work.record(time.perf_counter() - started)


class _Work:
    """Results so far."""

    def __init__(self, problem: Problem, options: FixOptions) -> None:
        self.problem, self.options = problem, options
        self.proposals: tuple[Proposal, ...] = ()
        self.contenders: list[Contender] = []
        self.measured: dict[str, float | None] = {}
        self.refused: list[Arm] = []
        self.remarks: list[str] = []
        self.division = Division(problem.source, ())
        self.runs = Runs(None, "")
        self.steps = 0
        self.interrupted = False
        self._ends = time.monotonic() + options.seconds

    def propose(self, progress: Progress | None) -> None:
        """Propose remedies, as far as the model can be traced."""
        counter = StageCounter(progress, "proposing remedies", 1)
        counter.begin()
        patience = max(1.0, min(12.0, 0.15 * self.options.seconds))
        model = self.problem.fresh(self.problem.seed)
        try:
            graph = trace(model, self.problem.first, self.problem.loss_fn)
            found = propagate(graph, allowance=patience)
            known = judge(found, samples(self.problem.first), calibration(), depth=False)
            self.measured[UNCHANGED] = known.probability
        except Exception:  # whatever a model does, what needs no theory is proposed
            found = None
            self.remarks.append("Theory could not follow the model: remedies have no prediction.")
        self.proposals = propose(
            found,
            model,
            samples(self.problem.first),
            self.options.family,
            patience=patience,
        )
        counter.finish()

    def train(self, folder: Path | None, progress: Progress | None) -> None:
        """Train the first proposals beside the model as it is."""
        problem, options = self.problem, self.options
        most = max(options.steps or 0, 200)
        self.division = divide(problem.source, problem.batch_size, most, problem.seed)
        if self.division.remark:
            self.remarks.append(f"{self.division.remark} The training loss ranks.")
        trainable = [one for one in self.proposals if "batch" not in one.remedy.kinds]
        known = fingerprint(problem, options) if folder is not None else ""
        self.runs = Runs(None if folder is None else folder / _RUNS, known)
        if self.runs.taken_over:
            self.remarks.append(f"{self.runs.taken_over} finished runs were taken over.")
        if self.runs.plan is None:
            step = 0.0 if math.isinf(options.seconds) else self._step_seconds()
            plan = Plan.of(self._with_what_is_left(1 - _TO_JUDGE), step, len(trainable))
            self.runs.plan = plan.steps, plan.arms
        plan = Plan(*self.runs.plan)
        self.steps = plan.steps
        self.contenders = [Contender(None), *self._entered(trainable, plan.arms)]
        left = self._with_what_is_left()
        race = Race(problem, self.division, left, plan, self.runs, progress)
        race.run(self.contenders)
        if race.out_of_time:
            self.remarks.append("The budget ended before every run; a larger one tells more.")

    def _with_what_is_left(self, share: float = 1.0) -> FixOptions:
        """The options with a part of the budget that is left, at least a second."""
        if math.isinf(self.options.seconds):
            return self.options
        return replace(self.options, budget=max(1.0, share * (self._ends - time.monotonic())))

    def _entered(self, proposals: Sequence[Proposal], most: int) -> list[Contender]:
        """The first remedies with which the model runs."""
        found: list[Contender] = []
        begun = time.monotonic()
        until = begun + _TO_JUDGE * max(0.0, self._ends - begun)
        for proposal in proposals:
            if len(found) == most:
                break
            one = Contender(proposal.remedy)
            reason = self._obstacle(proposal.remedy, until)
            if reason is None:
                found.append(one)
            else:
                self.refused.append(arm_record(one, (), proposal.predicted, None, reason))
        return found

    def _obstacle(self, remedy: Remedy, until: float) -> str | None:
        """Why a remedy cannot be trained; otherwise judge the changed model, if there is time."""
        problem = self.problem
        model = problem.fresh(problem.seed)
        try:
            applied = apply(model, remedy)
            make, _ = OPTIMIZERS[self.options.kind]
            trained = [p for p in model.parameters() if p.requires_grad]
            with applied.attach(make(trained, lr=0.0)):
                problem.rehearse(model)
                with untouched(model), torch.no_grad():
                    problem.loss_fn(model.eval(), problem.first)  # as it is judged
        except ValueError as error:
            return str(error)
        except Exception as error:  # the user's code may depend on what was exchanged
            return f"the changed model raised {said(error)}"
        name = in_words(remedy)
        self.measured[name] = self.runs.probability(name, lambda: self._judged(model, until))
        return None

    def _judged(self, model: nn.Module, until: float) -> float | None:
        """How probably theory says that a changed model trains, if it can tell by then."""
        allowance = until - time.monotonic()
        with contextlib.suppress(Exception):  # what theory cannot judge is trained all the same
            if allowance > 0:
                graph = trace(model, self.problem.first, self.problem.loss_fn)
                propagation = propagate(graph, allowance=allowance)
                return judge(propagation, graph.batch, calibration(), depth=False).probability
        return None

    def _step_seconds(self) -> float:
        make, grid = OPTIMIZERS[self.options.kind]
        runs = [
            train_once(
                self.problem,
                Division(self.division.train, ()),
                None,
                make,
                arm="",
                rate=(self.options.rates or grid)[0],
                seed=self.problem.seed,
                steps=_TIMED,
            )
            for _ in range(2)
        ]
        return max(1e-5, min(run.step_seconds for run in runs))

    def record(self, seconds: float) -> Fix:
        """Sum up what was finished."""
        predicted = {in_words(one.remedy): one.predicted for one in self.proposals}
        arms = [
            arm_record(
                one,
                self.runs.finished(one.name),
                predicted.get(one.name),
                self.measured.get(one.name),
            )
            for one in self.contenders
        ]
        judged = [run for one in self.contenders for run in one.judged]
        by = judged[0].judged_by if judged else "training"
        gains = _gains(self.contenders)
        ranked = sorted(arms[1:], key=lambda arm: (-arm.rounds, _value(arm, by)))
        best = next(
            (arm.remedy for arm in ranked for g in gains if g.name == arm.name and g.helps), None
        )
        if best is None and self.options.family == "norms":
            best = next(
                (a.remedy for a in ranked for g in gains if g.name == a.name and g.ahead), None
            )
        return Fix(
            family=self.options.family,
            optimizer=self.options.kind,
            steps=self.steps,
            seeds=max((arm.seeds for arm in arms), default=0),
            held_out=self.division.samples,
            judged_by=by,
            proposals=self.proposals,
            arms=(*arms[:1], *ranked, *self.refused),
            gains=gains,
            best=best,
            code=() if best is None else code_lines(best),
            seconds=seconds,
            interrupted=self.interrupted,
            remarks=tuple(self.remarks),
        )


def _gains(contenders: Sequence[Contender]) -> tuple[Gain, ...]:
    if not contenders or not contenders[0].judged:
        return ()
    plain, *others = contenders
    return tuple(gain_record(o.name, plain.judged, o.judged) for o in others if o.judged)


def _value(arm: Arm, judged_by: str) -> float:
    value = arm.held_out.value if judged_by == "held-out" else arm.loss.value
    return value if value == value else float("inf")
