"""Each way to train a residual network at its best rate, and the accuracies that are judged."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from equipoise_papers.judging.paired import difference, spread
from equipoise_papers.lange2022.resnets.training import METHODS, Cell
from equipoise_papers.lange2022.runs import Run
from equipoise_papers.reproduction.record import Check


@dataclass(frozen=True, slots=True)
class Trained:
    """A method at one of its rates.

    Args:
        method: Key of the method.
        rate: The rate.
        at_edge: Whether a rate beyond those tried might be better.
        first_drop: Steps until the learning rate falls.
        runs: One per seed.
    """

    method: str
    rate: float
    at_edge: bool
    first_drop: int
    runs: tuple[Run, ...]

    @property
    def label(self) -> str:
        """As figures name the method."""
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
        """What each seed's test accuracy gains from the first drop on."""
        return tuple(
            final - self._until_drop(run)[-1]
            for final, run in zip(self.final, self.runs, strict=True)
        )

    def _until_drop(self, run: Run) -> list[float]:
        return [100 * (e.accuracy or 0.0) for e in run.evaluations if e.step <= self.first_drop]

    def words(self) -> str:
        """Final accuracy with its spread over seeds."""
        return f"{spread(self.final)} %" if self.trains else "diverges"


Quantity = Callable[[Trained], tuple[float, ...]]


def best_of(results: Mapping[Cell, Run]) -> dict[str, Trained]:
    """Choose every method's rate, by mean loss over seeds; methods in the order of cells."""
    return {
        method: min(tried.values(), key=lambda one: (one.loss, one.rate))
        for method, tried in _by_method(results).items()
    }


def at_rates(results: Mapping[Cell, Run], rates: Mapping[str, float]) -> dict[str, Trained]:
    """Every method that was tried at its rate, such as the paper's."""
    return {
        method: tried[rates[method]]
        for method, tried in _by_method(results).items()
        if rates.get(method) in tried
    }


def higher(claim: str, quantity: Quantity, one: Trained, other: Trained) -> Check:
    """Whether a quantity is higher, seed by seed, by Student's t at 95 %.

    Whoever trains is above whoever does not, and whoever does not is above nobody.
    """
    if not (one.trains and other.trains):
        return Check(claim, _failures(one, other), one.trains)
    gap = difference(quantity(one), quantity(other))
    found = f"{spread(quantity(one))} against {spread(quantity(other))}"
    return Check(claim, f"{found}, difference {gap.words()} points", gap.above())


def comparable(claim: str, one: Trained, other: Trained, *, points: float) -> Check:
    """Whether final accuracies differ by no more than so many points, by the same test."""
    return _between(claim, one, other, -points, points)


def slightly_lower(claim: str, one: Trained, other: Trained, *, points: float) -> Check:
    """Whether the final accuracy is lower, by no more than so many points, by the same test."""
    return _between(claim, one, other, -points, 0.0)


def _between(claim: str, one: Trained, other: Trained, low: float, high: float) -> Check:
    if not (one.trains and other.trains):
        return Check(claim, _failures(one, other), False)
    gap = difference(one.final, other.final)
    return Check(claim, f"difference {gap.words()} points", gap.between(low, high))


def _failures(*methods: Trained) -> str:
    return "; ".join(f"{method.label} {method.words()}" for method in methods)


def _by_method(results: Mapping[Cell, Run]) -> dict[str, dict[float, Trained]]:
    runs: dict[str, dict[float, list[Run]]] = {}
    drops: dict[str, int] = {}
    for cell, run in results.items():
        runs.setdefault(cell.method, {}).setdefault(cell.rate, []).append(run)
        drops[cell.method] = cell.drops[0]
    return {
        method: {
            rate: Trained(
                method,
                rate,
                len(rates) > 1 and rate in (min(rates), max(rates)),
                drops[method],
                tuple(seeds),
            )
            for rate, seeds in rates.items()
        }
        for method, rates in runs.items()
    }
