"""Fig. 1d: covariances of a deep layer, below and above the symmetry breaking."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray

from equipoise import theory
from equipoise.records import Estimate
from equipoise.report import wording
from equipoise_papers.experiments.experiment import Experiment, Scale
from equipoise_papers.experiments.verdict import Check, Verdict
from equipoise_papers.sweeps.cell import Cell
from equipoise_papers.yang2019.fig1.wide_networks import deep_covariances

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import FigureBase

Array = NDArray[np.float64]

_BATCH_SIZE, _SEED = 10, 0
# The power of ReLU, and one whose broken state has the scale of the source's colour bar.
_BELOW, _ABOVE = 1.0, 1.9
_EFFORT = {"smoke": (1000, 60), "small": (1000, 200), "paper": (1000, 200)}
# Where all samples are alike, fluctuations of order 1/√width = 3 % remain, a few times larger near
# the transition; two groups differ by a factor of hundreds.
_EQUAL, _APART = 0.3, 10.0


@dataclass(frozen=True, slots=True)
class Covariance:
    """The last layer's covariance over the batch.

    Args:
        entries: Σ, ``[B][B]``.
        transition: Power at which theory predicts the symmetry breaking.
    """

    entries: tuple[tuple[float, ...], ...]
    transition: Estimate


@dataclass(frozen=True, slots=True)
class DeepNetwork(Cell[Covariance]):
    """One random network."""

    alpha: float
    batch_size: int
    width: int
    depth: int
    seed: int

    def run(self) -> Covariance:
        """Send a batch through the network."""
        (covariance,) = deep_covariances(
            theory.as_activation(f"alpha_relu({self.alpha})"),
            self.batch_size,
            width=self.width,
            depth=self.depth,
            networks=1,
            generator=torch.Generator().manual_seed(self.seed),
        )
        entries = tuple(tuple(map(float, row)) for row in covariance)
        return Covariance(entries, theory.alpha_transition(self.batch_size))


def cells(scale: Scale) -> tuple[DeepNetwork, ...]:
    """One network on either side of the transition."""
    width, depth = _EFFORT[scale]
    return tuple(
        DeepNetwork(alpha, _BATCH_SIZE, width, depth, _SEED) for alpha in (_BELOW, _ABOVE)
    )


def draw(figure: FigureBase, results: Mapping[DeepNetwork, Covariance]) -> None:
    """Draw the matrices with samples sorted by variance, each with its own colour scale."""
    places = figure.subplots(1, len(results), squeeze=False)[0]
    for axes, (cell, record) in zip(places, results.items(), strict=True):
        matrix = _in_order(record)
        lowest = min(0.0, float(matrix.min()))
        image = axes.imshow(matrix, cmap="viridis", vmin=lowest, vmax=float(matrix.max()))
        bar = figure.colorbar(image, ax=axes, orientation="horizontal", shrink=0.9)
        bar.set_label(r"covariance $\Sigma_{ab}$")
        side = "below" if cell.alpha < record.transition.value else "above"
        axes.set_title(f"α = {cell.alpha:g}, {side}")
        _label_samples(axes, len(matrix))
    figure.suptitle(
        f"Covariance of {_BATCH_SIZE} samples below and above the transition",
        x=0.02,
        ha="left",
        fontsize=11,
    )


def judge(results: Mapping[DeepNetwork, Covariance]) -> Verdict:
    """Check for a constant pattern below, and for two groups of samples above."""
    checks: list[Check] = []
    for cell, record in results.items():
        if cell.alpha < record.transition.value:
            checks += _checks_below(cell, np.array(record.entries))
        else:
            checks += _checks_above(cell, np.array(record.entries))
    return Verdict(tuple(checks))


def _checks_below(cell: DeepNetwork, matrix: Array) -> list[Check]:
    diagonal = matrix.diagonal()
    off_diagonal = matrix[~np.eye(len(matrix), dtype=bool)]
    checks = []
    for name, entries in (("diagonal", diagonal), ("off-diagonal", off_diagonal)):
        spread = float(entries.std() / abs(entries.mean()))
        claim = f"α = {cell.alpha:g}: {name} entries are equal to {_EQUAL * 100:g} %"
        text = f"{wording.number(float(entries.mean()))} ± {wording.number(100 * spread, 2)} %"
        checks.append(Check(claim, text, spread < _EQUAL))
    return checks


def _checks_above(cell: DeepNetwork, matrix: Array) -> list[Check]:
    diagonal = np.sort(matrix.diagonal())
    ratios = diagonal[1:] / diagonal[:-1]
    cut = int(ratios.argmax()) + 1
    small, large = diagonal[:cut], diagonal[cut:]
    found = f"{len(large)} of about {wording.number(float(large.mean()), 2)}, {len(small)} of "
    found += f"about {wording.number(float(small.mean()), 2)}"
    within = max(float(group[-1] / group[0]) for group in (small, large))
    label = f"α = {cell.alpha:g}"
    largest = float(matrix.max())
    return [
        Check(
            f"{label}: two groups of samples, more than {_APART:g} times apart, and so many times "
            "more than members of a group",
            found,
            float(ratios.max()) > _APART * within,
        ),
        Check(
            f"{label}: the largest entry is about 6 (4 to 9)", f"{largest:.1f}", 4 < largest < 9
        ),
    ]


def _in_order(record: Covariance) -> Array:
    matrix = np.array(record.entries)
    order = np.argsort(-matrix.diagonal())
    return np.asarray(matrix[np.ix_(order, order)])


def _label_samples(axes: Axes, size: int) -> None:
    axes.grid(visible=False)
    axes.spines[:].set_visible(False)
    axes.set_xticks([0, size - 1], ["1", str(size)])
    axes.set_yticks([0, size - 1], ["1", str(size)])
    axes.set_xlabel("sample, by variance")


EXPERIMENT = Experiment(
    name="yang2019.fig1d",
    title="Covariance of 10 samples deep inside, below and above the symmetry breaking",
    claim="Below the transition the covariance is a constant pattern (BSB1); above it the "
    "samples fall into two blocks, with entries up to about 6.",
    choices=(
        f"α = {_BELOW:g} and α = {_ABOVE:g}; one network each, of width 1000; after 60 layers "
        "(smoke) or 200",
        "samples are sorted by their variance, so that blocks are blocks to the eye",
    ),
    cells=cells,
    draw=draw,
    judge=judge,
)
