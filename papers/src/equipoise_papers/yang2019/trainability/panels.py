"""What the panels of Figs. 2 and 4 share: trained networks, and the line that theory predicts."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from equipoise.report import wording
from equipoise_papers.experiments.experiment import Scale
from equipoise_papers.experiments.verdict import Fidelity
from equipoise_papers.yang2019.samples import grouped
from equipoise_papers.yang2019.trainability.boundary.edge import Column
from equipoise_papers.yang2019.trainability.forecast import ForecastPoint
from equipoise_papers.yang2019.trainability.line import LinePoint, Prediction
from equipoise_papers.yang2019.trainability.stack import Stack, Trained

FAMILY = "yang2019.trainability"
# Fig. 2's learning rate per sample of a step, and neurons per layer.
PAPER_RATE = 1e-5
_PAPER_WIDTH = 384
_NAMES = {
    "cifar10": "CIFAR10",
    "digits": "scikit-learn's digits",
    "fashion-mnist": "Fashion-MNIST",
    "mnist": "MNIST",
}

TOO_FEW = "one seed and a few steps tell nothing about training; it is not judged"

# Cells and records of a panel: points of the lines, and stacks of networks.
Results = Mapping[LinePoint | ForecastPoint | Stack, Any]


def effort(
    scale: Scale,
    rates: tuple[float, ...],
    *,
    small_data: str = "fashion-mnist",
    paper_data: str = "mnist",
    paper_samples: int = 10 * 60_000,
) -> dict[str, Any]:
    """Data, width, length and rates of training at a scale, as arguments of :class:`Stack`.

    Args:
        scale: ``smoke`` trains a few steps on scikit-learn's digits.
        rates: Learning rates per sample of a step, rising; smoke takes the upper two.
        small_data: Images at scale small.
        paper_data: The source's images.
        paper_samples: How many of them the source trains on, repetitions included.
    """
    if scale == "smoke":
        size: dict[str, Any] = {"data": "digits", "width": 16, "samples": 64, "seeds": (0,)}
        return size | {"rates": rates[-2:], "test_samples": 100}
    if scale == "small":
        size = {"data": small_data, "width": 64, "samples": 6400, "seeds": (0, 1, 2, 3)}
        return size | {"rates": rates, "test_samples": 1000}
    size = {"data": paper_data, "width": _PAPER_WIDTH, "samples": paper_samples, "seeds": (0, 1)}
    return size | {"rates": rates, "test_samples": 10_000}


def in_pairs(stack: Stack) -> tuple[Stack, ...]:
    """The same networks, two seeds at a time, so that further seeds add to what is recorded."""
    pairs = range(0, len(stack.seeds), 2)
    return tuple(replace(stack, seeds=stack.seeds[first : first + 2]) for first in pairs)


def stacks(results: Results) -> dict[Stack, Trained]:
    """The trained networks among the results; those that differ in rate and seed alone are one."""
    parts: dict[Stack, list[Trained]] = {}
    for cell, record in results.items():
        if isinstance(cell, Stack):
            parts.setdefault(replace(cell, rates=(), seeds=()), []).append(record)
    return dict(_joined(whole, records) for whole, records in parts.items())


def _joined(whole: Stack, parts: Sequence[Trained]) -> tuple[Stack, Trained]:
    members = [member for part in parts for member in part.members]
    places = {(member.rate, member.seed): member for member in members}
    rates = tuple(dict.fromkeys(rate for rate, _ in places))
    seeds = tuple(sorted({seed for _, seed in places}))
    ordered = tuple(places[rate, seed] for rate in rates for seed in seeds)
    return replace(whole, rates=rates, seeds=seeds), replace(parts[0], members=ordered)


def points(results: Results) -> dict[LinePoint, Prediction]:
    """The points of the predicted lines among the results."""
    return {cell: record for cell, record in results.items() if isinstance(cell, LinePoint)}


def too_few(results: Results) -> bool:
    """Whether there are no networks, or only one seed, so that the effect of chance is unknown."""
    return any(len(stack.seeds) < 2 for stack in stacks(results)) or not stacks(results)


def full_size(results: Results) -> bool:
    """Whether networks are as wide as the source's."""
    return all(stack.width == _PAPER_WIDTH for stack in stacks(results))


