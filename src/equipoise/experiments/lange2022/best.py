"""Each method at its best learning rate, and who is ahead of whom by more than chance."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping
from dataclasses import dataclass

from scipy import stats

from equipoise.experiments.lange2022.methods import METHODS
from equipoise.experiments.lange2022.runs import Cell, Run
from equipoise.records.experiments import Check

_CONFIDENCE = 0.95


@dataclass(frozen=True, slots=True)
class Best:
    """A method at the rate with the lowest mean loss.

    Args:
        method: Key of the method.
        rate: The rate; nan if the network refuses such batches or no rate trains.
        rates: All that were tried.
        runs: One per seed, at that rate.
        refused: Why the network cannot be trained at all.
    """

    method: str
    rate: float
    rates: tuple[float, ...]
    runs: tuple[Run, ...]
    refused: str | None

    @property
    def label(self) -> str:
        """As figures name the method."""
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
    def accuracies(self) -> tuple[float, ...]:
        """Final test accuracy of each seed."""
        return tuple(run.accuracy for run in self.runs)

    def words(self) -> str:
        """Loss and accuracy with their spread over seeds."""
        if self.refused is not None:
            return "does not train: refused"
        if not self.trains:
            return "diverged at every rate"
        return f"{_spread(self.losses, 3)} / {_spread([100 * a for a in self.accuracies], 1)} %"


def best_of(results: Mapping[Cell, Run]) -> dict[str, Best]:
    """Choose every method's rate, by mean loss over seeds; methods in the order of cells."""
    methods: dict[str, dict[float, list[Run]]] = {}
    for cell, run in results.items():
        methods.setdefault(cell.method, {}).setdefault(cell.rate, []).append(run)
    return {method: _best(method, rates) for method, rates in methods.items()}


def at_rates(results: Mapping[Cell, Run], rates: Mapping[str, float]) -> dict[str, Best]:
    """Every method that has one of its own at that rate, such as the paper's."""
    own = {cell: run for cell, run in results.items() if rates.get(cell.method) == cell.rate}
    return best_of(own)


def _best(method: str, rates: Mapping[float, list[Run]]) -> Best:
    means = {rate: statistics.fmean(run.loss for run in runs) for rate, runs in rates.items()}
    rate = min(means, key=lambda rate: (means[rate], rate))
    refused = next((run.refused for run in rates[rate] if run.refused is not None), None)
    found = rate if math.isfinite(means[rate]) else math.nan
    return Best(method, found, tuple(sorted(rates)), tuple(rates[rate]), refused)


def ahead(claim: str, better: Best, worse: Best) -> Check:
    """Whether one method's loss is below another's, seed by seed, beyond Student's t at 95 %."""
    if not better.trains:
        return Check(claim, f"{better.label} {better.words()}", False)
    if not worse.trains:
        return Check(claim, f"{worse.label} {worse.words()}", True)
    gap, error = _difference(better.losses, worse.losses)
    found = (
        f"loss {_spread(better.losses, 3)} against {_spread(worse.losses, 3)}, difference "
        f"{gap:+.3f} ± {error:.3f}"
    )
    return Check(claim, found, gap + _width(better.losses) * error < 0)


def not_behind(claim: str, one: Best, other: Best) -> Check:
    """Whether one method's loss is not above another's beyond chance."""
    if not one.trains or not other.trains:
        return Check(
            claim, f"{one.label} {one.words()}; {other.label} {other.words()}", one.trains
        )
    gap, error = _difference(one.losses, other.losses)
    found = f"loss difference {gap:+.3f} ± {error:.3f}"
    return Check(claim, found, gap - _width(one.losses) * error < 0)


def comparable(claim: str, one: Best, other: Best, *, points: float) -> Check:
    """Whether final test accuracies differ by no more than so many percentage points."""
    if not (one.trains and other.trains):
        return Check(claim, f"{one.label} {one.words()}; {other.label} {other.words()}", False)
    gap = 100 * (statistics.fmean(one.accuracies) - statistics.fmean(other.accuracies))
    found = f"accuracy {gap:+.1f} percentage points"
    return Check(claim, found, abs(gap) <= points)


def does_not_train(claim: str, method: Best) -> Check:
    """Whether a method fails on these batches."""
    return Check(claim, f"{method.label}: {method.words()}", not method.trains)


def _difference(one: tuple[float, ...], other: tuple[float, ...]) -> tuple[float, float]:
    """Mean difference and its standard error; seeds share weights and batches."""
    gaps = [a - b for a, b in zip(one, other, strict=True)]
    error = statistics.stdev(gaps) / math.sqrt(len(gaps)) if len(gaps) > 1 else 0.0
    return statistics.fmean(gaps), error


def _width(values: tuple[float, ...]) -> float:
    return float(stats.t.ppf(_CONFIDENCE, len(values) - 1)) if len(values) > 1 else 0.0


def _spread(values: tuple[float, ...] | list[float], digits: int) -> str:
    if len(values) < 2:
        return f"{values[0]:.{digits}f}"
    error = statistics.stdev(values) / math.sqrt(len(values))
    return f"{statistics.fmean(values):.{digits}f} ± {error:.{digits}f}"
