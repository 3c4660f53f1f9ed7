"""What the panels of Figs. 2 and 4 share: trained networks, and the line that theory predicts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from equipoise.experiments.yang2019 import depth_curves
from equipoise.experiments.yang2019.boundary import Column
from equipoise.experiments.yang2019.depth_curves import Point
from equipoise.experiments.yang2019.pooling import grouped
from equipoise.experiments.yang2019.trainability import Stack, Trained, train_stack
from equipoise.records.experiments import Scale

FAMILY = "yang2019.trainability"
# The source's learning rate per sample of a step.
PAPER_RATE = 1e-5

TOO_FEW = "one seed and a few steps tell nothing about training; it is not judged"

Cell = depth_curves.Cell | Stack


@dataclass(frozen=True, slots=True)
class Record:
    """A point of the predicted line, or networks of one depth; never both.

    Args:
        line: What theory predicts for a :class:`depth_curves.Cell`.
        trained: What became of a :class:`Stack`.
    """

    line: Point | None = None
    trained: Trained | None = None


Results = Mapping[Cell, Record]


def run(cell: Cell) -> Record:
    """Predict a point of the line, or train a stack of networks."""
    if isinstance(cell, Stack):
        return Record(trained=train_stack(cell))
    return Record(line=depth_curves.run(cell))


def effort(
    scale: Scale,
    rates: tuple[float, ...],
    *,
    small_data: str = "fashion-mnist",
    paper_data: str = "mnist",
    paper_samples: int = 10 * 60_000,
) -> dict[str, Any]:
    """How long, and on what, networks train at a scale, as arguments of :class:`Stack`.

    Args:
        scale: ``smoke`` trains a few steps on scikit-learn's digits.
        rates: Learning rates per sample of a step, rising; smoke takes the upper two.
        small_data: Images at scale small.
        paper_data: The source's images.
        paper_samples: On how many the source trains, repetitions included.
    """
    if scale == "smoke":
        size: dict[str, Any] = {"data": "digits", "width": 16, "samples": 64, "seeds": (0,)}
        return size | {"rates": rates[-2:], "test_samples": 100}
    if scale == "small":
        size = {"data": small_data, "width": 64, "samples": 6400, "seeds": (0, 1)}
        return size | {"rates": rates, "test_samples": 1000}
    size = {"data": paper_data, "width": 384, "samples": paper_samples, "seeds": (0, 1)}
    return size | {"rates": rates, "test_samples": 10_000}


def stacks(results: Results) -> dict[Stack, Trained]:
    """The trained networks among the results."""
    return {
        cell: record.trained
        for cell, record in results.items()
        if isinstance(cell, Stack) and record.trained is not None
    }


def line(results: Results) -> dict[depth_curves.Cell, Point]:
    """The points of the predicted lines among the results."""
    return {
        cell: record.line
        for cell, record in results.items()
        if not isinstance(cell, Stack) and record.line is not None
    }


def too_few(results: Results) -> bool:
    """Whether networks differ in no seed, so that nothing tells an effect from chance."""
    return any(len(stack.seeds) < 2 for stack in stacks(results))


def choices(rates: Sequence[float]) -> tuple[str, ...]:
    """What the source leaves open, or what a laptop asks for, in all of these panels."""
    tried = ", ".join(f"{rate:g}" for rate in rates)
    return (
        f"learning rates η = c · samples per step with c = {tried}; the source's is 1e-5. Each "
        "place shows the best one by training loss, mean over two seeds",
        "small: 64 neurons (the source: 384), 6,400 training images (the source: 600,000), so "
        "that c = 1e-3 adds up to the source's sum of learning rates; 1,000 test images",
        "Fashion-MNIST stands in for MNIST at small; smoke trains on scikit-learn's digits",
        "depth counts hidden layers W → batch norm → activation; a readout with a bias follows",
        "weights N(0, 1/N) without biases; γ and β are trained, from the values that are stated; "
        "images in [0, 1]",
        "tests use running statistics with momentum 0.1; those of test batches are recorded too",
        "trained means: at least half-way from guessing to the column's best mean accuracy (and, "
        "for comparison, a quarter of the way); depths between those tried by interpolation over "
        "log depth",
    )


def columns(
    results: Results,
    parameter: str,
    *,
    rate: float | None = None,
    batch_statistics: bool = False,
) -> tuple[Column, ...]:
    """Accuracies by depth, one column for each value of a parameter.

    Args:
        results: Of a panel.
        parameter: Name of the field of :class:`Stack` that differs along the panel.
        rate: Learning rate per sample; ``None`` for the best of each stack, by training loss.
        batch_statistics: Whether test images are normalised among themselves.
    """
    groups = grouped(stacks(results), lambda cell: float(getattr(cell, parameter)))
    return tuple(
        _column(position, group, rate, batch_statistics)
        for position, group in sorted(groups.items())
    )


def _column(
    position: float,
    group: list[tuple[Stack, Trained]],
    rate: float | None,
    batch_statistics: bool,
) -> Column:
    group = sorted(group, key=lambda pair: pair[0].depth)
    first = group[0][1]
    return Column(
        position=position,
        predicted=first.predicted_depth,
        depths=tuple(cell.depth for cell, _ in group),
        accuracies=tuple(
            trained.accuracies(
                trained.best_rate if rate is None else rate, batch_statistics=batch_statistics
            )
            for _, trained in group
        ),
        chance=first.chance,
    )
