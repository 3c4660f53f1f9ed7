"""Fig. 2: test accuracy of ReLU networks over batch size and depth, and the line 16ξ."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, Any, get_args

from equipoise import theory
from equipoise.report import wording
from equipoise_papers.experiments.experiment import Experiment, Scale
from equipoise_papers.experiments.verdict import Check, Verdict, ours
from equipoise_papers.yang2019.trainability import heat_map, panels
from equipoise_papers.yang2019.trainability.boundary import claims, remarks
from equipoise_papers.yang2019.trainability.boundary.claims import Deeper
from equipoise_papers.yang2019.trainability.boundary.edge import HALF_WAY, Edge, edge
from equipoise_papers.yang2019.trainability.forecast import ForecastPoint, along, forecasts
from equipoise_papers.yang2019.trainability.line import Line, LinePoint
from equipoise_papers.yang2019.trainability.panels import PAPER_RATE, Results
from equipoise_papers.yang2019.trainability.stack import Stack

if TYPE_CHECKING:
    from matplotlib.figure import FigureBase

_EPS = 1e-3
_COARSE = (4, 8, 16, 64, 256, 1024)
_FINE = (4, 5, 6, 7, 8, 10, 12, 16, 20, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 1024)
# The boundary for an infinite batch at ε = 0, where λ_G = π/(π − 1).
_INFINITE_BATCH = theory.max_trainable_depth(math.pi / (math.pi - 1))
# The source's colours of CIFAR10.
_CIFAR_COLOURS = (0.1, 0.55)
# "Networks deeper than about 50 layers are untrainable regardless of batch size."
_DEEPEST = 50
# The best rate is about the same for a step of any batch size; so, per sample, it falls with B.
_SGD_RATES = (1e-5, 1e-4, 1e-3, 1e-2, 1e-1)
_RMSPROP_RATES = (3e-6, 1e-5, 1e-4, 1e-3, 3e-3)
_BATCH_SIZES = (4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256)
# Share of a step that may be left over as a sub-batch of its own, smaller than B.
_LEFT_OVER = 1 / 8
# Half octaves, from below the line at B = 4 to beyond it at any B.
_DEPTHS = (5, 7, 10, 14, 20, 28, 40, 57)


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchSizePanel:
    """What differs from panel to panel of Fig. 2.

    Args:
        optimizer: ``sgd`` or ``rmsprop``.
        rates: Learning rates per sample of a step.
        small_data: Images at scale small.
        paper_data: Images of the source.
        paper_samples: How many of them the source trains on, repetitions included.
        steps_of: Samples per step by scale, if batches are cut into sub-batches of B.
        source: The source's data, width and training time.
    """

    optimizer: str = "sgd"
    rates: tuple[float, ...] = _SGD_RATES
    small_data: str = "fashion-mnist"
    paper_data: str = "mnist"
    paper_samples: int = 10 * 60_000
    steps_of: Mapping[Scale, int] | None = None
    source: str = "MNIST at width 384 for 10 epochs"


SGD = BatchSizePanel()
SUB_BATCHES = BatchSizePanel(
    steps_of={"smoke": 16, "small": 192, "paper": 1000},
    source="MNIST at width 384 for 10 epochs, in steps of 1000 samples",
)
RMSPROP = BatchSizePanel(optimizer="rmsprop", rates=_RMSPROP_RATES)
OTHER_DATA = BatchSizePanel(
    small_data="digits",
    paper_data="cifar10",
    paper_samples=50 * 50_000,
    source="CIFAR10 at width 384 for 50 epochs",
)


def cells(panel: BatchSizePanel, scale: Scale) -> tuple[LinePoint | ForecastPoint | Stack, ...]:
    """The line, a cell per batch size; the forecasts; the panel's networks; those of panel a."""
    sizes = _COARSE if scale == "smoke" else _FINE
    points = tuple(LinePoint("batch_size", "relu", size, eps=_EPS) for size in sizes)
    # The source compares every panel's trainable region with that of the first.
    own = _networks(panel, scale)
    networks = dict.fromkeys((*own, *_networks(SGD, scale)))
    return (*points, *forecasts(own), *networks)


