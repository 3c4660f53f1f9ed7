"""Figs. 6 and 7: residual networks with batch norm, group norm, BNP, and BNP with group norm."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from equipoise_papers.experiments import style
from equipoise_papers.experiments.experiment import Experiment, Scale
from equipoise_papers.experiments.verdict import Check, Verdict, ours
from equipoise_papers.lange2022.curves import loss_and_accuracy
from equipoise_papers.lange2022.lengths import IMAGES
from equipoise_papers.lange2022.resnets import regimes
from equipoise_papers.lange2022.resnets.best import (
    Trained,
    at_rates,
    best_of,
    comparable,
    higher,
    slightly_lower,
)
from equipoise_papers.lange2022.resnets.regimes import ResNetRegime
from equipoise_papers.lange2022.resnets.training import ResNetTraining
from equipoise_papers.lange2022.training import Run

if TYPE_CHECKING:
    from matplotlib.figure import FigureBase

# Dashed: without a normaliser.
_LOOKS: dict[str, dict[str, Any]] = {
    "bn": {"color": style.PALETTE[1]},
    "gn": {"color": style.PALETTE[2]},
    "bnp": {"color": style.PALETTE[3], "linestyle": "--"},
    "bnp_gn": {"color": style.PALETTE[0]},
}
# Points by which final accuracies may differ if comparable, and if slightly lower.
_LEVEL, _SLIGHT = 1.5, 3.0

_EARLY, _FINAL, _GAINED = attrgetter("early"), attrgetter("final"), attrgetter("gained")
Checks = Callable[[dict[str, Trained]], tuple[Check, ...]]


def draw(figure: FigureBase, results: Mapping[ResNetTraining, Run], regime: ResNetRegime) -> None:
    """Draw training loss above test accuracy; bands are the range over seeds."""
    upper, lower = figure.subplots(2, 1, sharex=True)
    first = next(iter(results))
    reported = at_rates(results, regime.paper.rates)
    best = best_of(results)
    for method, trained in best.items():
        if trained.trains:
            label = _label(trained, reported.get(method))
            loss_and_accuracy(upper, lower, trained.runs, _LOOKS[method], label)
    for axes in (upper, lower):
        for drop in first.drops:
            axes.axvline(drop, color=style.MUTED, linestyle=":", linewidth=0.8)
    failed = [trained.label for trained in best.values() if not trained.trains]
    if failed:
        words = f"diverges: {', '.join(failed)}"
        lower.text(0.98, 0.04, words, transform=lower.transAxes, ha="right")
    upper.set_ylabel("training loss")
    upper.set_ylim(bottom=0)
    upper.set_title(regime.network(first.data), fontsize=10)
    lower.set_ylabel("test accuracy")
    lower.set_ylim(0, 1)
    lower.set_xlabel("step; dotted: the learning rate drops", fontsize=8.5)
    figure.legend(
        *upper.get_legend_handles_labels(),
        loc="outside lower center",
        ncols=2,
        fontsize=7,
        title="mean and range over seeds",
        title_fontsize=7,
    )


def _label(best: Trained, reported: Trained | None) -> str:
    label = f"{best.label}, {best.rate:g}"
    if reported is None or reported.rate == best.rate:
        return label
    return f"{label} (paper's {reported.rate:g}: {reported.words()})"


def judge(results: Mapping[ResNetTraining, Run], regime: ResNetRegime, checks: Checks) -> Verdict:
    """Check the paper's sentences, and whether its rates are the best here too."""
    if any(cell.data == "digits" for cell in results):
        return Verdict((), left_out=("smoke trains a few steps only; it is not judged",))
    best = best_of(results)
    first = next(iter(results))
    whole = first.data == regime.paper.data
    return Verdict(
        (*checks(best), ours(_rates(best, at_rates(results, regime.paper.rates)))),
        left_out=() if whole else _left_out(regime, first),
        fidelity="same setting" if whole else "stand-in data",
    )


def _rates(best: Mapping[str, Trained], reported: Mapping[str, Trained]) -> Check:
    """Check that no other rate that was tried is better than the paper's, method by method."""
    words = []
    for method, trained in best.items():
        paper = reported[method]
        edge = " (edge)" if trained.at_edge else ""
        words.append(
            f"{trained.label} {trained.rate:g}{edge} {trained.words()}, paper's {paper.rate:g} "
            f"{paper.words()}"
        )
    same = all(trained.rate == reported[method].rate for method, trained in best.items())
    return Check("of the rates tried here, Table 3's are the best", "; ".join(words), same)


def _combined(best: dict[str, Trained]) -> tuple[Check, ...]:
    """Check what all three figures say about BNP with group norm."""
    bn, gn, both = best["bn"], best["gn"], best["bnp_gn"]
    return (
        _early("BNP+GN converges faster than BN before the first drop", both, bn),
        higher("BN outperforms GN at the end", _FINAL, bn, gn),
        higher("BNP+GN outperforms GN at the end", _FINAL, both, gn),
    )


def _alone(best: dict[str, Trained]) -> tuple[Check, ...]:
    """Check what Fig. 6 says about BNP without any normaliser."""
    bn, bnp, both = best["bn"], best["bnp"], best["bnp_gn"]
    return (
        _early("BNP alone converges faster than BN before the first drop", bnp, bn),
        higher("BN gains more from the drops than BNP alone", _GAINED, bn, bnp),
        higher("BNP+GN gains more from the drops than BNP alone", _GAINED, both, bnp),
    )


