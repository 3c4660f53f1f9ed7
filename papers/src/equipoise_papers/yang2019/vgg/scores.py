"""Sweeps of VGG19 scored over seeds, and whether β or ε above 0 helps beyond chance."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Literal

from equipoise_papers.experiments.verdict import Check, ours
from equipoise_papers.judging import Difference, difference
from equipoise_papers.yang2019.vgg.training import Accuracies, VGGTraining

Kind = Literal["train", "validation"]
Parameter = Literal["beta", "eps"]

SYMBOLS: dict[Parameter, str] = {"beta": "β", "eps": "ε"}
# Points by which a final accuracy may be lower without harm.
MARGIN = 3.0
_CLASSES = {"digits": 10, "fashion-mnist": 10, "cifar100": 100}
# The caption's order of rows.
ROWS: tuple[tuple[Parameter, Kind], ...] = (
    ("beta", "train"),
    ("beta", "validation"),
    ("eps", "train"),
    ("eps", "validation"),
)

# Learning rate, β, ε.
Combination = tuple[float, float, float]
PLACES: dict[Parameter, int] = {"beta": 1, "eps": 2}
# Whether a cell belongs to the matrices over a parameter.
Chosen = Callable[[Parameter, VGGTraining], bool]


def every_cell(parameter: Parameter, cell: VGGTraining) -> bool:
    """Choose all cells."""
    return True


@dataclass(frozen=True, slots=True)
class Scores:
    """Accuracies in percent after one epoch, ``[combination][seed]``."""

    seeds: tuple[int, ...]
    accuracies: Mapping[Combination, tuple[float, ...]]

    def median(self, combination: Combination, seeds: Collection[int] | None = None) -> float:
        """Median over seeds, or over some of them, as the source scores a combination."""
        values = self.accuracies[combination]
        chosen = zip(self.seeds, values, strict=True)
        return statistics.median(v for seed, v in chosen if seeds is None or seed in seeds)

    def held_out(self, allowed: Callable[[Combination], bool]) -> tuple[float, ...]:
        """Each seed's accuracy at the combination that is best by the other seeds.

        A maximum over noisy scores grows with their number. Choosing by the other seeds removes
        that bias, except for what all seeds share: a combination may be chosen because it suits
        the test images.
        """
        combinations = [combination for combination in self.accuracies if allowed(combination)]
        found = []
        for place, seed in enumerate(self.seeds):
            others = [other for other in self.seeds if other != seed]
            best = max(combinations, key=lambda combination: self.median(combination, others))
            found.append(self.accuracies[best][place])
        return tuple(found)


def scores(results: Mapping[VGGTraining, Accuracies], kind: Kind, epoch: int) -> Scores:
    """Collect accuracies in per cent after one of the recorded epochs.

    Combinations that lack a seed which others have are left out.
    """
    found: dict[Combination, dict[int, float]] = {}
    for cell, record in results.items():
        combination = (cell.rate, cell.beta, cell.eps)
        found.setdefault(combination, {})[cell.seed] = 100 * _accuracy(cell, record, kind, epoch)
    seeds = tuple(sorted({seed for by_seed in found.values() for seed in by_seed}))
    return Scores(
        seeds,
        {
            combination: tuple(by_seed[seed] for seed in seeds)
            for combination, by_seed in found.items()
            if len(by_seed) == len(seeds)
        },
    )


def _accuracy(cell: VGGTraining, record: Accuracies, kind: Kind, epoch: int) -> float:
    if record.diverged_at is not None and epoch * cell.epoch > record.diverged_at:
        return guessing(cell)
    values = record.train if kind == "train" else record.validation
    return values[cell.epochs.index(epoch)]


def guessing(cell: VGGTraining) -> float:
    """Accuracy of guessing, which a diverged network counts as, as in Fig. 2."""
    return 1 / _CLASSES[cell.data]


def moment(cell: VGGTraining, epoch: int) -> str:
    """Name an epoch if it is the source's, otherwise the steps that stand for it."""
    return f"epoch {epoch}" if cell.data == "cifar100" else f"{epoch * cell.epoch} steps"


def checks(
    results: Mapping[VGGTraining, Accuracies],
    *,
    early: int,
    chosen: Chosen,
) -> tuple[Check, ...]:
    """Check that a parameter above 0 helps in early epochs, and does no harm after the last.

    Args:
        results: All cells, of at least two seeds.
        early: How many of the recorded epochs are early.
        chosen: Whether a cell belongs to the comparison over a parameter.
    """
    cell = next(iter(results))
    found: list[Check] = []
    for parameter, kind in ROWS:
        belonging = {cell: record for cell, record in results.items() if chosen(parameter, cell)}
        found += [_higher(belonging, parameter, kind, epoch) for epoch in cell.epochs[:early]]
        found.append(_harmless(belonging, parameter, kind, cell.epochs[-1]))
    return tuple(found)


def _higher(
    results: Mapping[VGGTraining, Accuracies], parameter: Parameter, kind: Kind, epoch: int
) -> Check:
    words, gap = _compared(results, parameter, kind, epoch)
    symbol, after = SYMBOLS[parameter], moment(next(iter(results)), epoch)
    claim = f"after {after}: {kind} accuracy is higher with {symbol} > 0"
    return Check(claim, words, gap.above())


def _harmless(
    results: Mapping[VGGTraining, Accuracies], parameter: Parameter, kind: Kind, epoch: int
) -> Check:
    words, gap = _compared(results, parameter, kind, epoch)
    symbol, after = SYMBOLS[parameter], moment(next(iter(results)), epoch)
    claim = f"after {after}: {kind} accuracy is at most {MARGIN:g} points lower with {symbol} > 0"
    return ours(Check(claim, words, gap.above(-MARGIN)))


def _compared(
    results: Mapping[VGGTraining, Accuracies], parameter: Parameter, kind: Kind, epoch: int
) -> tuple[str, Difference]:
    above, at_zero = best_accuracies(scores(results, kind, epoch), parameter)
    gap = difference(above, at_zero)
    words = f"{statistics.fmean(above):.1f} % against {statistics.fmean(at_zero):.1f} %"
    return f"{words}, difference {gap.words()} points", gap


def best_accuracies(
    found: Scores, parameter: Parameter
) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Each seed's accuracy at the best combination with the parameter above 0, and at 0."""
    place = PLACES[parameter]
    return (
        found.held_out(lambda combination: combination[place] > 0),
        found.held_out(lambda combination: combination[place] == 0),
    )
