"""Fig. 9: cumulative time of 20 epochs with batch norm and with BNP, from Table 1's timings."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from equipoise_papers.experiments import style
from equipoise_papers.experiments.experiment import Experiment
from equipoise_papers.experiments.verdict import Verdict
from equipoise_papers.lange2022.timing import table1
from equipoise_papers.lange2022.timing.table1 import Dense
from equipoise_papers.lange2022.timing.timed import TimedNetwork, Timing, Timings

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import FigureBase

_EPOCHS, _IMAGES = 20, 50_000
_BATCHES = (16, 256, 512)
_LOOKS: dict[str, dict[str, Any]] = {
    "BN": {"color": style.PALETTE[1]},
    "BN and input": {"color": style.PALETTE[1], "linestyle": "--"},
    "BNP": {"color": style.PALETTE[0]},
    "BNP every 10 steps": {"color": style.PALETTE[0], "linestyle": "--"},
}


def draw(figure: FigureBase, results: Mapping[TimedNetwork, Timings]) -> None:
    """Draw a panel for each batch size, as the paper does; times are those of the fastest turn."""
    found = _dense(results)
    if found is None:
        figure.text(0.5, 0.5, "the fully connected network is not timed yet", ha="center")
        return
    timings, where = found
    panels = figure.subplots(1, len(_BATCHES), sharex=True)
    for axes, batch_size in zip(panels, _BATCHES, strict=True):
        _panel(axes, timings, batch_size)
        axes.set_title(f"batch {batch_size}", fontsize=9)
        axes.set_ylim(bottom=0)
        axes.tick_params(labelsize=7)
    panels[0].set_ylabel(f"cumulative seconds {where}, extrapolated", fontsize=8)
    panels[0].legend(fontsize=6)
    panels[1].set_xlabel(f"epoch of {_IMAGES:,} images")


def _panel(axes: Axes, timings: Timings, batch_size: int) -> None:
    for variant, look in _LOOKS.items():
        seconds = epoch_seconds(_timing(timings, batch_size, variant))
        axes.plot([0, _EPOCHS], [0, _EPOCHS * seconds], label=variant, **look)


def epoch_seconds(timing: Timing) -> float:
    """Seconds of one epoch of the paper's CIFAR-10, which has 50,000 images."""
    return timing.milliseconds / 1e3 * _IMAGES / timing.batch_size


def _timing(timings: Timings, batch_size: int, variant: str) -> Timing:
    (found,) = [r for r in timings.rows if (r.batch_size, r.variant) == (batch_size, variant)]
    return found


def _dense(results: Mapping[TimedNetwork, Timings]) -> tuple[Timings, str] | None:
    """Timings of the fully connected network, and where: a GPU's epochs if they are there."""
    dense = Dense.of(results)
    if dense.epochs is not None:
        return dense.epochs, "on a GPU with a data loader"
    return None if dense.cpu is None else (dense.cpu, "on a CPU, steps alone")


def judge(results: Mapping[TimedNetwork, Timings]) -> Verdict:
    """Check the one sentence that the paper adds to Table 1's order."""
    if table1.few(results):
        return Verdict((), left_out=(table1.TOO_FEW,))
    dense = Dense.of(results)
    claim = (
        "overall the difference is small, and BN and BNP are quite comparable (within "
        f"{table1.LEVEL:.0%} at every batch size)"
    )
    small = f"they differ by at most {table1.LEVEL:.0%}"
    checks = [dense.check(claim, table1.level, *_BATCHES)]
    if dense.cpu is not None:
        checks.append(table1.on_a_cpu(small, dense.cpu, table1.level))
    return Verdict(tuple(checks), left_out=dense.left_out, fidelity="reduced")


# The cells are Table 1's, computed once for both.
EXPERIMENT: Experiment = replace(
    table1.EXPERIMENT,
    name="lange2022.fig9",
    family=table1.EXPERIMENT.filed_under,
    title="Cumulative time of 20 epochs with BN and with BNP",
    claim="Overall the difference is small, and the two methods are quite comparable. (That BN is "
    "faster for smaller batches and BNP for larger ones is Table 1, and judged there.)",
    choices=(
        *table1.EXPERIMENT.choices,
        "lines are extrapolated: Table 1's time of a step in its fastest turn, times the steps of "
        "20 epochs; every epoch takes the same",
        "dashed, not in the paper: BN that normalises the input too, as BNP does, and BNP with "
        "statistics every ten steps",
        "judged by medians of ratios of neighbouring turns; quite comparable means level in "
        f"Table 1's sense, within {table1.LEVEL:.0%}",
    ),
    draw=draw,
    judge=judge,
)