def _networks(panel: BatchSizePanel, scale: Scale) -> tuple[Stack, ...]:
    """Networks of a panel, the deepest ones first."""
    sizes, depths = _grid(scale)
    step = None if panel.steps_of is None else panel.steps_of[scale]
    return tuple(
        stack
        for depth in reversed(depths)
        for size in sizes
        if step is None or (size <= step and step % size <= _LEFT_OVER * step)
        for stack in panels.in_pairs(_stack(panel, scale, size, depth, step))
    )


def of_panel(panel: BatchSizePanel, results: Results) -> Results:
    """Networks of a panel among the results, of any scale."""
    stacks = [stack for scale in get_args(Scale) for stack in _networks(panel, scale)]
    known: set[Any] = {*stacks, *forecasts(stacks)}
    return {cell: record for cell, record in results.items() if cell in known}


def _grid(scale: Scale) -> tuple[tuple[int, ...], tuple[int, ...]]:
    if scale == "smoke":
        return (4, 16), (2, 6)
    if scale == "small":
        return _BATCH_SIZES, _DEPTHS
    return (*_BATCH_SIZES, 512, 1000), (*_DEPTHS, 80, 113)


def _stack(panel: BatchSizePanel, scale: Scale, size: int, depth: int, step: int | None) -> Stack:
    effort = panels.effort(
        scale,
        panel.rates,
        small_data=panel.small_data,
        paper_data=panel.paper_data,
        paper_samples=panel.paper_samples,
    )
    return Stack(
        activation="relu",
        batch_size=size,
        depth=depth,
        eps=_EPS,
        optimizer=panel.optimizer,
        step_samples=None if step == size else step,
        **effort,
    )


def line(results: Results) -> Line:
    """Points of the line by batch size."""
    points = panels.points(results)
    return sorted(((cell.position, p) for cell, p in points.items()), key=lambda pair: pair[0])


def draw(panel: BatchSizePanel, title: str, figure: FigureBase, results: Results) -> None:
    """Draw a panel."""
    own = of_panel(panel, results)
    names = sorted({stack.data for stack in panels.stacks(own)})
    rate = _judged_rate(own)
    heat_map.draw(
        figure,
        panels.columns(own, "batch_size", rate=rate),
        line(results),
        title=", ".join([title, *names]),
        label="batch size B of the statistics",
        logarithmic=True,
        forecast=along(own, "batch_size"),
        note=panels.rate_note(own, "batch_size", rate),
        colours=_CIFAR_COLOURS if "cifar10" in names else heat_map.COLOURS,
    )


def _judged_rate(own: Results) -> float | None:
    """The source's rate where all else is the source's; on few images it is too low to judge."""
    return PAPER_RATE if panels.full_size(own) else None


def line_checks(results: Results) -> tuple[Check, ...]:
    """How the predicted line changes with the batch size."""
    points = line(results)
    sizes, depths = [at for at, _ in points], [point.depth for _, point in points]
    rising = all(b > a for a, b in pairwise(depths))
    ends = f"{wording.number(depths[0])} layers at B = {sizes[0]:g}, "
    ends += f"{wording.number(depths[-1])} at B = {sizes[-1]:g}"
    limit = f"{wording.number(_INFINITE_BATCH)} layers (±1)"
    checks = (
        Check("predicted: the boundary rises with the batch size", ends, rising),
        Check(
            f"predicted: for large batches it saturates at 16/ln(π/(π − 1)) = {limit}",
            wording.number(depths[-1]),
            abs(depths[-1] - _INFINITE_BATCH) < 1,
        ),
    )
    return tuple(ours(check) for check in checks)


def judge(panel: BatchSizePanel, results: Results) -> Verdict:
    """Check how well the line predicts where networks train, and what the line itself shows."""
    own = of_panel(panel, results)
    if panels.too_few(own):
        return Verdict((), left_out=(panels.TOO_FEW,))
    checks, unseen = network_checks(panel, results)
    left_out = (*unseen, *panels.stand_in(own, panel.source))
    return Verdict((*checks, *line_checks(results)), left_out, fidelity=panels.fidelity(own))


