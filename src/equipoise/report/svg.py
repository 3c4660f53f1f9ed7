"""SVG figures that take their colours from the page, for light and dark mode."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from equipoise.records import wording

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Matplotlib draws in these colours, which are then replaced by the page's variables, with
# fallbacks for an SVG on its own. They are odd, so that they are not mistaken for real colours.
INK, MUTED, GRID = "#0a0b01", "#0a0b02", "#0a0b03"
FIRST, SECOND, THIRD = "#0a0b04", "#0a0b05", "#0a0b06"
_COLOURS = {
    INK: "currentColor",
    MUTED: "var(--figure-muted, #6b7280)",
    GRID: "var(--figure-grid, #d1d5db)",
    FIRST: "var(--figure-first, #1d4ed8)",
    SECOND: "var(--figure-second, #b45309)",
    THIRD: "var(--figure-third, #0f766e)",
}

_REAL = {
    INK: "#111827", MUTED: "#6b7280", GRID: "#d1d5db", FIRST: "#1d4ed8", SECOND: "#b45309",
    THIRD: "#0f766e",
}  # fmt: skip

# 380 points wide: on a phone's 340 pixels, letters of 12 points are still 11 pixels high.
_WIDTH = 380.0
_STYLE: dict[str, Any] = {
    "svg.fonttype": "none",
    "svg.hashsalt": "equipoise",
    "text.parse_math": False,
    "font.family": "DejaVu Sans",
    "font.size": 12,
    "axes.labelsize": 12,
    "axes.labelcolor": INK,
    "axes.edgecolor": MUTED,
    "axes.linewidth": 0.8,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": GRID,
    "grid.linewidth": 0.7,
    "text.color": INK,
    "xtick.color": MUTED,
    "ytick.color": MUTED,
    "xtick.labelcolor": INK,
    "ytick.labelcolor": INK,
    "xtick.labelsize": 11,
    "ytick.labelsize": 11,
    "xtick.minor.size": 0,
    "ytick.minor.size": 0,
    "legend.frameon": False,
    "legend.fontsize": 11,
    "legend.handlelength": 1.6,
    "legend.columnspacing": 1.2,
    "legend.borderaxespad": 0.0,
}


def draw_svg(name: str, label: str, height: float, paint: Callable[[Figure], None]) -> str:
    """Draw a figure as an SVG element for a page."""
    import io

    from matplotlib import rc_context, rcParamsDefault
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure

    target = io.StringIO()
    # Start from matplotlib's defaults: the user's own style must not change the report.
    style: Any = _neutral(rcParamsDefault) | _STYLE
    with rc_context(style):
        figure = Figure(figsize=(_WIDTH / 72, height / 72), layout="constrained")
        figure.patch.set_visible(False)
        paint(figure)
        for axes in figure.axes:
            axes.patch.set_visible(False)
        # `savefig` would first draw it once to no file, for the layout that drawing makes anyway.
        canvas: Any = FigureCanvasSVG(figure)
        canvas.print_svg(target, metadata={"Date": None})
    return _inline(target.getvalue(), name, label)


def picture_of(height: float, paint: Callable[[Figure], None]) -> Figure:
    """Draw the same figure in real colours, for a notebook or a file."""
    from matplotlib import rc_context, rcParamsDefault
    from matplotlib.figure import Figure

    style: Any = _neutral(rcParamsDefault) | _STYLE
    with rc_context(style):
        figure = Figure(figsize=(_WIDTH / 72, height / 72), layout="constrained")
        paint(figure)
    for artist in figure.findobj():
        for get, put in (
            ("get_color", "set_color"),
            ("get_markerfacecolor", "set_markerfacecolor"),
            ("get_markeredgecolor", "set_markeredgecolor"),
            ("get_edgecolor", "set_edgecolor"),
        ):
            _recolour(artist, get, put)
    return figure


def _recolour(artist: Any, get: str, put: str) -> None:
    from matplotlib.colors import same_color

    if not (hasattr(artist, get) and hasattr(artist, put)):
        return
    found = getattr(artist, get)()
    for sentinel, colour in _REAL.items():
        try:
            if same_color(found, sentinel):
                getattr(artist, put)(colour)
                return
        except (ValueError, TypeError):
            return


def log_scale(axes: Axes) -> None:
    """Make the vertical axis logarithmic, with ticks that fit its range."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

    axes.set_yscale("log")
    low, high = axes.get_ylim()
    decades = math.log10(high / low) if low > 0 else 1.0
    subs = (1.0,) if decades > 2 else (1.0, 2.0, 5.0) if decades > 0.6 else tuple(range(1, 10))
    axes.yaxis.set_major_locator(LogLocator(subs=subs, numticks=7))
    axes.yaxis.set_minor_locator(NullLocator())
    ticks = axes.yaxis.get_majorticklocs
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: _tick(value, ticks())))


