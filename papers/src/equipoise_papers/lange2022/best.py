"""Each method at its best learning rate, and who is ahead of whom by more than chance."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping
from dataclasses import dataclass, replace

from equipoise_papers.experiments.verdict import Check
from equipoise_papers.judging import Difference, best_rate, difference, spread
from equipoise_papers.lange2022.lengths import about_the_end
from equipoise_papers.lange2022.methods import METHODS
from equipoise_papers.lange2022.training import Run, Training

# Losses are level if they differ by less than this share of the other's.
_LEVEL = 0.05
# A method that wins no tenth of the loss of guessing one of ten classes, and gets no fifth of the
# test images right, does not train.
_NEAR_GUESSING, _GUESSED = 0.9 * math.log(10), 20.0
# Share of the steps that count as the beginning.
_BEGINNING = 0.1


@dataclass(frozen=True, slots=True)
class Best:
    """A method at the rate with the lowest mean loss.

    Args:
        method: Key of the method.
        rate: The rate; nan if the network refuses such batches or no rate trains.
        rates: All rates that were tried.
        runs: One per seed, at that rate.
        seeds: The seed of each of them.
        refused: Why the network cannot be trained on such batches.
        seen: Images that each of its trainings saw.
    """

    method: str
    rate: float
    rates: tuple[float, ...]
    runs: tuple[Run, ...]
    seeds: tuple[int, ...]
    refused: str | None
    seen: int

    @property
    def label(self) -> str:
        """The method's name in figures."""
        return METHODS[self.method].label

    @property
    def trains(self) -> bool:
        """Whether every seed ended with a finite loss."""
        return self.refused is None and not math.isnan(self.rate)

    @property
    def at_edge(self) -> bool:
        """Whether a rate beyond those tried might be better."""
        return len(self.rates) > 1 and self.rate in (self.rates[0], self.rates[-1])

    @property
    def losses(self) -> tuple[float, ...]:
        """Second-half training loss of each seed."""
        return tuple(run.loss for run in self.runs)

    @property
    def first_losses(self) -> tuple[float, ...]:
        """Mean training loss of each seed over the first tenth of the steps."""
        return tuple(
            statistics.fmean(run.curve.losses[: max(1, int(_BEGINNING * len(run.curve.losses)))])
            for run in self.runs
        )

    @property
    def accuracies(self) -> tuple[float, ...]:
        """Final test accuracy of each seed, in per cent."""
        return tuple(100 * run.accuracy for run in self.runs)

    def words(self) -> str:
        """Write loss and accuracy with their spread over seeds."""
        if self.refused is not None:
            return "does not train: refused"
        if not self.trains:
            return "diverged at every rate"
        return f"{spread(self.losses, 3)} / {spread(self.accuracies)} %"


def best_of(results: Mapping[Training, Run]) -> dict[str, Best]:
    """Choose every method's rate by mean loss over seeds; methods are in the order of cells."""
    methods: dict[str, dict[float, dict[int, Run]]] = {}
    seen: dict[str, int] = {}
    for cell, run in results.items():
        methods.setdefault(cell.method, {}).setdefault(cell.rate, {})[cell.seed] = run
        seen[cell.method] = cell.steps * cell.batch_size
    return {method: _best(method, rates, seen[method]) for method, rates in methods.items()}


def at_rates(results: Mapping[Training, Run], rates: Mapping[str, float]) -> dict[str, Best]:
    """Every method that was trained at its given rate, such as the paper's."""
    own = {cell: run for cell, run in results.items() if rates.get(cell.method) == cell.rate}
    return best_of(own)


def _best(method: str, rates: Mapping[float, Mapping[int, Run]], seen: int) -> Best:
    rate = best_rate({r: {s: run.loss for s, run in runs.items()} for r, runs in rates.items()})
    seeds = tuple(sorted(rates[rate]))
    runs = tuple(rates[rate][seed] for seed in seeds)
    refused = next((run.refused for run in runs if run.refused is not None), None)
    found = rate if math.isfinite(statistics.fmean(run.loss for run in runs)) else math.nan
    return Best(method, found, tuple(sorted(rates)), runs, seeds, refused, seen)


def _with_common_seeds(one: Best, other: Best) -> tuple[Best, Best]:
    """Both methods, of the seeds that both have."""

    def reduced(best: Best) -> Best:
        runs = dict(zip(best.seeds, best.runs, strict=True))
        return replace(best, runs=tuple(runs[seed] for seed in common), seeds=common)

    common = tuple(seed for seed in one.seeds if seed in other.seeds)
    return reduced(one), reduced(other)


