"""Fig. 6: VGG19 over learning rate and β or ε, with the other one at its default."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from equipoise_papers.reproduction.experiment import Experiment
from equipoise_papers.reproduction.record import Scale, Verdict
from equipoise_papers.yang2019.vgg import fig5
from equipoise_papers.yang2019.vgg import matrices as vgg_matrices
from equipoise_papers.yang2019.vgg import scores as vgg_scores
from equipoise_papers.yang2019.vgg import sweep as vgg_sweep
from equipoise_papers.yang2019.vgg.scores import Parameter
from equipoise_papers.yang2019.vgg.sweep import Accuracies, Cell

if TYPE_CHECKING:
    from matplotlib.figure import FigureBase


def cells(scale: Scale) -> tuple[Cell, ...]:
    """Fig. 5's cells whose β or ε is at its default."""
    return tuple(cell for cell in vgg_sweep.cells(scale) if 0.0 in (cell.beta, cell.eps))


def draw(figure: FigureBase, results: Mapping[Cell, Accuracies]) -> None:
    """Draw matrices of medians over seeds."""
    data = next(iter(results)).data
    title = f"VGG19 on {data}: median accuracy in %, the other of β and ε at its default"
    vgg_matrices.draw(figure, results, title, _alone)


def judge(results: Mapping[Cell, Accuracies]) -> Verdict:
    """The same sentences as in Fig. 5, each of one parameter alone."""
    cell = next(iter(results))
    if cell.data == "digits":
        return Verdict((), left_out=("smoke trains a few steps only; it is not judged",))
    checks = vgg_scores.checks(results, early=fig5.EARLY, chosen=_alone)
    return Verdict(checks, left_out=fig5.left_out(cell))


def _alone(parameter: Parameter, cell: Cell) -> bool:
    return (cell.eps if parameter == "beta" else cell.beta) == 0


EXPERIMENT: Experiment[Any, Any] = Experiment(
    name="yang2019.fig6",
    family=fig5.FAMILY,
    title="VGG19 with batch norm: learning rate against initial β or ε, the other at its default",
    claim="Initialising β above 0 at the default ε, or setting ε above 0 at the default β = 0, "
    "has a positive effect on VGG19 with batch norm: training is faster in its early epochs.",
    choices=fig5.CHOICES,
    record=Accuracies,
    cells=cells,
    run=vgg_sweep.run,
    draw=draw,
    judge=judge,
)