def drawable(value: float, *, log: bool = True) -> bool:
    """Whether an axis can show a value; matplotlib overflows near the ends of float range."""
    return (value > 1e-250 or not log) and abs(value) < 1e250


def _tick(value: float, ticks: Iterable[float]) -> str:
    """Write a tick's value, with as many digits as tell it from the other ticks.

    Examples:
        >>> _tick(3.1e-4, [2e-4, 3.1e-4]), _tick(3.1e-4, [3e-4, 3.1e-4, 3.2e-4])
        ('3×10⁻⁴', '3.1×10⁻⁴')
    """
    if value <= 0:
        return ""
    power = math.log10(value)
    if 0.01 <= value < 10_000:
        return f"{value:g}"
    if abs(power - round(power)) < 1e-6:
        return wording.power_of_ten(round(power))
    others = {float(tick) for tick in ticks}
    enough = (n for n in range(1, 6) if len({wording.number(x, n) for x in others}) == len(others))
    return wording.number(value, next(enough, 6))


def legend(axes: Axes, columns: int = 2) -> None:
    """Draw the legend above the axes; predictions come last."""
    handles, labels = axes.get_legend_handles_labels()
    if handles:
        # In the order of drawing: matplotlib would put lines without error bars first.
        order = sorted(range(len(labels)), key=lambda i: labels[i].startswith("predicted"))
        axes.figure.legend(
            [handles[i] for i in order],
            [labels[i] for i in order],
            loc="outside upper left",
            ncols=columns,
        )
    else:
        axes.text(0.5, 0.5, "nothing to draw", transform=axes.transAxes, ha="center", va="center")


def note(figure: Figure, omitted: int, noun: str, why: str) -> None:
    """Write below the figure what could not be drawn."""
    if omitted:
        text = f"Not drawn: {wording.count(omitted, noun)} {why}."
        figure.supxlabel(text, x=0.02, ha="left", fontsize=10.5, color=INK)


def _neutral(defaults: Any) -> dict[str, Any]:
    # Without the backend's settings: changing them would start a backend.
    ours = ("axes.", "figure.", "font.", "grid.", "legend.", "lines.", "savefig.", "svg.")
    more = ("text.", "xtick.", "ytick.", "errorbar.", "path.", "patch.", "mathtext.")
    return {key: value for key, value in defaults.items() if key.startswith(ours + more)}


def _inline(svg: str, name: str, label: str) -> str:
    """Turn a stand-alone SVG into an element that can share a page with others."""
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>|<!--.*?-->", "", svg, flags=re.DOTALL)
    # Matplotlib's style sheet selects `*`, which would restyle the whole HTML page.
    svg = re.sub(r"<style[^>]*>.*?</style>", "", svg, flags=re.DOTALL)
    svg = re.sub(r"\bid=\"", f'id="{name}-', svg)
    svg = re.sub(r"\burl\(#", f"url(#{name}-", svg)
    svg = re.sub(r"href=\"#", f'href="#{name}-', svg)
    svg = re.sub(r"'DejaVu Sans'[^;\"]*", "var(--figure-font, sans-serif)", svg)
    for sentinel, colour in _COLOURS.items():
        svg = svg.replace(sentinel, colour)
    view = re.search(r'viewBox="[^"]*"', svg)
    assert view is not None
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink" '
        f'{view.group()} role="img" aria-label="{label}" '
        f'stroke-linejoin="round" stroke-linecap="butt" class="figure">'
    )
    return re.sub(r"\n\s*", "\n", head + svg[svg.index(">") + 1 :]).strip()
