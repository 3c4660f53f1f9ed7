"""Fig. 2: test accuracy of ReLU networks over batch size and depth, and the line 16ξ."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from equipoise import theory
from equipoise.experiments.experiment import Experiment
from equipoise.experiments.yang2019 import boundary_claims, depth_curves, heat_map, trained_panels
from equipoise.experiments.yang2019.boundary_claims import Deeper
from equipoise.experiments.yang2019.depth_curves import Point
from equipoise.experiments.yang2019.trainability import Stack
from equipoise.experiments.yang2019.trained_panels import Cell, Record, Results
from equipoise.records.experiments import Check, Scale, Verdict
from equipoise.report import wording

if TYPE_CHECKING:
    from matplotlib.figure import FigureBase

_EPS = 1e-3
_COARSE = (4, 8, 16, 64, 256, 1024)
_FINE = (4, 5, 6, 7, 8, 10, 12, 16, 20, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 1024)
# The boundary for an infinite batch at ε = 0, where λ_G = π/(π − 1).
_INFINITE_BATCH = theory.max_trainable_depth(math.pi / (math.pi - 1))
# "Networks deeper than about 50 layers are untrainable regardless of batch size."
_DEEPEST = 50
_SGD_RATES = (1e-5, 1e-4, 1e-3, 1e-2)
_RMSPROP_RATES = (1e-5, 1e-4, 1e-3)
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
    """

    optimizer: str = "sgd"
    rates: tuple[float, ...] = _SGD_RATES
    small_data: str = "fashion-mnist"
    paper_data: str = "mnist"
    paper_samples: int = 10 * 60_000
    steps_of: Mapping[Scale, int] | None = None


SGD = Setting()
SUB_BATCHES = Setting(steps_of={"smoke": 16, "small": 128, "paper": 1000})
RMSPROP = Setting(optimizer="rmsprop", rates=_RMSPROP_RATES)
OTHER_DATA = Setting(small_data="digits", paper_data="cifar10", paper_samples=50 * 50_000)


def cells(setting: Setting, scale: Scale) -> tuple[Cell, ...]:
    """The predicted line, one cell per batch size; then the networks, the deepest ones first."""
    points = _COARSE if scale == "smoke" else _FINE
    line: tuple[Cell, ...] = tuple(
        depth_curves.Cell("batch_size", "relu", size, eps=_EPS) for size in points
    )
    sizes, depths = _grid(scale)
    step = None if setting.steps_of is None else setting.steps_of[scale]
    return line + tuple(
        _stack(setting, scale, size, depth, step)
        for depth in reversed(depths)
        for size in sizes
        if step is None or size <= step
    )


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


def draw(title: str, figure: FigureBase, results: Results) -> None:
    """Draw a panel."""
    names = sorted({stack.data for stack in trained_panels.stacks(results)})
    heat_map.draw(
        figure,
        trained_panels.columns(results, "batch_size"),
        line_points(results),
        title=", ".join([title, *names]),
        label="batch size B of the statistics",
        logarithmic=True,
    )


def line_checks(results: Results) -> tuple[Check, ...]:
    """The predicted line's course."""
    points = line_points(results)
    sizes, depths = [at for at, _ in points], [point.depth for _, point in points]
    rising = all(b > a for a, b in pairwise(depths))
    ends = f"{wording.number(depths[0])} layers at B = {sizes[0]:g}, "
    ends += f"{wording.number(depths[-1])} at B = {sizes[-1]:g}"
    # At B = 4 the ε of 10⁻³ moves the boundary by a term of order √ε: 14.2 becomes 15.7.
    return (
        Check("predicted: the boundary rises with the batch size", ends, rising),
        Check(
            "predicted: at B = 4 about 14 layers (±2)",
            wording.number(depths[0]),
            abs(depths[0] - 14) < 2,
        ),
        Check(
            "predicted: for large batches it saturates at 41.8 layers (±1)",
            wording.number(depths[-1]),
            abs(depths[-1] - _INFINITE_BATCH) < 1,
        ),
    )


def judge(setting: Setting, results: Results) -> Verdict:
    """The line, and how far the trained networks bear it out."""
    if trained_panels.too_few(results):
        return Verdict((), left_out=(trained_panels.TOO_FEW,))
    checks, left_out = network_checks(results)
    if any(stack.data == "digits" for stack in trained_panels.stacks(results)):
        left_out = (*left_out, "CIFAR10: no colour images at this scale")
    return Verdict((*line_checks(results), *checks), left_out)


def network_checks(results: Results) -> tuple[tuple[Check, ...], tuple[str, ...]]:
    """How far the trained networks bear the line out, and what cannot be told."""
    edges = boundary_claims.edges(results, "batch_size")
    larger = Deeper(
        "networks train deeper at large batches than at small ones",
        edges[-1].position,
        edges[0].position,
    )
    checks, unseen = boundary_claims.compared([larger], edges)
    return (
        boundary_claims.nothing_beyond(_DEEPEST, edges),
        *checks,
        *boundary_claims.line_checks(results, "batch_size"),
    ), unseen


_CLAIM = (
    "Networks deeper than 16ξ do not train: the boundary rises with the batch size and saturates, "
    "so that nothing deeper than about 50 layers trains."
)
_LINE_CHOICES = (
    "16ξ at infinite width, σ_w² = 1: squared gradient norms of the first and the last layer "
    "differ by e^16",
)


def _experiment(panel: str, title: str, setting: Setting, *choices: str) -> Experiment[Any, Any]:
    return Experiment(
        name=f"yang2019.fig2{panel}",
        family=trained_panels.FAMILY,
        title=f"ReLU networks over batch size and depth, with the line 16ξ: {title}",
        claim=_CLAIM,
        choices=(*choices, *_LINE_CHOICES, *trained_panels.choices(setting.rates)),
        record=Record,
        cells=partial(cells, setting),
        run=trained_panels.run,
        draw=partial(draw, title),
        judge=partial(judge, setting),
    )


EXPERIMENTS: tuple[Experiment[Any, Any], ...] = (
    _experiment("a", "SGD", SGD),
    _experiment(
        "b",
        "SGD, fixed steps",
        SUB_BATCHES,
        "steps of 128 samples at small (the source: 1000), statistics over sub-batches of B "
        "(ghost batch norm); η = c · samples per step",
    ),
    _experiment(
        "c", "RMSProp", RMSPROP, "RMSProp with decay 0.9, ε = 1e-8; η = c · B as with SGD"
    ),
    _experiment(
        "d",
        "second data set",
        OTHER_DATA,
        "scikit-learn's 1,437 digits of 8 × 8 pixels stand in for CIFAR10 at small, 360 others "
        "test; only paper takes CIFAR10, from --data-dir",
    ),
)