def _early(claim: str, one: Trained, bn: Trained) -> Check:
    """Check the mean accuracy before the first drop, which lagging statistics lower for BN."""
    check = higher(claim, _EARLY, one, bn)
    if not check.holds:
        return check
    found = f"{check.found}; BN is tested with running statistics, which lag at high rates"
    return replace(check, found=found, holds=None)


def _level(best: dict[str, Trained]) -> tuple[Check, ...]:
    claim = f"after the drops BNP+GN is comparable to BN (within {_LEVEL} points)"
    return (comparable(claim, best["bnp_gn"], best["bn"], points=_LEVEL),)


def _a_little_lower(best: dict[str, Trained]) -> tuple[Check, ...]:
    claim = (
        f"after the drops BNP+GN is slightly lower than BN (lower, by up to {_SLIGHT:g} points)"
    )
    return (slightly_lower(claim, best["bnp_gn"], best["bn"], points=_SLIGHT),)


def _panel(
    name: str, regime: ResNetRegime, claim: str, parts: tuple[Checks, ...], *choices: str
) -> Experiment:
    def cells(scale: Scale) -> tuple[ResNetTraining, ...]:
        return regimes.cells(regime, scale)

    def checks(best: dict[str, Trained]) -> tuple[Check, ...]:
        return tuple(check for part in parts for check in part(best))

    return Experiment(
        name=f"lange2022.{name}",
        title=f"Training with BN, GN and BNP: {regime.paper.network}",
        claim=claim,
        choices=(_stand_in(regime), *_CHOICES, *choices),
        cells=cells,
        big=True,
        draw=partial(draw, regime=regime),
        judge=partial(judge, regime=regime, checks=checks),
    )


def _left_out(regime: ResNetRegime, cell: ResNetTraining) -> tuple[str, ...]:
    """Say what a training at scale small has less of than the paper's."""
    paper, small = regime.paper, regime.small
    left = [
        f"{paper.network}: {small.network} at this scale",
        f"{paper.epochs} epochs: {cell.steps} steps, "
        f"{cell.steps * cell.batch_size / IMAGES:.2g} epochs",
        "crops and reflections: none",
        f"the whole test set: {cell.test_samples:,} images",
    ]
    if cell.batch_size != paper.batch_size:
        left.append(f"batches of {paper.batch_size}: of {cell.batch_size}")
    if cell.group_size != paper.group_size:
        left.append(f"groups of {paper.group_size} channels: of {cell.group_size}")
    return tuple(left)


def _stand_in(regime: ResNetRegime) -> str:
    small = regime.small
    return (
        f"small: {small.network}, {small.steps} steps of {small.batch_size} images, drops at the "
        f"paper's shares of the training, warm-up over {regimes.SMALL_WARMUP:.0%} of it"
    )


_CHOICES = (
    "smoke: digits; only paper takes the paper's images, from --data-dir, with its crops and "
    "reflections; images standardised by channel",
    "each method at its best rate, by mean training loss of the second half of the steps over "
    "eight seeds (paper: five), of three half decades and, where it is none of these (small, BNP "
    "alone on the pre-activation network), the paper's; the legend names it, with the final "
    "accuracy at the paper's rate where that is another",
    "BNP is Algorithms 2 and 3 to the letter; convolutions have no bias where a normaliser "
    "follows, so that BNP scales them by second moments and does not centre",
    "early is the mean of test accuracies up to the first drop; what is gained from the drops, "
    "final accuracy less that at the first drop; higher means: by more than Student's t at 95 %, "
    "seed by seed; comparable and slightly lower: the difference lies within the stated points by "
    "the same test; undecided: it may lie within or without",
)
# Appendix B, of the networks for CIFAR.
_WARMUP = "paper: GN and BNP+GN warm up over 1 epoch; the source tuned 1 or 2 for each network"
_ALONE = (
    "BNP alone: the paper states neither initial weights nor warm-up; here those of BN, and at "
    "depth 110, where logits would start near 10⁷, the initial weights of BNP+GN"
)

EXPERIMENTS = (
    _panel(
        "fig6a",
        regimes.ORIGINAL,
        "BNP+GN converges faster than BN before the first drop of the learning rate and is "
        "comparable after it; both outperform GN. BNP alone gains little from the drops.",
        (_combined, _level, _alone),
        "164 epochs of He et al. are taken as 160",
        _WARMUP,
        _ALONE,
    ),
    _panel(
        "fig6b",
        regimes.PREACTIVATION,
        "BNP+GN converges faster than BN before the first drop of the learning rate and is "
        "slightly lower after it; both outperform GN. BNP alone gains little from the drops.",
        (_combined, _a_little_lower, _alone),
        _WARMUP,
        _ALONE,
    ),
    _panel(
        "fig7",
        regimes.RESNET18,
        "BNP+GN converges faster than BN before the first drop of the learning rate and is "
        "slightly lower after the second; both outperform GN.",
        (_combined, _a_little_lower),
        "paper: ImageNet in folders by class, read by torchvision; 100 epochs, for the paper "
        "names only the drops at 30, 60 and 90; no warm-up, as Appendix B has all of these models "
        "start at 0.1; small warms up as in Fig. 6",
    ),
)
