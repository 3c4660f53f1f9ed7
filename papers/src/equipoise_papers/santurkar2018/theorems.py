"""Every statement of the paper's theory, as printed and as corrected, on random cases."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from equipoise_papers.experiments import style
from equipoise_papers.experiments.experiment import Experiment, Scale
from equipoise_papers.experiments.verdict import Check, Verdict
from equipoise_papers.santurkar2018.one_unit import statements
from equipoise_papers.santurkar2018.one_unit.statements import StatementCheck
from equipoise_papers.sweeps.cell import Cell

if TYPE_CHECKING:
    from matplotlib.figure import FigureBase


@dataclass(frozen=True, slots=True)
class StatementTest(Cell[StatementCheck]):
    """One statement on a number of random cases."""

    statement: str
    cases: int
    seed: int = 0

    def run(self) -> StatementCheck:
        """Count violations of both forms."""
        generator = torch.Generator().manual_seed(self.seed)
        return statements.statement(self.statement).check(generator, self.cases)


def cells(scale: Scale) -> tuple[StatementTest, ...]:
    """Every statement."""
    cases = {"smoke": 50, "small": 2000, "paper": 20_000}[scale]
    return tuple(StatementTest(statement.name, cases) for statement in statements.STATEMENTS)


def draw(figure: FigureBase, results: Mapping[StatementTest, StatementCheck]) -> None:
    """Draw how often each statement fails as printed; other readings are fainter."""
    axes = figure.subplots()
    found = list(results.values())[::-1]
    for place, one in enumerate(found):
        ours = statements.statement(one.name).ours
        share = 100 * one.printed_violations / one.cases
        colour = style.PALETTE[1] if one.printed_violations else style.PALETTE[2]
        axes.barh(place, share, color=colour, alpha=0.35 if ours else 0.9, height=0.7)
        words = "holds" if not one.printed_violations else f"{share:.0f} %"
        axes.text(share + 1, place, words, va="center", fontsize=6)
    axes.set_yticks(range(len(found)), [one.name for one in found], fontsize=6)
    axes.set_xlim(0, 112)
    axes.set_xticks(range(0, 101, 25))
    axes.tick_params(labelsize=7, axis="x")
    axes.grid(visible=False, axis="y")
    figure.supxlabel(
        "random cases in which the printed form fails, %; the corrected form never does\n"
        "faint: readings that are not the paper's",
        fontsize=7,
    )


def judge(results: Mapping[StatementTest, StatementCheck]) -> Verdict:
    """Check that no case breaks a statement as printed."""
    return Verdict(
        tuple(
            Check(
                f"{found.name}: {statements.statement(found.name).printed}",
                f"printed form broken in {found.printed_violations:,} of {found.cases:,} cases; "
                f"corrected ({statements.statement(found.name).corrected}) in "
                f"{found.corrected_violations:,}",
                found.printed_violations == 0,
                ours=statements.statement(found.name).ours,
            )
            for found in results.values()
        )
    )


EXPERIMENT = Experiment(
    name="santurkar2018.theorems",
    title="The theory's statements, as printed and as corrected, on random cases",
    claim="Theorems 4.1 to 4.4, Lemma 4.5, Observation 4.3, Facts C.1 and C.2 and Theorem C.1.",
    choices=(
        "random cases: 16 samples a unit, Gaussian pre-activations of random mean and scale, "
        "logistic or quadratic losses; how often a false statement fails depends on this law",
    ),
    cells=cells,
    draw=draw,
    judge=judge,
    # “After Theorem 4.1” names another sentence than in revision 1.
    revision=2,
)
