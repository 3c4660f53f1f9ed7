"""A race: every arm starts, the better half goes on, and the best are judged on other seeds.

Rounds with longer trainings of fewer arms: all rates of a grid at a quarter of the steps; of the
better half the two best rates at half of them, both on one seed; then the model as it is and the
three best remedies at their best rates on other seeds, in full, the former also at the rate of the
remedy that is ahead; and those that may still be the
best on more seeds. A budget in seconds decides how many steps that makes, and is looked at before
every run.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from equipoise.diagnosis.fix.division import Division
from equipoise.diagnosis.fix.gains import gain_record, may_be_better
from equipoise.diagnosis.fix.options import OPTIMIZERS, FixOptions
from equipoise.diagnosis.fix.remedy import Remedy
from equipoise.diagnosis.fix.runs import Run, Runs, alike, train_once
from equipoise.diagnosis.fix.words import in_words
from equipoise.diagnosis.problem import Problem
from equipoise.instrument.progress import StageCounter
from equipoise.instrument.types import Progress
from equipoise.training.rates import TunedRate, tune_rate

# Parts of the steps that the first rounds train, and the least.
_FIRST, _SECOND, _LEAST = 0.25, 0.5, 8
# Rates of the second round, and remedies of the last.
_RATES, _FINALISTS = 2, 3
# Further seeds for each seed that did not decide.
_MORE_SEEDS = 2
# How many remedies start, the most that leave this many steps to the judged runs.
_ARMS, _ENOUGH, _MOST_STEPS = (11, 7, 5, 3), 80, 200
# Parts of the budget after which no further run of the first two rounds begins.
_FIRST_ENDS, _SECOND_ENDS = 0.5, 0.65
# Arms take longer than the model as it is; grids are extended.
_OVERHEAD = 1.4
_STAGE, _MORE_STAGE = "training remedies", "judging the best on more seeds"

Item = TypeVar("Item")


@dataclass(slots=True)
class Contender:
    """An arm in the race.

    Args:
        remedy: The change; ``None`` for the model as it is.
        tuned: The rates of the first round.
        rates: The same, the best first.
        rate: The best rate so far.
        score: Its score in the last choosing round.
        rounds: Rounds that it took part in.
        judged: Its judging runs.
    """

    remedy: Remedy | None
    tuned: TunedRate | None = None
    rates: Sequence[float] = ()
    rate: float = math.nan
    score: float = math.inf
    rounds: int = 0
    judged: list[Run] = field(default_factory=list)

    @property
    def name(self) -> str:
        """What is changed, in words."""
        return in_words(self.remedy)


@dataclass(frozen=True, slots=True)
class Plan:
    """How large the race is.

    Args:
        steps: Of a judged run.
        arms: Remedies that start.
    """

    steps: int
    arms: int

    @staticmethod
    def of(options: FixOptions, step_seconds: float, available: int) -> Plan:
        """Fit the race to the budget."""
        most = _ARMS[0] if options.arms is None else options.arms
        if options.steps is not None:
            fits = [n for n in _ARMS if _seconds(n, options, options.steps, step_seconds)]
            arms = next((n for n in fits if n <= most), min(most, _ARMS[-1]))
            return Plan(options.steps, min(arms if options.arms is None else most, available))
        for arms in (*(n for n in _ARMS if n <= most), min(most, _ARMS[-1])):
            started = min(arms, available)
            steps = int(options.seconds / (_OVERHEAD * step_seconds * _runs(started, options)))
            if steps >= _ENOUGH:
                break
        return Plan(max(2 * _LEAST, min(steps, _MOST_STEPS)), started)


def _runs(arms: int, options: FixOptions) -> float:
    """How many judged runs all trainings take as long as."""
    rates = len(options.rates or OPTIMIZERS[options.kind][1])
    last = (2 + min(_FINALISTS, arms)) * options.seeds  # the model as it is at two rates
    return _FIRST * (arms + 1) * rates + _SECOND * _RATES * (1 + math.ceil(arms / 2)) + last


def _seconds(arms: int, options: FixOptions, steps: int, step_seconds: float) -> bool:
    return _OVERHEAD * step_seconds * steps * _runs(arms, options) <= options.seconds


class Race:
    """Train arms in rounds.

    Args:
        problem: Model, loss and device.
        division: Data to train on and to judge by.
        options: Rates, seeds and budget.
        plan: How large the race is.
        runs: Finished runs.
        progress: Called with finished and expected runs.
    """

    def __init__(
        self,
        problem: Problem,
        division: Division,
        options: FixOptions,
        plan: Plan,
        runs: Runs,
        progress: Progress | None,
    ) -> None:
        self._problem, self._division, self._options = problem, division, options
        self._plan, self._runs = plan, runs
        self._make, grid = OPTIMIZERS[options.kind]
        self._rates = options.rates or grid
        started = plan.arms + 1
        total = len(self._rates) * started + _RATES * math.ceil(started / 2)
        total += (2 + min(_FINALISTS, plan.arms)) * options.seeds
        self._progress = progress
        self._counter = StageCounter(progress, _STAGE, total)
        self._started = time.monotonic()
        self.out_of_time = False

    def run(self, contenders: Sequence[Contender]) -> None:
        """Train the contenders, the model as it is first; their fields tell the outcome.

        After an exception, such as Ctrl-C, they hold what was finished.
        """
        plain, *others = contenders
        for one in self._while(_FIRST_ENDS, contenders, least=2):
            self._first_round(one)
        begun = [one for one in others if one.rounds]
        ahead = sorted(begun, key=_score)[: max(_FINALISTS, math.ceil(len(begun) / 2))]
        for one in self._while(_SECOND_ENDS, [plain, *ahead], least=2):
            self._second_round(one)
        reached = [one for one in ahead if one.rounds > 1] or ahead
        finalists = [plain, *sorted(reached, key=_score)[:_FINALISTS]]
        seeds = range(self._problem.seed + 1, self._problem.seed + 1 + self._options.seeds)
        for seed in self._while(1.0, seeds, least=2):
            self._judge(finalists, seed)
        for one in finalists:
            one.rounds = 3
        self._judge_at_the_leaders_rate(plain, finalists[1:])
        self._counter.finish()
        self._decide(plain, finalists[1:], seeds.stop)

    def _judge(self, arms: Sequence[Contender], seed: int) -> None:
        """Train arms in full; in turn, so that a busy machine slows them alike."""
        for one in arms:
            one.judged.append(self._train(one, one.rate, seed, self._plan.steps))
            if not math.isfinite(one.judged[-1].score):
                self._judge_at_a_lower_rate(one)

    def _judge_at_a_lower_rate(self, one: Contender) -> None:
        """A rate at which a seed diverges is not the best: take the next one, for all its seeds.

        The model as it is has the same right: a remedy does not help because it was given a rate
        at which only that model diverges.
        """
        assert one.tuned is not None
        lower = [rate for rate, score in one.tuned.scores if rate < one.rate and score < math.inf]
        for rate in self._while(1.0, lower[-1:], least=0):
            runs = [self._train(one, rate, run.seed, self._plan.steps) for run in one.judged]
            if all(math.isfinite(run.score) for run in runs):
                one.rate, one.judged = rate, runs

    def _judge_at_the_leaders_rate(self, plain: Contender, others: Sequence[Contender]) -> None:
        """Give the model as it is the rate of the remedy ahead of it, if that is better.

        Its own was chosen on one seed in shorter runs, and a gain may be the rate's alone.
        """
        ahead = [o for o in others if gain_record(o.name, plain.judged, o.judged).ahead]
        for one in sorted(ahead, key=_judged_score)[:1]:
            if one.rate == plain.rate:
                continue
            runs = [self._train(plain, one.rate, r.seed, self._plan.steps) for r in plain.judged]
            if sum(run.score for run in runs) < sum(run.score for run in plain.judged):
                plain.rate, plain.judged = one.rate, runs

    def _decide(self, plain: Contender, others: Sequence[Contender], first: int) -> None:
        """Judge on more seeds what may be the best, if it is ahead but not beyond chance."""
        rivals = _undecided(plain, others)
        if not rivals:
            return
        more = range(first, first + _MORE_SEEDS * self._options.seeds)
        self._counter = StageCounter(self._progress, _MORE_STAGE, (1 + len(rivals)) * len(more))
        for seed in self._while(1.0, more, least=0):
            self._judge([plain, *rivals], seed)
        for one in rivals:
            one.rounds = 4
        self._counter.finish()

    def _while(self, share: float, items: Sequence[Item], least: int) -> Iterator[Item]:
        """Yield items until a part of the budget is used up, at least some."""
        for number, item in enumerate(items):
            late = time.monotonic() - self._started > share * self._options.seconds
            if number >= least and late:
                self.out_of_time = True
                return
            yield item

    def _first_round(self, one: Contender) -> None:
        steps = max(_LEAST, round(_FIRST * self._plan.steps))
        seed = self._problem.seed
        runs: list[Run] = []

        def score(rate: float) -> float:
            runs.append(self._train(one, rate, seed, steps))
            return runs[-1].score

        one.tuned = tune_rate(score, self._rates, extensions=1)
        one.rates = _best_first(runs)
        one.rate, one.rounds = one.rates[0], 1
        one.score = min(run.score for run in runs)

    def _second_round(self, one: Contender) -> None:
        steps = max(_LEAST, round(_SECOND * self._plan.steps))
        runs = [self._train(one, rate, self._problem.seed, steps) for rate in one.rates[:_RATES]]
        one.rate, one.score = _best_first(runs)[0], min(run.score for run in runs)
        one.rounds = 2

    def _train(self, one: Contender, rate: float, seed: int, steps: int) -> Run:
        self._counter.begin()

        def train() -> Run:
            return train_once(
                self._problem,
                self._division,
                one.remedy,
                self._make,
                arm=one.name,
                rate=rate,
                seed=seed,
                steps=steps,
            )

        return self._runs.of(one.name, rate, seed, steps, train)


def _undecided(plain: Contender, others: Sequence[Contender]) -> list[Contender]:
    """Remedies of which more seeds may tell which one is the best, and whether it helps."""
    gains = {one.name: gain_record(one.name, plain.judged, one.judged) for one in others}
    if any(gain.helps is None for gain in gains.values()):
        return []
    ahead = [
        one
        for one in others
        if (gains[one.name].helps or gains[one.name].difference.value < 0)
        and all(math.isfinite(run.score) for run in one.judged)  # no seed makes up for another
    ]
    if not ahead:
        return []
    leader = min(ahead, key=_judged_score)
    rivals = [
        one for one in ahead if one is not leader and may_be_better(leader.judged, one.judged)
    ]
    return [leader, *rivals] if rivals or not gains[leader.name].helps else []


def _best_first(runs: Sequence[Run]) -> list[float]:
    """Rates by their scores; the largest first, where nothing was learned yet at any of them.

    On a first plateau scores are noise, least at the smallest rate, which leaves it last.
    """
    ranked = sorted(runs, key=lambda run: (run.score, run.rate))
    if not any(run.has_learned for run in runs):
        least = ranked[0].score
        ranked.sort(key=lambda run: -run.rate if alike(run.score, least) else math.inf)
    return [run.rate for run in ranked]


def _score(one: Contender) -> float:
    return one.score


def _judged_score(one: Contender) -> float:
    return sum(run.score for run in one.judged)
