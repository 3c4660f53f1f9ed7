"""Fig. 2: the predicted boundary of the trainable region over batch size and depth."""

from __future__ import annotations

import math
from collections.abc import Mapping
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from equipoise import theory
from equipoise.experiments import style
from equipoise.experiments.experiment import Experiment
from equipoise.experiments.yang2019.depth_curves import Cell, Point, run
from equipoise.records.experiments import Check, Scale, Verdict
from equipoise.report import wording

if TYPE_CHECKING:
    from matplotlib.figure import FigureBase

_EPS = 1e-3
_COARSE = (4, 8, 16, 64, 256, 1024)
_FINE = (4, 5, 6, 7, 8, 10, 12, 16, 20, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 1024)
# The boundary for an infinite batch at ε = 0, where λ_G = π/(π − 1).
_INFINITE_BATCH = theory.max_trainable_depth(math.pi / (math.pi - 1))


def cells(scale: Scale) -> tuple[Cell, ...]:
    """One cell per batch size."""
    batch_sizes = _COARSE if scale == "smoke" else _FINE
    return tuple(Cell("batch_size", "relu", batch_size, eps=_EPS) for batch_size in batch_sizes)


def draw(figure: FigureBase, results: Mapping[Cell, Point]) -> None:
    """Draw the boundary; training results can be laid over it."""
    axes = figure.subplots()
    batch_sizes = [cell.batch_size for cell in results]
    depths = [point.depth for point in results.values()]
    style.predicted(axes, batch_sizes, depths, 0, "16ξ, theory")
    axes.fill_between(batch_sizes, 0, depths, color=style.PALETTE[0], alpha=0.12, lw=0)
    axes.axhline(_INFINITE_BATCH, color=style.MUTED, linewidth=0.8, label="B → ∞, ε = 0")
    axes.text(64, 18, "predicted trainable", ha="center", color=style.PALETTE[0])
    axes.text(16, 47, "predicted untrainable", ha="center", color=style.INK)
    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
    axes.set_ylim(0, 60)
    axes.margins(x=0)
    axes.set_xlabel("batch size B")
    axes.set_ylabel("depth (layers)")
    axes.set_title("Trainable depth of ReLU networks, ε = 0.001 (theory alone)")
    axes.legend(loc="lower right")


def judge(results: Mapping[Cell, Point]) -> Verdict:
    """The line's course; the training panels that it bounds are not part of this."""
    depths = [point.depth for point in results.values()]
    sizes = [cell.batch_size for cell in results]
    rising = all(b > a for a, b in pairwise(depths))
    ends = f"{wording.number(depths[0])} layers at B = {sizes[0]}, "
    ends += f"{wording.number(depths[-1])} at B = {sizes[-1]}"
    # At B = 4 the ε of 10⁻³ moves the boundary by a term of order √ε: 14.2 becomes 15.7.
    checks = (
        Check("the boundary rises with the batch size", ends, rising),
        Check("at B = 4 about 14 layers (±2)", wording.number(depths[0]), abs(depths[0] - 14) < 2),
        Check(
            "for large batches it saturates at 41.8 layers (±1)",
            wording.number(depths[-1]),
            abs(depths[-1] - _INFINITE_BATCH) < 1,
        ),
        Check(
            "beyond about 50 layers nothing trains at any batch size",
            f"at most {wording.number(max(depths))}",
            max(depths) < 50,
        ),
    )
    return Verdict(checks, left_out=("training in panels a to d: accuracy over depth and B",))


EXPERIMENT: Experiment[Any, Any] = Experiment(
    name="yang2019.fig2",
    title="ReLU at ε = 0.001: predicted boundary 16ξ of the trainable region (no training)",
    claim="Networks deeper than 16ξ do not train; for ReLU the boundary rises with the batch "
    "size and saturates, so that nothing deeper than about 50 layers trains.",
    choices=(
        "batch sizes from 4 to 1024; the source does not state its grid",
        "infinite width, σ_w² = 1; the boundary is where squared gradient norms of the first "
        "and the last layer differ by e^16",
        "each record holds the rate with its error, so that accuracies can be laid over it",
    ),
    record=Point,
    cells=cells,
    run=run,
    draw=draw,
    judge=judge,
)
