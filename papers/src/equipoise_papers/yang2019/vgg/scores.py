"""Sweeps of VGG19 scored over seeds, and whether β or ε above 0 helps beyond chance."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Literal

from equipoise_papers.judging.paired import Difference, difference
from equipoise_papers.reproduction.record import Check, ours
from equipoise_papers.yang2019.vgg.sweep import Accuracies, Cell

Kind = Literal["train", "validation"]
Parameter = Literal["beta", "eps"]

SYMBOLS: dict[Parameter, str] = {"beta": "β", "eps": "ε"}
# A final accuracy that is lower by no more points does no harm.
MARGIN = 3.0
_CLASSES = {"digits": 10, "fashion-mnist": 10, "cifar100": 100}
# The caption's order of rows.
ROWS: tuple[tuple[Parameter, Kind], ...] = (
    ("beta", "train"),
    ("beta", "validation"),
    ("eps", "train"),
    ("eps", "validation"),
)

# A setting is rate, β, ε.
Setting = tuple[float, float, float]
PLACES: dict[Parameter, int] = {"beta": 1, "eps": 2}
# Whether a cell belongs to what is shown over a parameter.
Chosen = Callable[[Parameter, Cell], bool]


@dataclass(frozen=True, slots=True)
class Scores:
    """Accuracies in percent after one epoch, ``[setting][seed]``."""

    seeds: tuple[int, ...]
    accuracies: Mapping[Setting, tuple[float, ...]]

    def median(self, setting: Setting, seeds: Collection[int] | None = None) -> float:
        """Median over seeds, as the source scores a combination; over some of them, if given."""
        values = self.accuracies[setting]
        chosen = zip(self.seeds, values, strict=True)
        return statistics.median(v for seed, v in chosen if seeds is None or seed in seeds)

    def held_out(self, allowed: Callable[[Setting], bool]) -> tuple[float, ...]:
        """Each seed's accuracy at the setting that is best by the other seeds.

        A maximum over many noisy scores is the higher the more there are; choosing by seeds
        and scoring by another is not. What seeds share is no noise to this: a setting may be
        chosen because it suits the test images that all seeds meet.
        """
        settings = [setting for setting in self.accuracies if allowed(setting)]
        found = []
        for place, seed in enumerate(self.seeds):
            others = [other for other in self.seeds if other != seed]
            best = max(settings, key=lambda setting: self.median(setting, others))
            found.append(self.accuracies[best][place])
        return tuple(found)


def scores(results: Mapping[Cell, Accuracies], kind: Kind, epoch: int) -> Scores:
    """Collect accuracies in per cent after one of the recorded epochs.

    Settings that lack a seed which others have are left out.
    """
    found: dict[Setting, dict[int, float]] = {}
    for cell, record in results.items():
        setting = (cell.rate, cell.beta, cell.eps)
        found.setdefault(setting, {})[cell.seed] = 100 * _accuracy(cell, record, kind, epoch)
    seeds = tuple(sorted({seed for of_setting in found.values() for seed in of_setting}))
    return Scores(
        seeds,
        {
            setting: tuple(of_setting[seed] for seed in seeds)
            for setting, of_setting in found.items()
            if len(of_setting) == len(seeds)
        },
    )


def _accuracy(cell: Cell, record: Accuracies, kind: Kind, epoch: int) -> float:
    if record.diverged_at is not None and epoch * cell.epoch > record.diverged_at:
        return guessing(cell)
    values = record.train if kind == "train" else record.validation
    return values[cell.epochs.index(epoch)]


def guessing(cell: Cell) -> float:
    """Accuracy of guessing, which is that of a network that diverged, as in Fig. 2."""
    return 1 / _CLASSES[cell.data]


def moment(cell: Cell, epoch: int) -> str:
    """An epoch where it is the source's, and otherwise the steps that stand for it."""
    return f"epoch {epoch}" if cell.data == "cifar100" else f"{epoch * cell.epoch} steps"


def checks(
    results: Mapping[Cell, Accuracies],
    *,
    early: int,
    chosen: Chosen = lambda parameter, cell: True,
) -> tuple[Check, ...]:
    """Whether a parameter above 0 helps in early epochs, and does no harm after the last.

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
    results: Mapping[Cell, Accuracies], parameter: Parameter, kind: Kind, epoch: int
) -> Check:
    words, gap = _compared(results, parameter, kind, epoch)
    symbol, after = SYMBOLS[parameter], moment(next(iter(results)), epoch)
    claim = f"after {after}: {kind} accuracy is higher with {symbol} > 0"
    return Check(claim, words, gap.above())


def _harmless(
    results: Mapping[Cell, Accuracies], parameter: Parameter, kind: Kind, epoch: int
) -> Check:
    words, gap = _compared(results, parameter, kind, epoch)
    symbol, after = SYMBOLS[parameter], moment(next(iter(results)), epoch)
    claim = f"after {after}: {kind} accuracy is at most {MARGIN:g} points lower with {symbol} > 0"
    return ours(Check(claim, words, gap.above(-MARGIN)))


def _compared(
    results: Mapping[Cell, Accuracies], parameter: Parameter, kind: Kind, epoch: int
) -> tuple[str, Difference]:
    above, at_zero = best_accuracies(scores(results, kind, epoch), parameter)
    gap = difference(above, at_zero)
    words = f"{statistics.fmean(above):.1f} % against {statistics.fmean(at_zero):.1f} %"
    return f"{words}, difference {gap.words()} points", gap


def best_accuracies(
    found: Scores, parameter: Parameter
) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Each seed's accuracy at the best setting with the parameter above 0, and with it at 0."""
    place = PLACES[parameter]
    return (
        found.held_out(lambda setting: setting[place] > 0),
        found.held_out(lambda setting: setting[place] == 0),
    )
