"""Sweeps of VGG19 as matrices of accuracies, and whether β or ε above 0 helps beyond chance."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from equipoise.experiments.yang2019.vgg_sweep import Accuracies, Cell
from equipoise.records.experiments import Check

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import FigureBase

Kind = Literal["train", "validation"]
Parameter = Literal["beta", "eps"]

_SYMBOLS: dict[Parameter, str] = {"beta": "β", "eps": "ε"}
_CONFIDENCE = 0.95
# The caption's order of rows.
_ROWS: tuple[tuple[Parameter, Kind], ...] = (
    ("beta", "train"),
    ("beta", "validation"),
    ("eps", "train"),
    ("eps", "validation"),
)

# A setting is rate, β, ε.
Setting = tuple[float, float, float]
_PLACES: dict[Parameter, int] = {"beta": 1, "eps": 2}
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
        and scoring by another is not.
        """
        settings = [setting for setting in self.accuracies if allowed(setting)]
        found = []
        for place, seed in enumerate(self.seeds):
            others = [other for other in self.seeds if other != seed]
            best = max(settings, key=lambda setting: self.median(setting, others))
            found.append(self.accuracies[best][place])
        return tuple(found)


def scores(results: Mapping[Cell, Accuracies], kind: Kind, epoch: int) -> Scores:
    """Collect accuracies after one of the recorded epochs.

    Settings that lack a seed which others have are left out.
    """
    found: dict[Setting, dict[int, float]] = {}
    for cell, record in results.items():
        values = record.train if kind == "train" else record.validation
        setting = (cell.rate, cell.beta, cell.eps)
        found.setdefault(setting, {})[cell.seed] = 100 * values[cell.epochs.index(epoch)]
    seeds = tuple(sorted({seed for of_setting in found.values() for seed in of_setting}))
    return Scores(
        seeds,
        {
            setting: tuple(of_setting[seed] for seed in seeds)
            for setting, of_setting in found.items()
            if len(of_setting) == len(seeds)
        },
    )


def matrix(
    found: Scores, parameter: Parameter
) -> tuple[tuple[float, ...], tuple[float, ...], NDArray[np.float64]]:
    """Rates, values of the parameter, and medians ``[value, rate]``, best over the other one."""
    place = _PLACES[parameter]
    rates = tuple(sorted({setting[0] for setting in found.accuracies}))
    values = tuple(sorted({setting[place] for setting in found.accuracies}))
    best = np.full((len(values), len(rates)), np.nan)
    for setting in found.accuracies:
        at = values.index(setting[place]), rates.index(setting[0])
        best[at] = np.fmax(best[at], found.median(setting))
    return rates, values, best


def draw(
    figure: FigureBase,
    results: Mapping[Cell, Accuracies],
    title: str,
    chosen: Chosen,
) -> None:
    """Draw training and validation accuracy over rate and β, then over rate and ε.

    Args:
        figure: Empty.
        results: Finished cells.
        title: Of the figure.
        chosen: Whether a cell belongs to the matrices over a parameter.
    """
    epochs = next(iter(results)).epochs
    places = figure.subplots(len(_ROWS), len(epochs), squeeze=False)
    for row, (parameter, kind) in zip(places, _ROWS, strict=True):
        belonging = {cell: r for cell, r in results.items() if chosen(parameter, cell)}
        for axes, epoch in zip(row, epochs, strict=True):
            axes.set_axis_off()
            if belonging:
                _draw_matrix(axes, scores(belonging, kind, epoch), parameter)
        row[0].set_ylabel(f"{kind}\n{_SYMBOLS[parameter]}", fontsize=7)
    for axes, epoch in zip(places[0], epochs, strict=True):
        axes.set_title(f"after epoch {epoch}", fontsize=8)
    for axes in places[-1]:
        axes.set_xlabel("learning rate", fontsize=7)
    figure.suptitle(title, fontsize=9)


def _draw_matrix(axes: Axes, found: Scores, parameter: Parameter) -> None:
    rates, values, best = matrix(found, parameter)
    axes.set_axis_on()
    axes.grid(visible=False)
    axes.imshow(best, origin="lower", aspect="auto", cmap="viridis")
    axes.set_xticks(range(len(rates)), [f"{rate:g}" for rate in rates])
    axes.set_yticks(range(len(values)), [f"{value:g}" for value in values])
    axes.tick_params(labelsize=5.5, length=1.5)
    middle = (np.nanmin(best) + np.nanmax(best)) / 2
    for (row, column), value in np.ndenumerate(best):
        if not math.isnan(value):
            colour = "white" if value < middle else "black"
            axes.text(
                column, row, f"{value:.0f}", color=colour, fontsize=5, ha="center", va="center"
            )


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
    first, last = next(iter(results)).epochs[:early], next(iter(results)).epochs[-1]
    found: list[Check] = []
    for parameter, kind in _ROWS:
        belonging = {cell: record for cell, record in results.items() if chosen(parameter, cell)}
        found += [_compared(belonging, parameter, kind, epoch, higher=True) for epoch in first]
        found.append(_compared(belonging, parameter, kind, last, higher=False))
    return tuple(found)


def _compared(
    results: Mapping[Cell, Accuracies],
    parameter: Parameter,
    kind: Kind,
    epoch: int,
    *,
    higher: bool,
) -> Check:
    """Hold the best setting above 0 against the best at 0, by Student's t at 95 % over seeds."""
    found, place = scores(results, kind, epoch), _PLACES[parameter]
    above = found.held_out(lambda setting: setting[place] > 0)
    at_zero = found.held_out(lambda setting: setting[place] == 0)
    gaps = [a - b for a, b in zip(above, at_zero, strict=True)]
    gap, error = statistics.fmean(gaps), statistics.stdev(gaps) / math.sqrt(len(gaps))
    margin = float(stats.t.ppf(_CONFIDENCE, len(gaps) - 1)) * error
    words = "higher" if higher else "not lower"
    return Check(
        f"epoch {epoch}: {kind} accuracy is {words} with {_SYMBOLS[parameter]} > 0",
        f"{statistics.fmean(above):.1f} % against {statistics.fmean(at_zero):.1f} %, difference "
        f"{gap:+.1f} ± {error:.1f} points",
        gap > margin if higher else gap > -margin,
    )
