"""Figure of gradients at every operation, predicted and measured."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from equipoise.report.svg import (
    FIRST,
    INK,
    MUTED,
    SECOND,
    THIRD,
    draw_svg,
    drawable,
    legend,
    log_scale,
    note,
)
from equipoise.theory.propagation.attribution import BRANCHES, NORMALISERS
from equipoise.theory.propagation.sites import Site

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# How operations are told apart: label, kinds, colour, marker.
_SERIES = (
    ("weights", ("linear layers", "convolutions"), SECOND, "D"),
    ("normalisers", (NORMALISERS,), FIRST, "o"),
    ("additions", (BRANCHES,), THIRD, "s"),
)


def profile_figure(sites: Sequence[Site]) -> str:
    """Draw scale-free gradients of operations, in the order of execution, on a log scale.

    Args:
        sites: The operations.

    Returns:
        An ``<svg>`` element with a line for what is predicted, interrupted where theory is cut,
        and a point for each measurement, coloured by the kind of operation.
    """
    measured = [_drawable(site.measured_scale_free_gradient) for site in sites]
    predicted = [_drawable(site.scale_free_gradient) for site in sites]

    def paint(figure: Figure) -> None:
        axes = figure.subplots()
        size = min(4.5, max(1.6, 260 / max(1, len(sites))))
        named = {kind for _, kinds, _, _ in _SERIES for kind in kinds}
        others = tuple({site.kind for site in sites} - named)
        for label, kinds, colour, marker in (*_SERIES, ("others", others, MUTED, "o")):
            at = [i for i, site in enumerate(sites) if site.kind in kinds]
            if any(math.isfinite(measured[i]) for i in at):
                axes.plot(
                    [i + 1 for i in at],
                    [measured[i] for i in at],
                    color=colour,
                    marker=marker,
                    markersize=size,
                    markeredgewidth=0.5,
                    linestyle="none",
                    label=label,
                )
        if any(map(math.isfinite, predicted)):
            places = range(1, len(sites) + 1)
            axes.plot(places, predicted, color=INK, linewidth=0.9, label="predicted", zorder=1)
        log_scale(axes)
        axes.set_xlabel("operation, from input to output")
        axes.set_ylabel("‖∂E/∂x‖² · mean of x²")
        legend(axes, columns=3)
        omitted = sum(map(math.isnan, measured))
        note(figure, omitted, "operation", "without a finite, positive gradient")

    label = "Gradient times activation at every operation, log scale"
    return draw_svg("profile", label, 300, paint)


def _drawable(value: float | None) -> float:
    return value if value is not None and drawable(value) else math.nan
