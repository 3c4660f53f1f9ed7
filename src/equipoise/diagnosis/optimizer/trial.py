"""Some steps of the user's optimiser on copies of the model, at its own rate and at others."""

from __future__ import annotations

import inspect
import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from equipoise.diagnosis.optimizer.record import RateTrial, StepsOutcome
from equipoise.diagnosis.optimizer.schedule import peak_rate
from equipoise.diagnosis.problem import Problem
from equipoise.instrument.graph_nodes import graph_nodes
from equipoise.instrument.random_states import seeded
from equipoise.instrument.snapshot import SavedParameters
from equipoise.instrument.types import Batch, LossFunction, Progress
from equipoise.records.exceptions import text_of
from equipoise.records.wording import first_sentence
from equipoise.training.loop import loss_of
from equipoise.training.rates import rounded

# Steps at each rate, and those that confirm a suspicion, at most and of models that are slow.
STEPS = 12
_CONFIRMING, _FEWER = 60, 24
# Steps in which a loss that has risen may come back: a transformer's at Adam's 0.1 does.
_LASTING = 300
# A change of the loss by this share of its size is clear; where it falls so, all is well.
_CLEAR = 0.03
# Powers of ten by which the rate is lowered or raised, and lowered where the loss does not rise.
_POWERS, _FEW_POWERS = 8, 4
# A larger rate that does so many times as much is better, too, however small both are: in
# proportion a tenfold one would do 10 times as much.
_GAIN = 20.0
# The part of another rate's fall that the own one should reach in the confirming steps.
_AT_LEAST = {"too large": 0.25, "too small": 0.1}
_STAGE = "trying the optimiser's steps"
HALF = (torch.float16, torch.bfloat16)


class NeedsClosureError(ValueError):
    """Steps that raise without a closure, though it is optional, as those that look ahead may."""

    def __init__(self, error: Exception) -> None:
        super().__init__(
            f"its step() raises {type(error).__name__}: {first_sentence(error).rstrip('.')}"
        )


@dataclass(frozen=True, slots=True)
class Trainee:
    """A copy of the model with its optimiser.

    Args:
        model: The copy.
        optimizer: What steps it.
        clip: The largest norm of gradients; None without clipping.
        warms_up: Whether the learning rate rises from zero, in the first half of the steps here.
    """

    model: nn.Module
    optimizer: torch.optim.Optimizer
    clip: float | None
    warms_up: bool

    def step(self, batch: Batch, loss_fn: LossFunction) -> float:
        """Take one step, and return the loss before it."""
        losses: list[Tensor] = []

        def closure() -> Tensor:
            self.optimizer.zero_grad()
            loss = loss_of(self.model, batch, loss_fn)
            losses.append(loss.detach())
            torch.autograd.backward(loss)
            if self.clip is not None:
                nn.utils.clip_grad_norm_(self.model.parameters(), self.clip)
            return loss

        if _needs_closure(self.optimizer):
            self.optimizer.step(closure)  # type: ignore[arg-type]  # PyTorch wants a float
            return float(losses[0])
        closure()
        try:
            self.optimizer.step()
        except Exception as error:  # of others' optimisers
            if "closure" in text_of(error):
                raise NeedsClosureError(error) from error
            raise
        return float(losses[0])

    def weights_in_half(self) -> list[nn.Parameter]:
        """The weights in half precision."""
        return [p for p in self.model.parameters() if p.requires_grad and p.dtype in HALF]


def _as_in_training(optimizer: torch.optim.Optimizer) -> None:
    """Switch optimisers that have modes as modules do, such as those without a schedule."""
    switch = getattr(optimizer, "train", None)
    if callable(switch):
        switch()


def _needs_closure(optimizer: torch.optim.Optimizer) -> bool:
    """Whether its steps compute the loss themselves, several times, as those of LBFGS."""
    taken = inspect.signature(optimizer.step).parameters
    return "closure" in taken and taken["closure"].default is inspect.Parameter.empty


