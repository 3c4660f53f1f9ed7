"""Tables 2 and 3: best learning rates, with the losses and accuracies that they lead to."""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING

from equipoise_papers.experiments.experiment import Experiment
from equipoise_papers.experiments.verdict import Check, Verdict, ours
from equipoise_papers.lange2022 import panels, regimes
from equipoise_papers.lange2022.best import Best, ahead, at_rates, best_of, does_not_train
from equipoise_papers.lange2022.lengths import about_the_end
from equipoise_papers.lange2022.methods import METHODS
from equipoise_papers.lange2022.regimes import Regime
from equipoise_papers.lange2022.training import Run, Training

if TYPE_CHECKING:
    from matplotlib.figure import FigureBase

_FC = (regimes.FC_60, regimes.FC_6, regimes.FC_1)
_CNN = (regimes.CNN_128, regimes.CNN_2, regimes.CNN_1)


def _by_regime(
    table: tuple[Regime, ...], results: Mapping[Training, Run]
) -> dict[str, dict[str, Best]]:
    """Best runs in each regime."""
    return {part.name: best_of(part.results) for part in regimes.parts(table, results)}


def _at_paper_rates(
    table: tuple[Regime, ...], results: Mapping[Training, Run]
) -> dict[str, dict[str, Best]]:
    """Runs at the rates that the paper states, in each regime."""
    return {
        part.name: at_rates(part.results, part.regime.reported(part.data))
        for part in regimes.parts(table, results)
    }


def draw(figure: FigureBase, results: Mapping[Training, Run], table: tuple[Regime, ...]) -> None:
    """Draw the table: rate, and training loss / test accuracy below it."""
    from matplotlib.transforms import Bbox

    axes = figure.subplots()
    axes.axis("off")
    columns = _by_regime(table, results)
    methods = [m for m in METHODS if any(m in column for column in columns.values())]
    reported = _at_paper_rates(table, results)
    text = [
        [
            METHODS[method].label.replace(", ", ",\n"),
            *(
                _entry(column.get(method), reported[name].get(method))
                for name, column in columns.items()
            ),
        ]
        for method in methods
    ]
    drawn = axes.table(
        text,
        colLabels=["", *columns],
        cellLoc="center",
        bbox=Bbox.unit(),
        colWidths=[0.16, *([0.84 / len(columns)] * len(columns))],
    )
    drawn.auto_set_font_size(False)
    drawn.set_fontsize(5.6)
    for (row, column), cell in drawn.get_celld().items():
        cell.set_linewidth(0.4)
        if not (row and column):
            cell.set_text_props(weight="bold")
    figure.suptitle(
        "best rate (*: at the edge of the grid): training loss of the second half / "
        "test accuracy\nbelow it, the same at the paper's rate",
        fontsize=7,
    )


def _entry(best: Best | None, reported: Best | None) -> str:
    if best is None:
        return "–"
    if not best.trains:
        return "does not train" if best.refused else "diverges"
    entry = f"{best.rate:g}{'*' if best.at_edge else ''}: {best.words()}"
    if reported is None or reported.rates == (best.rate,):
        return entry
    return f"{entry}\n{reported.rates[0]:g}: {reported.words()}"


def judge(results: Mapping[Training, Run], table: tuple[Regime, ...]) -> Verdict:
    """Compare rates with the paper's, and check the order at small batches."""
    if any(cell.data == "digits" for cell in results):
        return Verdict((), left_out=("smoke trains a few steps only; it is not judged",))
    columns = _by_regime(table, results)
    checks = [_rates(part, columns[part.name]) for part in regimes.parts(table, results)]
    checks += [
        # Of the paper's own tables; no sentence says so.
        ours(_larger(name, column["bnp_paper"], column["vanilla"]))
        for name, column in columns.items()
    ]
    small, single = columns[table[1].name], columns[table[2].name]
    batch = f"at batch {table[1].batch_size}"
    checks += [
        ahead(f"BNP beats BN {batch}", small["bnp_paper"], small["bn"]),
        ours(ahead(f"our BNP beats BN {batch}", small["bnp"], small["bn"])),
        _trains("BNP trains at batch 1", single["bnp_paper"]),
        ours(_trains("our BNP trains at batch 1, also with Adam", single["bnp_adam"])),
        does_not_train("BN does not train at batch 1", single["bn_copies"]),
    ]
    theirs = all(cell.data in regimes.PAPER_SETS for cell in results)
    return Verdict(
        tuple(checks),
        left_out=_left_out(results, table),
        fidelity="same setting" if theirs else "stand-in data",
    )


def _left_out(results: Mapping[Training, Run], table: tuple[Regime, ...]) -> tuple[str, ...]:
    on_cifar = any(cell.data.startswith("cifar") for cell in results)
    left = () if on_cifar else panels.stand_in(results)
    return (*left, *(["the ResNets"] if table is _CNN else []))


def _larger(name: str, bnp: Best, vanilla: Best) -> Check:
    """Whether BNP's best rate is the larger one; of equal ones a finer grid would decide."""
    words = f"{bnp.rate:g} against {vanilla.rate:g}"
    holds = None if bnp.rate == vanilla.rate else bnp.rate > vanilla.rate
    claim = f"{name}: BNP takes larger rates than the vanilla network"
    return about_the_end(Check(claim, words, holds), bnp.seen)


def _trains(claim: str, best: Best) -> Check:
    # Ten classes at random have a loss of log 10.
    return Check(claim, best.words(), best.trains and max(best.losses) < 0.5 * math.log(10))


def _rates(part: regimes.Part, column: dict[str, Best]) -> Check:
    """Best rates within a decade of the paper's, method by method."""
    reported = part.regime.reported(part.data)
    pairs = [
        (column[method].label, column[method].rate, rate)
        for method, rate in reported.items()
        if column[method].trains
    ]
    words = "; ".join(f"{label} {ours:g} (paper {paper:g})" for label, ours, paper in pairs)
    near = all(abs(math.log10(ours / paper)) <= 1 for _, ours, paper in pairs)
    which = "MNIST" if reported is part.regime.mnist_rates else "CIFAR-10"
    claim = f"{part.regime.name}: best rates within a decade of the paper's on {which}"
    seen = min(column[method].seen for method in reported)
    return about_the_end(Check(claim, words, near), seen)


def _table(name: str, table: tuple[Regime, ...], title: str) -> Experiment:
    return Experiment(
        name=f"lange2022.{name}",
        family=panels.FAMILY,
        title=title,
        claim="The best rates; BNP takes larger ones than the vanilla network and trains where "
        "batch norm cannot.",
        choices=(*panels.CHOICES, "*: the best rate is at the edge of the grid"),
        cells=partial(regimes.cells_of, table),
        draw=partial(draw, table=table),
        judge=partial(judge, table=table),
    )


EXPERIMENTS = (
    _table("table2", _FC, "Best rates, losses and accuracies: fully connected networks"),
    _table("table3", _CNN, "Best rates, losses and accuracies: the five-layer CNN"),
)
