"""How every figure looks: one palette, one type size, measurements beside theory.

Measurements are marks with bars, or bands, of ±1 standard deviation; theory is dashed.
"""

from __future__ import annotations

import io
import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from equipoise.files import write_bytes

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from numpy.typing import ArrayLike

# Okabe and Ito's palette, which people with any common colour blindness can tell apart, without
# its yellow, which is too faint on white.
PALETTE = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00")
MARKERS = ("o", "s", "^", "D", "v", "P")
INK, MUTED = "#222222", "#777777"
DASHES = (0, (5, 2))
PANEL_INCHES = (5.6, 4.2)

_DOTS_PER_INCH = 160
# A logarithmic axis over less than so many times its lower end has labels between powers of ten.
_SHORT = 300
_STYLE: dict[str, Any] = {
    "font.family": "DejaVu Sans",
    "font.size": 10,
    "axes.titlesize": 11,
    "axes.titlelocation": "left",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#dddddd",
    "grid.linewidth": 0.6,
    "legend.frameon": False,
    "legend.fontsize": 8.5,
    "lines.linewidth": 1.4,
    "lines.markersize": 4.5,
    "errorbar.capsize": 2.0,
    "figure.constrained_layout.use": True,
    "svg.hashsalt": "equipoise",
    "svg.fonttype": "none",
}


@contextmanager
def house_style() -> Iterator[None]:
    """Draw the same on every machine, whatever the user's own matplotlib style is."""
    from matplotlib import rc_context, rcParamsDefault

    # Backend settings are not style, and setting them would start a backend.
    neutral: Any = {k: v for k, v in rcParamsDefault.items() if not k.startswith("backend")}
    with rc_context(neutral | _STYLE):
        yield


def empty_figure(rows: int = 1, columns: int = 1) -> Figure:
    """Make a figure with room for ``rows`` × ``columns`` panels."""
    from matplotlib.figure import Figure

    width, height = PANEL_INCHES
    return Figure(figsize=(columns * width, rows * height), layout="constrained")


def save_figure(figure: Figure, folder: Path) -> Path:
    """Write ``figure.png`` and ``figure.svg``, each whole or not at all; return the former."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.backends.backend_svg import FigureCanvasSVG

    # `savefig` would first draw each once to no file, for the layout that drawing makes anyway.
    for kind, canvas, options in (
        ("svg", FigureCanvasSVG, {"metadata": {"Date": None}}),
        ("png", FigureCanvasAgg, {}),
    ):
        buffer = io.BytesIO()
        figure.set_dpi(_DOTS_PER_INCH)  # the former sets its own
        getattr(canvas(figure), f"print_{kind}")(buffer, **options)
        write_bytes(folder / f"figure.{kind}", buffer.getvalue())
    return folder / "figure.png"


def measured(
    axes: Axes,
    x: ArrayLike,
    mean: ArrayLike,
    deviation: ArrayLike,
    index: int,
    label: str,
) -> None:
    """Draw a measured series: marks with bars of one standard deviation.

    Args:
        axes: The panel to draw in.
        x: Positions.
        mean: Values.
        deviation: Length of the bars, ``[n]``, or ``[2, n]`` for bars down and up.
        index: Number of the series, which decides colour and marker.
        label: Its name in the legend.
    """
    axes.errorbar(
        x,
        mean,
        yerr=deviation,
        color=PALETTE[index],
        marker=MARKERS[index],
        elinewidth=1.0,
        linestyle="none",
        label=label,
    )


def mean_and_range(
    axes: Axes,
    steps: Sequence[int],
    seeds: Iterable[Sequence[float]],
    look: Mapping[str, Any],
    **line: Any,
) -> None:
    """Draw a line of means over seeds in front of a pale band of their range.

    Args:
        axes: The panel to draw in.
        steps: Positions.
        seeds: The values of each seed.
        look: Colour, and further properties, of the line.
        **line: Further ones.
    """
    columns = list(zip(*seeds, strict=True))
    axes.plot(steps, list(map(statistics.fmean, columns)), **look, **line)
    low, high = list(map(min, columns)), list(map(max, columns))
    axes.fill_between(steps, low, high, color=look["color"], alpha=0.12, linewidth=0)


def predicted(axes: Axes, x: ArrayLike, y: ArrayLike, index: int) -> None:
    """Draw the theory of the series with the same index, in front of it."""
    axes.plot(x, y, color=PALETTE[index], linestyle=DASHES, zorder=3)


def logarithmic(axes: Axes) -> None:
    """Make the vertical axis logarithmic, after drawing; 0.5, 1 and 2 where it spans little.

    By default only powers of ten have plain labels, of which a loss may cross one or none.
    """
    from matplotlib.ticker import LogLocator, NullFormatter

    axes.set_yscale("log")
    low, high = axes.get_ylim()
    if high < _SHORT * low:
        axes.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
        axes.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
        axes.yaxis.set_minor_formatter(NullFormatter())


def marked(axes: Axes, x: float, label: str) -> None:
    """Mark a predicted position on the horizontal axis."""
    axes.axvline(x, color=MUTED, linestyle=":", linewidth=1.6, label=label)
