"""The benchmark as an experiment: which networks are trained and looked at."""

from __future__ import annotations

from typing import Any

from equipoise_papers.experiments.experiment import Scale
from equipoise_papers.sweeps.cell import Cell
from equipoise_papers.trainability.space import Network, designs
from equipoise_papers.trainability.training import RATES, Training

# Designs, and steps of each training.
_EFFORT: dict[Scale, tuple[int, int]] = {
    "smoke": (8, 20),
    "small": (240, 100),
    "paper": (960, 400),
}
# Transformers learn more slowly.
_LONGER = {"attention": 2}


def networks(scale: Scale) -> tuple[Network, ...]:
    """All networks, those of a design in a row."""
    return tuple(network for design in designs(_EFFORT[scale][0]) for network in design)


def trainings(scale: Scale) -> tuple[Training, ...]:
    """Every network and its reference, with every optimiser."""
    wanted = dict.fromkeys(one for own in networks(scale) for one in (own.reference, own))
    return tuple(
        Training(network, name, _EFFORT[scale][1] * _LONGER.get(network.layers, 1))
        for network in wanted
        for name in RATES
    )


def cells(scale: Scale) -> tuple[Cell[Any], ...]:
    """Trainings."""
    return trainings(scale)