def try_rates(
    problem: Problem, trainee: Callable[[], Trainee], report: Progress, patience: float
) -> tuple[StepsOutcome, tuple[RateTrial, ...], float]:
    """Step at the user's rate, and where the loss does not fall clearly, at others.

    A rate is called too large only if 60 steps at it, and 300 where there is time for them, reach
    less than a quarter of what one of the smaller rates has reached, and too small only if 60
    reach less than a tenth of what a rate that is at least a hundred times as large has: a loss
    that rises before it falls, as momentum makes it, is no mistake.

    Args:
        problem: Batches and loss.
        trainee: Makes a copy of the model, always the same, with its optimiser.
        report: Called with a stage, finished and total steps.
        patience: Seconds for all but the first trial.

    Returns:
        The outcome, all trials in their order, and the share of weights in half precision that
        the first one left as they were.
    """
    affordable = int(patience / max(problem.step_seconds, 1e-9))
    trials = _Trials(problem, trainee, report, affordable)
    return _judged(trials), tuple(trials.taken), trials.unmoved


def _judged(trials: _Trials) -> StepsOutcome:
    own = trials.at(1.0, STEPS)
    if _falls_clearly(own):
        return "falls"
    if _rises_clearly(own):
        return _beside_smaller(trials, own, _POWERS)
    for power in range(1, _POWERS):
        if not trials.can_go_on:
            break
        larger = trials.at(10.0**power, STEPS)
        if larger.everywhere and (_falls_clearly(larger) or larger.fall > _GAIN * abs(own.fall)):
            return _beside_larger(trials, own, larger, power)
        if _rises_clearly(larger):
            break
    return _beside_smaller(trials, own, _FEW_POWERS)


def _falls_clearly(one: RateTrial) -> bool:
    return one.everywhere and one.fall > _CLEAR * abs(one.before)


def _rises_clearly(one: RateTrial) -> bool:
    return -one.fall > _CLEAR * abs(one.before)


def _beside_smaller(trials: _Trials, own: RateTrial, powers: int) -> StepsOutcome:
    """The outcome where the loss rises at the own rate, or stays what it is at larger ones too."""
    smaller = _best_smaller(trials, own, powers)
    if smaller is None:
        return "falls" if own.everywhere else "undecided"
    for steps in (trials.confirming, _LASTING):
        if steps > trials.confirming and not trials.affords(steps):
            break
        longer = trials.at(1.0, steps)
        if longer.fall > _AT_LEAST["too large"] * smaller.fall:
            return "falls"
        if math.isinf(longer.after):
            break
    return "too large"


def _best_smaller(trials: _Trials, own: RateTrial, powers: int) -> RateTrial | None:
    """The best of smaller rates where the loss falls, clearly if it does not rise at the own."""
    best: RateTrial | None = None
    for power in range(1, powers):
        if not trials.can_go_on:
            break
        found = trials.at(10.0**-power, STEPS)
        if best is not None:
            return max(best, found, key=lambda one: one.fall if one.everywhere else -math.inf)
        if _falls_clearly(found) or (found.everywhere and _rises_clearly(own)):
            best = found
    return best


def _beside_larger(trials: _Trials, own: RateTrial, larger: RateTrial, power: int) -> StepsOutcome:
    """The outcome where the loss falls clearly at a larger rate, and not at the own one."""
    if power == 1 and own.everywhere:
        return "falls"
    longer = trials.at(1.0, trials.confirming)
    if power == 1 or longer.fall > _AT_LEAST["too small"] * larger.fall:
        return "falls" if longer.fall > 0 else "undecided"
    for further in range(power + 1, _POWERS):
        found = trials.at(10.0**further, STEPS) if trials.can_go_on else larger
        if not (found.everywhere and found.fall > larger.fall):
            break
        larger = found
    return "too small"


