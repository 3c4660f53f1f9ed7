"""Each method at its best rate, and comparisons of the accuracies."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from equipoise_papers.experiments.verdict import Check
from equipoise_papers.judging import difference, spread
from equipoise_papers.lange2022.lengths import about_the_end
from equipoise_papers.lange2022.resnets.training import METHODS, ResNetTraining
from equipoise_papers.lange2022.training import Run


@dataclass(frozen=True, slots=True)
class Trained:
    """A method at one of its rates.

    Args:
        method: Key of the method.
        rate: The rate.
        at_edge: Whether a rate beyond those tried might be better.
        first_drop: Steps until the learning rate falls.
        seen: Images that each of its trainings saw.
        runs: One per seed.
    """

    method: str
    rate: float
    at_edge: bool
    first_drop: int
    seen: int
    runs: tuple[Run, ...]

    @property
    def label(self) -> str:
        """The method's name in figures."""
        return METHODS[self.method].label

    @property
    def loss(self) -> float:
        """Mean training loss of the second half of the steps."""
        return statistics.fmean(run.loss for run in self.runs)

    @property
    def trains(self) -> bool:
        """Whether every seed ended with a finite loss."""
        return math.isfinite(self.loss)

    @property
    def final(self) -> tuple[float, ...]:
        """Test accuracy of each seed at the end, in per cent."""
        return tuple(100 * run.accuracy for run in self.runs)

    @property
    def early(self) -> tuple[float, ...]:
        """Mean test accuracy of each seed over all looks up to the first drop."""
        return tuple(statistics.fmean(self._until_drop(run)) for run in self.runs)

    @property
    def gained(self) -> tuple[float, ...]:
        """Gain of each seed's test accuracy after the first drop."""
        return tuple(
            final - self._until_drop(run)[-1]
            for final, run in zip(self.final, self.runs, strict=True)
        )

    def _until_drop(self, run: Run) -> list[float]:
        return [100 * (e.accuracy or 0.0) for e in run.evaluations if e.step <= self.first_drop]

    def words(self) -> str:
        """Write the final accuracy with its spread over seeds."""
        return f"{spread(self.final)} %" if self.trains else "diverges"


Quantity = Callable[[Trained], tuple[float, ...]]


def best_of(results: Mapping[ResNetTraining, Run]) -> dict[str, Trained]:
    """Choose every method's rate by mean loss over seeds; methods are in the order of cells."""
    return {
        method: min(tried.values(), key=lambda one: (one.loss, one.rate))
        for method, tried in _by_method(results).items()
    }


def at_rates(
    results: Mapping[ResNetTraining, Run], rates: Mapping[str, float]
) -> dict[str, Trained]:
    """Every method that was trained at its given rate, such as the paper's."""
    return {
        method: tried[rates[method]]
        for method, tried in _by_method(results).items()
        if rates.get(method) in tried
    }


def higher(claim: str, quantity: Quantity, one: Trained, other: Trained) -> Check:
    """Check that a quantity is higher, seed by seed, by Student's t at 95 %.

    A method that trains is above one that does not; one that does not train is above none.
    """
    if not (one.trains and other.trains):
        return Check(claim, _failures(one, other), one.trains)
    gap = difference(quantity(one), quantity(other))
    found = f"{spread(quantity(one))} against {spread(quantity(other))}"
    check = Check(claim, f"{found}, difference {gap.words()} points", gap.above())
    return about_the_end(check, one.seen)


def comparable(claim: str, one: Trained, other: Trained, *, points: float) -> Check:
    """Check that final accuracies differ by at most ``points``, by the same test."""
    return _between(claim, one, other, -points, points)


def slightly_lower(claim: str, one: Trained, other: Trained, *, points: float) -> Check:
    """Check that the final accuracy is lower, by at most ``points``, by the same test."""
    return _between(claim, one, other, -points, 0.0)


def _between(claim: str, one: Trained, other: Trained, low: float, high: float) -> Check:
    if not (one.trains and other.trains):
        return Check(claim, _failures(one, other), False)
    gap = difference(one.final, other.final)
    check = Check(claim, f"difference {gap.words()} points", gap.between(low, high))
    return about_the_end(check, one.seen)


def _failures(*methods: Trained) -> str:
    return "; ".join(f"{method.label} {method.words()}" for method in methods)


def _by_method(results: Mapping[ResNetTraining, Run]) -> dict[str, dict[float, Trained]]:
    runs: dict[str, dict[float, list[Run]]] = {}
    a_cell: dict[str, ResNetTraining] = {}
    for cell, run in results.items():
        runs.setdefault(cell.method, {}).setdefault(cell.rate, []).append(run)
        a_cell[cell.method] = cell
    return {
        method: {
            rate: Trained(
                method,
                rate,
                len(rates) > 1 and rate in (min(rates), max(rates)),
                a_cell[method].drops[0],
                a_cell[method].steps * a_cell[method].batch_size,
                tuple(seeds),
            )
            for rate, seeds in rates.items()
        }
        for method, rates in runs.items()
    }
