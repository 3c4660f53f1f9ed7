"""Every statement of the paper's theory, as printed and as corrected, on random cases."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

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
    """Draw the table."""
    axes = figure.subplots()
    axes.axis("off")
    rows = [
        [
            f"{found.printed_violations:,} of {found.cases:,}",
            f"{found.corrected_violations:,}",
            "beyond bound" if math.isinf(found.worst_factor) else f"×{found.worst_factor:.3g}",
        ]
        for found in results.values()
    ]
    table = axes.table(
        rows,
        rowLabels=[found.name for found in results.values()],
        colLabels=["printed form fails", "corrected form fails", "worst factor"],
        cellLoc="center",
        loc="center",
    )
    table.auto_set_font_size(False)
    table.set_fontsize(6.5)


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
            )
            for found in results.values()
        )
    )


EXPERIMENT = Experiment(
    name="santurkar2018.theorems",
    title="The theory's statements, as printed and as corrected, on random cases",
    claim="Theorems 4.1 to 4.4, Lemma 4.5, Observation 4.3, Fact C.1 and Theorem C.1.",
    choices=(
        "random cases: 16 samples a unit, Gaussian pre-activations of random mean and scale, "
        "logistic or quadratic losses; how often a false statement fails depends on this law",
    ),
    cells=cells,
    draw=draw,
    judge=judge,
)