def _strangers(problem: Problem, one: Trainee) -> list[Tensor]:
    """Tensors outside of the model that steps or the loss's gradients reach.

    A criterion's own parameters are such: copies of the model share them with the user's.
    """
    with seeded(problem.seed), torch.enable_grad():
        loss = loss_of(one.model, problem.first, problem.loss_fn)
    reached = [tensor for group in one.optimizer.param_groups for tensor in group["params"]]
    leaves = (getattr(node, "variable", None) for node in graph_nodes(loss))
    reached += [leaf for leaf in leaves if isinstance(leaf, Tensor)]
    own = set(map(id, one.model.parameters()))
    return [tensor for tensor in reached if id(tensor) not in own]


class _Trials:
    """Trials of one optimiser, in their order.

    Args:
        problem: Batches and loss.
        trainee: Makes a copy of the model, always the same, with its optimiser.
        report: Called with a stage, finished and total steps.
        affordable: Steps of all together; of slow models at least the fewest that tell something.
    """

    def __init__(
        self,
        problem: Problem,
        trainee: Callable[[], Trainee],
        report: Progress,
        affordable: int,
    ) -> None:
        self._problem, self._trainee, self._report = problem, trainee, report
        self._strangers = _strangers(problem, trainee())
        self.confirming = min(_CONFIRMING, max(_FEWER, affordable // 2))
        self._affordable = max(affordable, self.confirming + 3 * STEPS)
        self.taken: list[RateTrial] = []
        self.unmoved = math.nan

    @property
    def can_go_on(self) -> bool:
        """Whether another trial can be afforded, and then the steps that confirm."""
        return self.affords(STEPS + self.confirming)

    def affords(self, steps: int) -> bool:
        """Whether there is time for so many steps more."""
        return sum(one.steps for one in self.taken) + steps <= self._affordable

    def at(self, factor: float, steps: int) -> RateTrial:
        """Take steps at a multiple of the user's learning rate."""
        one = self._trainee()
        start = [weight.detach().clone() for weight in one.weights_in_half()]
        groups = [(group, factor * peak_rate(group)) for group in one.optimizer.param_groups]
        others = SavedParameters(nn.Module(), self._strangers, copy_gradients=True)
        try:
            with seeded(self._problem.seed), torch.enable_grad():
                _as_in_training(one.optimizer)
                before = self._losses(one)
                last = self._step(one, groups, steps)
                after = self._losses(one) if math.isfinite(last) else [math.inf]
        finally:
            others.restore()
        self._report(_STAGE, steps, steps)
        if not self.taken:
            self.unmoved = _unmoved(one.weights_in_half(), start)
        finite = all(map(math.isfinite, after))
        self.taken.append(
            RateTrial(
                rate=rounded(max(rate for _, rate in groups)),
                steps=steps,
                before=math.fsum(before) / len(before),
                after=math.fsum(after) / len(after) if finite else math.inf,
                everywhere=finite and all(y < x for x, y in zip(before, after, strict=True)),
            )
        )
        return self.taken[-1]

    def _step(
        self, one: Trainee, groups: Sequence[tuple[dict[str, Any], float]], steps: int
    ) -> float:
        """Take the steps, and return the last loss, or the first that is not finite."""
        last = math.nan
        for number, batch in enumerate(
            itertools.islice(itertools.cycle(self._problem.held), steps)
        ):
            self._report(_STAGE, number, steps)
            part = min(1.0, 2 * (number + 1) / steps) if one.warms_up else 1.0
            for group, rate in groups:
                group["lr"] = part * rate
            last = one.step(batch, self._problem.loss_fn)
            if not math.isfinite(last):
                break
        return last

    def _losses(self, one: Trainee) -> list[float]:
        """The loss of every batch, each time with the same noise."""
        losses = []
        for batch in self._problem.held:
            with seeded(self._problem.seed):
                losses.append(float(loss_of(one.model, batch, self._problem.loss_fn).detach()))
        return losses


def _unmoved(weights: Sequence[nn.Parameter], start: Sequence[Tensor]) -> float:
    """Share of the weights with a gradient that are what they were."""
    moving = still = 0
    for weight, old in zip(weights, start, strict=True):
        if weight.grad is not None:
            has_gradient = weight.grad != 0
            moving += int(has_gradient.sum())
            still += int((has_gradient & (weight.detach() == old)).sum())
    return still / moving if moving else math.nan