def ahead(claim: str, better: Best, worse: Best) -> Check:
    """Check that one method's loss is below another's, seed by seed, by Student's t at 95 %.

    A method that trains is ahead of one that does not; one that does not train is ahead of none.
    Nothing is decided where final test accuracies say the opposite, by the same test.
    """
    if not better.trains:
        return Check(claim, f"{better.label} {better.words()}", False)
    if not worse.trains:
        return Check(claim, f"{worse.label} {worse.words()}", True)
    better, worse = _with_common_seeds(better, worse)
    gap = difference(better.losses, worse.losses)
    found = f"loss {spread(better.losses, 3)} against {spread(worse.losses, 3)}"
    return _unless_contradicted(
        Check(claim, f"{found}, difference {gap.words(3)}", gap.below()), better, worse
    )


def _unless_contradicted(check: Check, one: Best, other: Best) -> Check:
    """The check, undecided if test accuracies answer it the other way."""
    gap, found = _accuracies(one, other)
    opposite = gap.below() if check.holds else gap.above()
    if check.holds is None or not opposite:
        return check
    return replace(check, found=f"{check.found}; but {found}", holds=None)


def _accuracies(one: Best, other: Best) -> tuple[Difference, str]:
    """The difference of final test accuracies, and how it reads."""
    gap = difference(*(best.accuracies for best in _with_common_seeds(one, other)))
    return gap, f"accuracy, {_minus(one, other)}: {gap.words()} percentage points"


def _minus(one: Best, other: Best) -> str:
    return f"{one.label} minus {other.label}"


def faster_at_first(claim: str, better: Best, worse: Best) -> Check:
    """Check that a method's loss is lower over the first tenth of the steps, by the same test."""
    if not (better.trains and worse.trains):
        return Check(claim, _failures(better, worse), better.trains)
    ours, theirs = (best.first_losses for best in _with_common_seeds(better, worse))
    gap = difference(ours, theirs)
    found = f"loss of the first tenth {spread(ours, 3)} against {spread(theirs, 3)}"
    return Check(claim, f"{found}, difference {gap.words(3)}", gap.below())


def not_behind(claim: str, one: Best, other: Best) -> Check:
    """Check that one method's loss is at most a twentieth above another's, by the same test.

    Nothing is decided where final test accuracies say the opposite, as in :func:`ahead`.
    """
    if not (one.trains and other.trains):
        return Check(claim, _failures(one, other), one.trains)
    one, other = _with_common_seeds(one, other)
    gap, margin = difference(one.losses, other.losses), _LEVEL * statistics.fmean(other.losses)
    found = (
        f"loss, {_minus(one, other)}: {gap.words(3)}; level is up to {margin:+.3f}, {_LEVEL:.0%}"
    )
    return _unless_contradicted(Check(claim, found, gap.below(margin)), one, other)


def comparable(claim: str, one: Best, other: Best, *, points: float) -> Check:
    """Check that final test accuracies differ by at most ``points``, by the same test."""
    return _more_accurate_by(claim, one, other, -points, points)


def not_less_accurate(claim: str, one: Best, other: Best, *, points: float) -> Check:
    """Check that final test accuracy is at most ``points`` lower, by the same test."""
    return _more_accurate_by(claim, one, other, -points)


def more_accurate(claim: str, one: Best, other: Best) -> Check:
    """Check that final test accuracy is higher, by the same test."""
    return _more_accurate_by(claim, one, other, 0.0)


def slightly_less_accurate(claim: str, one: Best, other: Best, *, points: float) -> Check:
    """Check that final test accuracy is lower, by at most ``points``, by the same test."""
    return _more_accurate_by(claim, one, other, -points, 0.0)


def _more_accurate_by(
    claim: str, one: Best, other: Best, least: float, most: float | None = None
) -> Check:
    """Check by how many points one is ahead; without a bound, of one that does not train, too."""
    if not (one.trains and other.trains):
        return Check(claim, _failures(one, other), one.trains and most is None)
    gap, found = _accuracies(one, other)
    holds = gap.above(least) if most is None else gap.between(least, most)
    return about_the_end(Check(claim, found, holds), one.seen)


def does_not_train(claim: str, method: Best) -> Check:
    """Check that training loss and test accuracy stay near those of guessing, by the same test."""
    if not method.trains:
        return Check(claim, f"{method.label}: {method.words()}", True)
    seeds = len(method.losses)
    near = (
        difference(method.losses, [_NEAR_GUESSING] * seeds).above(),
        difference(method.accuracies, [_GUESSED] * seeds).below(),
    )
    found = f"{method.label}: {method.words()}; guessing has {math.log(10):.2f} / 10 %"
    return Check(claim, found, False if False in near else None if None in near else True)


def _failures(*methods: Best) -> str:
    return "; ".join(f"{method.label} {method.words()}" for method in methods)