def network_checks(
    panel: BatchSizePanel, results: Results
) -> tuple[tuple[Check, ...], tuple[str, ...]]:
    """Check how well the line predicts where networks train, and name what cannot be checked."""
    own = of_panel(panel, results)
    rate = _judged_rate(own)
    found = _edges(own, rate)
    sooner = _edges(own, rate, claims.QUARTER)
    larger = Deeper(
        "networks train deeper at large batches than at small ones",
        (found[-1].position,),
        found[0].position,
    )
    checks, unseen = claims.compared([larger], found, sooner)
    return (
        _region(panel, own, results),
        claims.not_beyond_the_line(found, sooner),
        claims.at_the_line(found, sooner, "strong agreement"),
        *(ours(check) for check in checks),
        *remarks.remarks(own, "batch_size", rate),
    ), unseen


def _region(panel: BatchSizePanel, own: Results, results: Results) -> Check:
    """Check what the source says about a panel's trainable region."""
    rate = _judged_rate(own)
    shares = HALF_WAY, claims.QUARTER
    found, sooner = (_edges(own, rate, share) for share in shares)
    if panel == SGD:
        return claims.nothing_beyond(_DEEPEST, found, sooner)
    # Networks that belong to both panels are no comparison.
    first = {c: r for c, r in of_panel(SGD, results).items() if c not in own}
    reference, reference_sooner = (_edges(first, rate, share) for share in shares)
    return claims.same_region(found, reference, sooner, reference_sooner)


def _edges(networks: Results, rate: float | None, share: float = HALF_WAY) -> tuple[Edge, ...]:
    columns = panels.columns(networks, "batch_size", rate=rate)
    return tuple(edge(column, share) for column in columns)


_LIMIT = "16ξ and the maximum trainable depth agree strongly"
_NEARLY = f"the trainable region is nearly identical to that of SGD on MNIST; {_LIMIT}."
_CLAIMS = {
    "a": "Networks deeper than about 50 layers are untrainable regardless of batch size; "
    f"{_LIMIT}.",
    "b": "With the batch held fixed and statistics over sub-batches of B, " + _NEARLY,
    "c": "With RMSProp, " + _NEARLY,
    "d": "On CIFAR10, " + _NEARLY,
}
_LINE_CHOICES = (
    "16ξ at infinite width, σ_w² = 1: squared gradient norms of the first and the last layer "
    "differ by e^16",
)
_SOURCE_RATE = "the source's is 1e-5, and at scale paper that alone is shown and judged"
_MNIST_SIZE = (
    "small: 64 neurons (the source: 384), 6,400 training images (the source: 600,000, ten "
    "epochs), so that c = 1e-3 adds up to the source's sum of learning rates; 1,000 test images",
    "Fashion-MNIST stands in for MNIST at small; smoke trains on scikit-learn's digits",
)
_FIRST_PANEL = (
    "the trainable region is compared with that of panel a, whose networks are among the cells"
)


def _experiment(letter: str, title: str, setup: BatchSizePanel, *choices: str) -> Experiment:
    return Experiment(
        name=f"yang2019.fig2{letter}",
        family=panels.FAMILY,
        title=f"ReLU networks over batch size and depth, with the line 16ξ: {title}",
        claim=_CLAIMS[letter],
        choices=(
            *choices,
            *_LINE_CHOICES,
            panels.rates_choice(setup.rates, _SOURCE_RATE),
            *panels.CHOICES,
        ),
        cells=partial(cells, setup),
        draw=partial(draw, setup, title),
        judge=partial(judge, setup),
    )


EXPERIMENTS = (
    _experiment("a", "SGD", SGD, *_MNIST_SIZE),
    _experiment(
        "b",
        "SGD, fixed steps",
        SUB_BATCHES,
        "steps of 192 samples at small (the source: 1000), statistics over sub-batches of B "
        "(ghost batch norm); η = c · samples per step",
        _FIRST_PANEL,
        *_MNIST_SIZE,
    ),
    _experiment(
        "c",
        "RMSProp",
        RMSPROP,
        "RMSProp with decay 0.9, ε = 1e-8; η = c · B as with SGD",
        _FIRST_PANEL,
        *_MNIST_SIZE,
    ),
    _experiment(
        "d",
        "second data set",
        OTHER_DATA,
        "scikit-learn's 1,437 digits of 8 × 8 pixels stand in for CIFAR10 at small and smoke, 360 "
        "others test; only paper takes CIFAR10, from --data-dir",
        "small: 64 neurons (the source: 384), 6,400 training images, digits repeated (the source: "
        "2,500,000, fifty epochs); c = 4e-3 would add up to the source's sum of learning rates",
        _FIRST_PANEL,
    ),
)
