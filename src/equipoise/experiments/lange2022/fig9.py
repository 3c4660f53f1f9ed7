"""Fig. 9: cumulative time of 20 epochs with batch norm and with BNP, from Table 1's timings."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from equipoise.experiments import style
from equipoise.experiments.experiment import Experiment
from equipoise.experiments.lange2022 import table1
from equipoise.experiments.lange2022.table1 import Cell, Timing, Timings
from equipoise.records.experiments import Check, Verdict

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
# Times that differ by no more than this are quite comparable.
_COMPARABLE = 0.1
# Fewer turns than that say nothing about times.
_ENOUGH_TURNS = 10


def draw(figure: FigureBase, results: Mapping[Cell, Timings]) -> None:
    """Draw a panel for each batch size, as the paper does; times are those of the fastest turn."""
    timings = _dense(results)
    if timings is None:
        figure.text(0.5, 0.5, "the fully connected network is not timed yet", ha="center")
        return
    panels = figure.subplots(1, len(_BATCHES), sharex=True)
    for axes, batch_size in zip(panels, _BATCHES, strict=True):
        _panel(axes, timings, batch_size)
        axes.set_title(f"batch {batch_size}", fontsize=9)
        axes.set_ylim(bottom=0)
        axes.tick_params(labelsize=7)
    panels[0].set_ylabel(f"cumulative seconds, {_IMAGES:,} images an epoch")
    panels[0].legend(fontsize=6)
    panels[1].set_xlabel("epoch")


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


def _dense(results: Mapping[Cell, Timings]) -> Timings | None:
    """Timings of the fully connected network, which the figure shows."""
    return next((timings for cell, timings in results.items() if cell.network == "fc"), None)


def judge(results: Mapping[Cell, Timings]) -> Verdict:
    """What the paper says of the figure."""
    timings = _dense(results)
    if timings is None or any(cell.blocks < _ENOUGH_TURNS for cell in results):
        return Verdict((), left_out=("smoke times two turns only; it is not judged",))
    over_bn = {b: timings.ratio(b, "BNP") / timings.ratio(b, "BN") for b in _BATCHES}
    small, *large = _BATCHES
    words = "; ".join(f"{b}: {ratio:.2f}" for b, ratio in over_bn.items())
    seconds = "; ".join(
        f"{b}: {epoch_seconds(_timing(timings, b, 'BN')):.1f} s and "
        f"{epoch_seconds(_timing(timings, b, 'BNP')):.1f} s"
        for b in _BATCHES
    )
    checks = (
        Check(
            f"for the smaller batch, {small}, BN is faster than BNP",
            f"BNP takes {over_bn[small]:.2f} of BN's time",
            over_bn[small] > 1,
        ),
        Check(
            "for the larger ones, 256 and 512, BNP is a little faster",
            "; ".join(f"{b}: {over_bn[b]:.2f} of BN's time" for b in large),
            all(over_bn[b] < 1 for b in large),
        ),
        Check(
            f"overall the two are quite comparable (within {_COMPARABLE:.0%})",
            f"BNP over BN {words}; an epoch of BN and of BNP {seconds}",
            all(abs(ratio - 1) <= _COMPARABLE for ratio in over_bn.values()),
        ),
    )
    return Verdict(checks, left_out=("seconds on a GPU",))


# Table 1's cells, computed once for both.
EXPERIMENT: Experiment[Any, Any] = replace(
    table1.EXPERIMENT,
    name="lange2022.fig9",
    family=table1.EXPERIMENT.filed_under,
    title="Cumulative time of 20 epochs with BN and with BNP",
    claim="For smaller batches BN is faster than BNP, for larger ones BNP has a tiny improvement; "
    "overall the difference is small.",
    choices=(
        *table1.EXPERIMENT.choices,
        "Table 1's timings, a step's time in the fastest turn times the steps of 20 epochs: every "
        "epoch takes the same",
        "dashed, not in the paper: BN that normalises the input too, as BNP does, and BNP with "
        "statistics every ten steps",
        "judged by medians of ratios of neighbouring turns; quite comparable means within "
        f"{_COMPARABLE:.0%}",
    ),
    draw=draw,
    judge=judge,
)
