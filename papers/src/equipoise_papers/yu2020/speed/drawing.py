"""Draw times against size with their floors, and the table of the largest size."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from typing import TYPE_CHECKING

from equipoise_papers.experiments import style
from equipoise_papers.yu2020.speed.cells import (
    PARTS,
    TimedSize,
    Timing,
    Timings,
    by_channels,
    on_device,
)
from equipoise_papers.yu2020.speed.methods import METHODS, PLAIN, RUN1, Part, methods_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import FigureBase


_TITLES = {"normalisation": "normalisation alone", "head": "whole head"}
# Denominators of ratios: the paper's method, and plain pooling, which every head contains.
_REFERENCE = {"normalisation": RUN1, "head": PLAIN}
_NAMES = tuple(dict.fromkeys(method.name for method in METHODS))
# The characters of the house style's markers.
_SIGNS = ("●", "■", "▲", "◆", "▼", "✚")


def draw(figure: FigureBase, results: Mapping[TimedSize, Timings]) -> None:
    """Draw times against size with their floors, and the table of the largest size.

    Those of a GPU if there are any: what the paper claims, it claims of one.
    """
    panels = figure.subplot_mosaic([[*PARTS], ["table", "table"]], height_ratios=[1, 1.1])
    shown = on_device(results, "cuda") or results
    largest = max(shown, key=lambda cell: (cell.channels, cell.positions))
    for part in PARTS:
        _times(panels[part], part, by_channels(shown), largest.device)
    _table(panels["table"], largest, shown[largest])


def _times(axes: Axes, part: Part, sizes: Mapping[int, Timings], device: str) -> None:
    for method in methods_of(part):
        _, marker, colour = _look(method.name)
        times = [t.milliseconds(part, method.name) for t in sizes.values()]
        medians = [time.median for time in times]
        below = [time.median - time.low for time in times]
        above = [time.high - time.median for time in times]
        axes.errorbar(
            list(sizes),
            medians,
            yerr=(below, above),
            color=colour,
            marker=marker,
            markersize=3,
            linewidth=1,
        )
        if _has_floor(device):
            floors = [t.row(part, method.name).floor_milliseconds for t in sizes.values()]
            axes.plot(list(sizes), floors, color=colour, linestyle=":", linewidth=0.8)
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.set_xticks(list(sizes), [str(size) for size in sizes])
    axes.tick_params(labelsize=7)
    axes.set_xlabel("channels D", fontsize=7)
    axes.set_ylabel(f"{_clock(device)} of a batch", fontsize=7)
    axes.set_title(_TITLES[part] + (" (dotted: floor)" if _has_floor(device) else ""), fontsize=8)


def _look(method: str) -> tuple[str, str, str]:
    """Sign, marker and colour of a method, the same in both panels and in the table."""
    index = _NAMES.index(method)
    count = len(style.PALETTE)
    place = (index + index // count) % count
    return _SIGNS[place], style.MARKERS[place], style.PALETTE[index % count]


def _table(axes: Axes, cell: TimedSize, timings: Timings) -> None:
    from matplotlib.transforms import Bbox

    axes.axis("off")
    clock = _clock(cell.device)
    bases = " | ".join(_REFERENCE[part] for part in PARTS)
    axes.set_title(
        f"{cell.positions} × {cell.channels}, batch {cell.batch}, normalisation | head; "
        f"medians (quartiles, bars above) over {cell.turns} turns\n"
        f"ratio: in the same turn, to {bases}",
        fontsize=7,
    )
    found = {(row.part, row.method): row for row in timings.rows}
    table = axes.table(
        [
            [
                text
                for part in PARTS
                for text in _texts(timings, found.get((part, name)), cell.device)
            ]
            for name in _NAMES
        ],
        rowLabels=[f"{_look(name)[0]} {name}" for name in _NAMES],
        colLabels=[clock, "ratio", "floor ms", "MiB"] * 2,
        colWidths=[0.09, 0.23, 0.1, 0.08] * 2,
        cellLoc="center",
        bbox=Bbox.from_bounds(0.25, 0.0, 0.75, 1.0),
    )
    table.auto_set_font_size(False)
    table.set_fontsize(5.5)
    for (row, column), box in table.get_celld().items():
        box.set_linewidth(0.3)
        if column == -1:
            box.get_text().set_color(_look(_NAMES[row - 1])[2])


def _clock(device: str) -> str:
    return "CPU ms" if device == "cpu" else "GPU ms"


def _has_floor(device: str) -> bool:
    """Whether a product of 1024 × 1024 tells the device's rate; to a GPU it is a short call."""
    return device == "cpu"


def _texts(timings: Timings, row: Timing | None, device: str) -> list[str]:
    if row is None:
        return ["", "", "", ""]
    ratio = timings.times_slower(row.part, row.method, _REFERENCE[row.part])
    saved = row.saved / 2**20
    floor = f"{float(f'{row.floor_milliseconds:.2g}'):g}" if _has_floor(device) else "–"
    times = f"{ratio.median:.3g} ({ratio.low:.3g}–{ratio.high:.3g})"
    if row.method == _REFERENCE[row.part]:
        times = "1"
    return [f"{statistics.median(row.milliseconds):.3g}", times, floor, f"{saved:.2g}"]
