"""Fig. 6: VGG19 over learning rate and β or ε, with the other one at its default."""

from __future__ import annotations

from functools import partial

from equipoise_papers.experiments.experiment import Experiment, Scale
from equipoise_papers.yang2019.vgg import fig5, training
from equipoise_papers.yang2019.vgg.scores import Parameter
from equipoise_papers.yang2019.vgg.training import VGGTraining


def cells(scale: Scale) -> tuple[VGGTraining, ...]:
    """Fig. 5's cells whose β or ε is at its default."""
    return tuple(cell for cell in training.cells(scale) if 0.0 in (cell.beta, cell.eps))


def _alone(parameter: Parameter, cell: VGGTraining) -> bool:
    return (cell.eps if parameter == "beta" else cell.beta) == 0


EXPERIMENT = Experiment(
    name="yang2019.fig6",
    family=fig5.FAMILY,
    title="VGG19 with batch norm: learning rate against initial β or ε, the other at its default",
    claim="Initialising β above 0 at the default ε, or setting ε above 0 at the default β = 0, "
    "has a positive effect on VGG19 with batch norm: training is faster in its early epochs.",
    choices=fig5.CHOICES,
    cells=cells,
    draw=partial(fig5.draw, chosen=_alone, other="the other of β and ε at its default"),
    judge=partial(fig5.judge, chosen=_alone),
)
