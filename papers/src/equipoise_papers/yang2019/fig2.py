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
from equipoise_papers.reproduction.experiment import Experiment
from equipoise_papers.reproduction.record import Check, Scale, Verdict, ours
from equipoise_papers.yang2019 import depth_curves, heat_map, trained_panels
from equipoise_papers.yang2019.boundary import claims as boundary_claims
from equipoise_papers.yang2019.boundary import remarks as boundary_remarks
from equipoise_papers.yang2019.boundary.claims import Deeper
from equipoise_papers.yang2019.boundary.edge import Edge, edge
from equipoise_papers.yang2019.depth_curves import Point
from equipoise_papers.yang2019.trainability import Stack
from equipoise_papers.yang2019.trained_panels import PAPER_RATE, Cell, Record, Results

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
_BATCH_SIZES = (4, 8, 16, 32, 64, 128, 256)
# Half octaves, from below the line at B = 4 to beyond it at any B.
_DEPTHS = (5, 7, 10, 14, 20, 28, 40, 57)


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """What differs from panel to panel.

    Args:
        optimizer: ``sgd`` or ``rmsprop``.
        rates: Learning rates per sample of a step.
        small_data: Images at scale small.
        paper_data: The source's.
        paper_samples: On how many the source trains, repetitions included.
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


SGD = Setting()
SUB_BATCHES = Setting(
    steps_of={"smoke": 16, "small": 128, "paper": 1000},
    source="MNIST at width 384 for 10 epochs, in steps of 1000 samples",
)
RMSPROP = Setting(optimizer="rmsprop", rates=_RMSPROP_RATES)
OTHER_DATA = Setting(
    small_data="digits",
    paper_data="cifar10",
    paper_samples=50 * 50_000,
    source="CIFAR10 at width 384 for 50 epochs",
)


def cells(setting: Setting, scale: Scale) -> tuple[Cell, ...]:
    """The predicted line, one cell per batch size; the panel's networks; those of panel a."""
    points = _COARSE if scale == "smoke" else _FINE
    line = tuple(depth_curves.Cell("batch_size", "relu", size, eps=_EPS) for size in points)
    # The source compares every panel's trainable region with that of the first.
    networks = (*_networks(setting, scale), *_networks(SGD, scale))
    return (*line, *dict.fromkeys(networks))


def _networks(setting: Setting, scale: Scale) -> tuple[Stack, ...]:
    """Networks of a setting, the deepest ones first."""
    sizes, depths = _grid(scale)
    step = None if setting.steps_of is None else setting.steps_of[scale]
    return tuple(
        _stack(setting, scale, size, depth, step)
        for depth in reversed(depths)
        for size in sizes
        if step is None or size <= step
    )


def of_setting(setting: Setting, results: Results) -> Results:
    """Networks of a setting among the results, whatever their scale."""
    known = {stack for scale in get_args(Scale) for stack in _networks(setting, scale)}
    return {cell: record for cell, record in results.items() if cell in known}


def _grid(scale: Scale) -> tuple[tuple[int, ...], tuple[int, ...]]:
    if scale == "smoke":
        return (4, 16), (2, 6)
    if scale == "small":
        return _BATCH_SIZES, _DEPTHS
    return (*_BATCH_SIZES, 512, 1000), (*_DEPTHS, 80, 113)


def _stack(setting: Setting, scale: Scale, size: int, depth: int, step: int | None) -> Stack:
    effort = trained_panels.effort(
        scale,
        setting.rates,
        small_data=setting.small_data,
        paper_data=setting.paper_data,
        paper_samples=setting.paper_samples,
    )
    return Stack(
        activation="relu",
        batch_size=size,
        depth=depth,
        eps=_EPS,
        optimizer=setting.optimizer,
        step_samples=None if step == size else step,
        **effort,
    )


def line_points(results: Results) -> list[tuple[float, Point]]:
    """Points of the line by batch size."""
    line = trained_panels.line(results)
    return sorted(((cell.position, p) for cell, p in line.items()), key=lambda pair: pair[0])


