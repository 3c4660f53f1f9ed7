"""The benchmark as an experiment: which networks are trained and looked at, and what follows."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from equipoise_papers.experiments.experiment import Experiment, Scale
from equipoise_papers.experiments.verdict import Check, Verdict, ours
from equipoise_papers.sweeps.cell import Cell
from equipoise_papers.trainability.drawing import draw_areas
from equipoise_papers.trainability.evaluation import (
    depth_limits,
    share_near,
    standings,
)
from equipoise_papers.trainability.looks import Look
from equipoise_papers.trainability.outcome import outcomes
from equipoise_papers.trainability.space import Network, designs
from equipoise_papers.trainability.training import RATES, Training

if TYPE_CHECKING:
    from matplotlib.figure import FigureBase

# Designs, and steps of each training.
_EFFORT: dict[Scale, tuple[int, int]] = {
    "smoke": (8, 20),
    "small": (240, 100),
    "paper": (960, 400),
}
# Transformers learn more slowly.
_LONGER = {"attention": 2}
# With fewer outcomes nothing is fitted.
_FEWEST = 100
_AREA, _CALIBRATION, _NEAR = 0.95, 0.05, 0.8


def networks(scale: Scale) -> tuple[Network, ...]:
    """All networks, those of a design in a row; at smoke without data that have to be fetched."""
    found = tuple(network for design in designs(_EFFORT[scale][0]) for network in design)
    if scale == "smoke":
        return tuple(network for network in found if network.data != "fashion-mnist")
    return found


def trainings(scale: Scale) -> tuple[Training, ...]:
    """Every network and its reference, with every optimiser."""
    wanted = dict.fromkeys(one for own in networks(scale) for one in (own.reference, own))
    return tuple(
        Training(network, name, _EFFORT[scale][1] * _LONGER.get(network.layers, 1))
        for network in wanted
        for name in RATES
    )


def cells(scale: Scale) -> tuple[Cell[Any], ...]:
    """Trainings, then what is known before them."""
    return (*trainings(scale), *map(Look, networks(scale)))


def draw(figure: FigureBase, results: Mapping[Any, Any]) -> None:
    """Draw the outcomes, if they are enough."""
    found = outcomes(results)
    if len(found) >= _FEWEST:
        draw_areas(figure, found)
    else:
        figure.text(0.5, 0.5, f"{len(found)} networks are too few to fit anything", ha="center")


def judge(results: Mapping[Any, Any]) -> Verdict:
    """Compare the verdict on held-out families with what is asked of it, and with all rivals."""
    found = outcomes(results)
    if len(found) < _FEWEST:
        return Verdict((), left_out=(f"{len(found)} networks are too few to fit anything",))
    by_name = {one.name: one for one in standings(found)}
    verdict = by_name["Equipoise, both"]
    rivals = [one for name, one in by_name.items() if not name.startswith("Equipoise")]
    best = max(rivals, key=lambda one: one.area)
    limits = depth_limits(found)
    near = share_near(limits, lambda limit: 0 < limit.observed < math.inf)
    assert verdict.calibration is not None
    checks = (
        Check(
            f"families held out, ROC AUC is at least {_AREA}",
            f"{verdict.area:.3f}, between {verdict.low:.3f} and {verdict.high:.3f}",
            verdict.area >= _AREA,
        ),
        Check(
            f"the expected calibration error is at most {_CALIBRATION}",
            f"{verdict.calibration:.3f}",
            verdict.calibration <= _CALIBRATION,
        ),
        Check(
            f"depths at which designs stop training are within a fifth for {_NEAR:.0%}",
            f"{near:.0%} of {sum(0 < limit.observed < math.inf for limit in limits)}",
            near >= _NEAR,
        ),
        Check(
            "no other score tells better which networks train",
            f"the best is {best.name}, {best.area:.3f}",
            best.area < verdict.area,
        ),
    )
    return Verdict(tuple(map(ours, checks)))


EXPERIMENT = Experiment(
    name="trainability",
    title="Which of a thousand networks train, and how well that is known before",
    claim="Few quantities of the initialisation tell which networks train.",
    choices=(
        "eight families, ten activations, five norms, depths in ratios of 2, widths 16 to 512, "
        "batches of 2 to 512, a quarter with a planted fault; four small sets of data",
        "each network at every rate of a grid with SGD and with AdamW, 100 steps (transformers "
        "200); trained: half as far below the loss of guessing as a shallow ReLU network with "
        "layer norm of the same family, width, batch and data",
    ),
    cells=cells,
    draw=draw,
    judge=judge,
)
EXPERIMENTS = (EXPERIMENT,)
FIGURES: dict[str, tuple[str, tuple[str, ...]]] = {}
