"""Training loss and test accuracy of every method at its best rate, as the paper plots them."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from equipoise_papers.experiments import style
from equipoise_papers.lange2022.best import Best, at_rates, best_of
from equipoise_papers.lange2022.training import Run, Training

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import FigureBase

# One colour per idea.
_LOOKS: dict[str, dict[str, Any]] = {
    "vanilla": {"color": style.INK},
    "bn": {"color": style.PALETTE[1]},
    "ln": {"color": style.PALETTE[2]},
    "gn": {"color": style.PALETTE[2], "linestyle": "--"},
    "renorm": {"color": style.PALETTE[3]},
    "four_things": {"color": style.PALETTE[5]},
    "bnp_paper": {"color": style.PALETTE[0]},
    "adam": {"color": style.INK, "linestyle": ":"},
}
_LOOKS |= {f"{name}_copies": _LOOKS[name] for name in ("bn", "renorm")}
# Controls that the paper lacks.
_OURS = {"standardised", "bnp", "bnp_adam"}
# Adam is one of them where the paper trains the vanilla network with SGD.
_OURS_BY_NETWORK = {"fc": _OURS | {"adam"}, "cnn5": _OURS}


def draw(
    figure: FigureBase,
    results: Mapping[Training, Run],
    title: str,
    paper_rates: Mapping[str, float],
) -> None:
    """Draw loss above accuracy of the paper's methods; bands are the range over seeds.

    Where the paper states another rate than our best, the legend says what that rate gave. Our
    controls are in Tables 2 and 3.
    """
    upper, lower = figure.subplots(2, 1, sharex=True)
    reported = at_rates(results, paper_rates)
    ours = _OURS_BY_NETWORK[next(iter(results)).network]
    for best in best_of(results).values():
        if best.trains and best.method not in ours:
            label = _label(best, reported.get(best.method))
            loss_and_accuracy(upper, lower, best.runs, _LOOKS[best.method], label)
    style.logarithmic(upper)
    upper.set_ylabel("training loss")
    upper.set_title(title)
    lower.set_ylabel("test accuracy")
    lower.set_xlabel("step")
    figure.legend(
        *upper.get_legend_handles_labels(),
        loc="outside lower center",
        ncols=2,
        fontsize=6,
        title="mean and range over seeds, at each method's best rate",
        title_fontsize=6,
    )
    refused = [best.label for best in best_of(results).values() if not best.trains]
    if refused:
        words = f"does not train: {', '.join(refused)}"
        lower.text(0.98, 0.04, words, transform=lower.transAxes, ha="right", fontsize=7)


def _label(best: Best, reported: Best | None) -> str:
    label = f"{best.label}, {best.rate:g}"
    if reported is None or reported.rates == (best.rate,):
        return label
    loss = f"{statistics.fmean(reported.losses):.2f}" if reported.trains else "diverges"
    return f"{label} (paper's {reported.rates[0]:g}: {loss})"


def loss_and_accuracy(
    upper: Axes, lower: Axes, runs: Sequence[Run], look: Mapping[str, Any], label: str
) -> None:
    """Draw one method's training loss and test accuracy, mean and range over its runs."""
    first = runs[0]
    losses = (run.curve.losses for run in runs)
    style.mean_and_range(upper, first.curve.steps, losses, look, label=label)
    steps = [e.step for e in first.evaluations]
    accuracies = ([e.accuracy or 0.0 for e in run.evaluations] for run in runs)
    style.mean_and_range(lower, steps, accuracies, look, marker=".")