def draw(setting: Setting, title: str, figure: FigureBase, results: Results) -> None:
    """Draw a panel."""
    own = of_setting(setting, results)
    names = sorted({stack.data for stack in trained_panels.stacks(own)})
    rate = _judged_rate(own)
    heat_map.draw(
        figure,
        trained_panels.columns(own, "batch_size", rate=rate),
        line_points(results),
        title=", ".join([title, *names]),
        label="batch size B of the statistics",
        logarithmic=True,
        note=trained_panels.rate_note(own, "batch_size", rate),
        colours=_CIFAR_COLOURS if "cifar10" in names else heat_map.COLOURS,
    )


def _judged_rate(own: Results) -> float | None:
    """The source's own where all else is the source's; on few images it is too low to judge."""
    return PAPER_RATE if trained_panels.full_size(own) else None


def line_checks(results: Results) -> tuple[Check, ...]:
    """The predicted line's course."""
    points = line_points(results)
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


def judge(setting: Setting, results: Results) -> Verdict:
    """How far the trained networks bear the line out, and what the line itself shows."""
    own = of_setting(setting, results)
    if trained_panels.too_few(own):
        return Verdict((), left_out=(trained_panels.TOO_FEW,))
    checks, unseen = network_checks(setting, results)
    left_out = (*unseen, *trained_panels.stand_in(own, setting.source))
    return Verdict((*checks, *line_checks(results)), left_out)


def network_checks(
    setting: Setting, results: Results
) -> tuple[tuple[Check, ...], tuple[str, ...]]:
    """How far the trained networks bear the line out, and what cannot be told."""
    own = of_setting(setting, results)
    rate = _judged_rate(own)
    found = _edges(own, rate)
    larger = Deeper(
        "networks train deeper at large batches than at small ones",
        found[-1].position,
        found[0].position,
    )
    checks, unseen = boundary_claims.compared([larger], found)
    return (
        _region(setting, own, results),
        boundary_claims.not_beyond_the_line(found),
        boundary_claims.at_the_line(found, "strong agreement"),
        *(ours(check) for check in checks),
        *boundary_remarks.remarks(own, "batch_size", rate),
    ), unseen


def _region(setting: Setting, own: Results, results: Results) -> Check:
    """What the source says of a panel's trainable region."""
    rate = _judged_rate(own)
    if setting == SGD:
        return boundary_claims.nothing_beyond(_DEEPEST, _edges(own, rate))
    # Networks that belong to both panels are no comparison.
    first = {c: r for c, r in of_setting(SGD, results).items() if c not in own}
    return boundary_claims.same_region(_edges(own, rate), _edges(first, rate))


def _edges(networks: Results, rate: float | None) -> tuple[Edge, ...]:
    return tuple(map(edge, trained_panels.columns(networks, "batch_size", rate=rate)))


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


def _experiment(panel: str, title: str, setting: Setting, *choices: str) -> Experiment[Any, Any]:
    return Experiment(
        name=f"yang2019.fig2{panel}",
        family=trained_panels.FAMILY,
        title=f"ReLU networks over batch size and depth, with the line 16ξ: {title}",
        claim=_CLAIMS[panel],
        choices=(
            *choices,
            *_LINE_CHOICES,
            trained_panels.rates_choice(setting.rates, _SOURCE_RATE),
            *trained_panels.CHOICES,
        ),
        record=Record,
        cells=partial(cells, setting),
        run=trained_panels.run,
        draw=partial(draw, setting, title),
        judge=partial(judge, setting),
    )


EXPERIMENTS: tuple[Experiment[Any, Any], ...] = (
    _experiment("a", "SGD", SGD, *_MNIST_SIZE),
    _experiment(
        "b",
        "SGD, fixed steps",
        SUB_BATCHES,
        "steps of 128 samples at small (the source: 1000), statistics over sub-batches of B "
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