def stand_in(results: Results, source: str) -> tuple[str, ...]:
    """Say what the networks stand in for, if they are smaller than the source's.

    Args:
        results: Results of a panel.
        source: The source's data, width and training time.
    """
    if full_size(results):
        return ()
    names = {
        f"{_NAMES[stack.data]}, width {stack.width}, {stack.samples:,} images"
        for stack in stacks(results)
    }
    some = next(iter(stacks(results)))
    best = f"the best of {len(some.rates)} learning rates at each place"
    sweeps_batches = len({stack.batch_size for stack in stacks(results)}) > 1  # as Fig. 2 does
    rate = "η = 1e-5 B" if sweeps_batches else "a learning rate that the paper does not state"
    return (
        f"{rate}: {best}",
        f"the whole test set: {some.test_samples:,} images",
        *_grid_left_out(results),
        f"{source}: {'; '.join(sorted(names))} at this scale",
    )


def _grid_left_out(results: Results) -> tuple[str, ...]:
    """What Fig. 2's panels have and ours have not: larger batches, deeper networks, long steps."""
    trained = stacks(results)
    sizes = {stack.batch_size for stack in trained}
    left = []
    if len(sizes) > 1:
        deepest = max(stack.depth for stack in trained)
        left.append(f"the axes of the paper: B up to {max(sizes)}, depths up to {deepest}")
    steps = {stack.step_samples for stack in trained} - {None}
    if steps:
        left.append(f"steps of 1000 samples: of {max(step for step in steps if step)}")
    return tuple(left)


def fidelity(results: Results) -> Fidelity:
    """Whether the networks are the source's, smaller, or trained on other images."""
    if full_size(results):
        return "same setting"
    stood_in = any(stack.data != "mnist" for stack in stacks(results))
    return "stand-in data" if stood_in else "reduced"


def rate_note(results: Results, parameter: str, rate: float | None) -> str:
    """Say which learning rates a figure shows, and what another choice gives.

    Args:
        results: Results of a panel.
        parameter: Name of the parameter that differs from column to column.
        rate: The rate that is shown; ``None`` for the best of each stack.
    """
    grids = [stack.rates for stack in stacks(results)]
    tried = wording.count(max(map(len, grids), default=0), "rate")
    if rate is None and not all(PAPER_RATE in grid for grid in grids):
        return f"shown: the best of {tried}"
    other = columns(results, parameter, rate=PAPER_RATE if rate is None else None)
    best = max((mean for column in other for mean in column.means), default=math.nan)
    reached = f"accuracy at most {wording.number(best, 2)}"
    if rate is None:
        return f"shown: the best of {tried}; at Fig. 2’s rate $10^{{-5}}B$: {reached}"
    return f"shown: Fig. 2’s rate $10^{{-5}}B$; at the best of {tried}: {reached}"


def rates_choice(rates: Sequence[float], source: str) -> str:
    """Say which learning rates are tried.

    Args:
        rates: Per sample of a step.
        source: What the source says about them.
    """
    tried = ", ".join(f"{rate:g}" for rate in rates)
    return (
        f"learning rates η = c · samples per step with c = {tried}; each place shows the best one "
        f"by training loss, mean over seeds; {source}"
    )


CHOICES = (
    "the line 16ξ is an upper bound of the trainable depth; diamonds are the depths at which the "
    "library's calibrated verdict is one half (docs/trainability.md), with its interval, and are "
    "left out where it finds no such depth; triangles mark columns that train at every depth",
    "a network that diverged counts as guessing",
    "depth counts hidden layers W → batch norm → activation; a readout with a bias follows",
    "weights N(0, 1/N) without biases; γ and β are trained, from the values that are stated; "
    "images in [0, 1]",
    "tests use running statistics with momentum 0.1; those of test batches are recorded too",
    "trained means: at least half-way from guessing to the column's best mean accuracy; depths "
    "between those tried by interpolation over log depth. A column whose best is less than a "
    "tenth of the way from guessing to no errors trains nowhere",
    "depths are the same within a factor of 1.25. Intervals are Student's t at 95 %, over "
    "columns (two-sided) or, for single columns, over seeds (one-sided, for the largest of all "
    "columns); a sentence is undecided if it is so at one end of its interval alone",
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
        results: Results of a panel.
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
