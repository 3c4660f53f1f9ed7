"""Figs. 3 to 5: training curves of every method, and whether the paper's order holds."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from equipoise_papers.experiments.experiment import Experiment
from equipoise_papers.experiments.verdict import Check, Verdict, ours
from equipoise_papers.lange2022 import curves, regimes
from equipoise_papers.lange2022.best import (
    Best,
    ahead,
    best_of,
    comparable,
    does_not_train,
    faster_at_first,
    more_accurate,
    not_behind,
    not_less_accurate,
    slightly_less_accurate,
)
from equipoise_papers.lange2022.lengths import IMAGES
from equipoise_papers.lange2022.regimes import Regime
from equipoise_papers.lange2022.training import Run, Training

if TYPE_CHECKING:
    from matplotlib.figure import FigureBase

FAMILY = "lange2022.trainings"
CHOICES = (
    "smoke trains on scikit-learn's digits, small on Fashion-MNIST, which stands in for the "
    "paper's MNIST and CIFAR-10; only paper takes CIFAR-10, from --data-dir",
    "images in [0, 1]; batch norm with TensorFlow's ε = 0.001 and momentum 0.99; Glorot uniform",
    "each method at its best rate of a grid of half decades, by mean training loss of the second "
    "half of the steps over three seeds; the figure names it, with the mean loss at the "
    "paper's rate where that is another",
    "small: at that rate, the methods that the paper's sentences compare are trained with eight "
    "seeds in Figs. 3, 4 (left) and 5 (right), of which the last five had no part in the choice, "
    "and BNP and 4 Things at batch 2, which eight do not tell apart, with 24; elsewhere three",
    "BNP is ours (bias-corrected, exact variance), BNP (paper) Algorithms 2 and 3 to the letter",
    "controls that the paper lacks: standardised inputs, Adam, BNP with Adam",
    "4 Things: virtual batches of 16 at 128 samples, groups of 4 channels below; Adam",
    "the vanilla CNN takes Adam at batch 128 and SGD below, as Appendix B has it; Section 5 does "
    "not name the batch",
    "batch renormalisation's schedule is shortened in proportion to the steps",
    "at batch 1 BN and Renorm see each sample twice, which leaves mean and variance those of one; "
    "PyTorch refuses them otherwise",
    "ahead means: a lower training loss by more than Student's t at 95 %, seed by seed; level: at "
    "most 5 % above the other's mean loss; comparable: accuracies within the stated points, by "
    "that test; undecided: the interval holds both, or test accuracies say the opposite",
    "does not train means: a loss above 0.9 log 10 and a test accuracy below 20 %",
)
# Two methods are level if their accuracies differ by no more than this many points.
_LEVEL = 1.5
# Runs of which the paper's Fig. 3 shows means.
_RUNS = 5
# "Just below" and "slightly": by up to as many.
_SLIGHTLY = 3.0


Checks = Callable[[Mapping[Training, Run]], tuple[Check, ...]]


def _judge(results: Mapping[Training, Run], checks: Checks) -> Verdict:
    if any(cell.data == "digits" for cell in results):
        return Verdict((), left_out=("smoke trains a few steps only; it is not judged",))
    sets: dict[str, dict[Training, Run]] = {cell.data: {} for cell in results}
    for cell, run in results.items():
        sets[cell.data][cell] = run
    if any(data.startswith("cifar") for data in sets):
        # Each set of images has best rates, and an answer, of its own.
        found = [
            replace(check, claim=f"{data}: {check.claim}" if len(sets) > 1 else check.claim)
            for data, mine in sets.items()
            for check in checks(mine)
        ]
        return Verdict(tuple(found))
    return Verdict(checks(results), stand_in(results), fidelity="stand-in data")


def stand_in(results: Iterable[Training]) -> tuple[str, ...]:
    """Say what trainings at scale small have less of than the paper's."""
    cells = tuple(results)
    first = cells[0]
    theirs = "MNIST and CIFAR-10" if first.batch_size == 60 else "CIFAR-10"
    seeds = len({cell.seed for cell in cells})
    tests = max(cell.test_samples for cell in cells)
    lengths = sorted({(cell.batch_size, cell.steps) for cell in cells})
    epochs = [steps * batch / IMAGES for batch, steps in lengths]
    trained = ", ".join(f"{steps:,} of {batch}" for batch, steps in lengths)
    length = " to ".join(f"{share:.2g}" for share in dict.fromkeys((min(epochs), max(epochs))))
    return (
        f"{theirs}: Fashion-MNIST at this scale, no colour images",
        f"trainings over epochs, how many the paper does not state: {length} epochs (steps of "
        f"samples: {trained})",
        f"the whole test set: {tests:,} images",
        *([f"means of 5 runs, as Fig. 3 states: of {seeds}"] if seeds < _RUNS else []),
    )


def _batch_60(best: dict[str, Best]) -> tuple[Check, ...]:
    bnp, bn = best["bnp_paper"], best["bn"]
    return (
        comparable(f"BN and BNP are comparable (within {_LEVEL} points)", bnp, bn, points=_LEVEL),
        ahead("BNP is ahead of the vanilla network", bnp, best["vanilla"]),
        ahead("BN is ahead of the vanilla network", bn, best["vanilla"]),
        ahead("BNP is ahead of LN", bnp, best["ln"]),
        ahead("BN is ahead of LN", bn, best["ln"]),
        ahead("LN is ahead of the vanilla network", best["ln"], best["vanilla"]),
        faster_at_first("BN is faster than BNP at the beginning", bn, bnp),
        ahead("BNP outperforms BN later", bnp, bn),
        ours(ahead("BNP gains more than standardised inputs", bnp, best["standardised"])),
    )


def _batch_6(best: dict[str, Best]) -> tuple[Check, ...]:
    bnp = best["bnp_paper"]
    return (
        ahead("BNP is ahead of BN", bnp, best["bn"]),
        ahead("BNP is ahead of the vanilla network", bnp, best["vanilla"]),
        not_behind("BNP is level with Renorm or better", bnp, best["renorm"]),
        not_behind("BNP is level with LN or better", bnp, best["ln"]),
        ahead("Renorm is ahead of BN", best["renorm"], best["bn"]),
        ahead("LN is ahead of BN", best["ln"], best["bn"]),
        comparable(
            f"BNP and Renorm reach the same final accuracy (within {_LEVEL} points)",
            bnp,
            best["renorm"],
            points=_LEVEL,
        ),
        ours(ahead("BNP gains more than standardised inputs", bnp, best["standardised"])),
    )


def _batch_1(best: dict[str, Best]) -> tuple[Check, ...]:
    bnp = best["bnp_paper"]
    return (
        does_not_train("BN does not train", best["bn_copies"]),
        does_not_train("BN Renorm does not train", best["renorm_copies"]),
        ahead("BNP is ahead of the vanilla network", bnp, best["vanilla"]),
        ahead("LN is ahead of the vanilla network", best["ln"], best["vanilla"]),
        *(
            slightly_less_accurate(
                f"{name}'s final accuracy is just below the vanilla network's (by up to "
                f"{_SLIGHTLY:g} points)",
                one,
                best["vanilla"],
                points=_SLIGHTLY,
            )
            for name, one in (("BNP", bnp), ("LN", best["ln"]))
        ),
        ours(ahead("BNP gains more than standardised inputs", bnp, best["standardised"])),
    )


def _cnn_1(best: dict[str, Best]) -> tuple[Check, ...]:
    bnp = best["bnp_paper"]
    return (
        does_not_train("BN does not train", best["bn_copies"]),
        does_not_train("BN Renorm does not train", best["renorm_copies"]),
        ahead("BNP is ahead of the vanilla network", bnp, best["vanilla"]),
        more_accurate(
            "BNP reaches a higher accuracy than the vanilla network", bnp, best["vanilla"]
        ),
        ahead("BNP is significantly ahead of BN w/ 4 Things", bnp, best["four_things"]),
        ahead(
            "the vanilla network is ahead of BN w/ 4 Things", best["vanilla"], best["four_things"]
        ),
    )


def _cnn_128(best: dict[str, Best]) -> tuple[Check, ...]:
    bnp, bn, things = best["bnp_paper"], best["bn"], best["four_things"]
    # As in the paper, the vanilla network is trained with Adam here.
    vanilla = best["adam"]
    return (
        *(
            comparable(
                f"BN and {one.label} are comparable (within {_LEVEL} points)",
                one,
                bn,
                points=_LEVEL,
            )
            for one in (bnp, things)
        ),
        faster_at_first("BN is faster than BNP at the beginning", bn, bnp),
        faster_at_first("BN w/ 4 Things is faster than BN at the beginning", things, bn),
        ahead("BN is ahead of the vanilla network (Adam)", bn, vanilla),
        ahead("BN w/ 4 Things is ahead of the vanilla network (Adam)", things, vanilla),
        ahead("BNP is ahead of the vanilla network (Adam)", bnp, vanilla),
        *(
            ours(not_behind(f"{name} is level with BN or better in the second half", one, bn))
            for name, one in (("BNP", bnp), ("BN w/ 4 Things", things))
        ),
        ours(ahead("BNP is ahead of the vanilla network (SGD)", bnp, best["vanilla"])),
        ours(ahead("our BNP is ahead of the paper's", best["bnp"], bnp)),
        ours(not_behind("our BNP is level with BN or better", best["bnp"], bn)),
    )


def _cnn_2(best: dict[str, Best]) -> tuple[Check, ...]:
    bnp = best["bnp_paper"]
    return (
        ahead("BNP is significantly ahead of BN", bnp, best["bn"]),
        ahead("BNP is significantly ahead of BN Renorm", bnp, best["renorm"]),
        ahead("BNP is significantly ahead of BN w/ 4 Things", bnp, best["four_things"]),
        *(
            ahead(f"BN underperforms {best[method].label}", best[method], best["bn"])
            for method in ("vanilla", "renorm", "four_things")
        ),
    )


def _as_small_as(results: Mapping[Training, Run]) -> tuple[Check, ...]:
    of_batch = {
        size: best_of({cell: run for cell, run in results.items() if cell.batch_size == size})
        for size in (regimes.CNN_4.batch_size, regimes.CNN_3.batch_size)
    }
    four, three = of_batch.values()
    words = f"works well at batch {{}}: as accurate as the vanilla network, or at most {_LEVEL:g} "
    words += "points less"
    # With so few samples a training loss under batch norm contains the noise of its statistics.
    loss = "training loss at batch {} level with the vanilla network's or lower"
    accuracy, losses = [], []
    for name, method, size, best in (("BN", "bn", 4, four), ("Renorm", "renorm", 3, three)):
        pair = best[method], best["vanilla"]
        accuracy.append(not_less_accurate(f"{name} {words.format(size)}", *pair, points=_LEVEL))
        losses.append(ours(not_behind(f"{name}: {loss.format(size)}", *pair)))
    return (*accuracy, *losses)


def _draw(figure: FigureBase, results: Mapping[Training, Run], table: tuple[Regime, ...]) -> None:
    shown = list(regimes.parts(table, results))
    places = figure.subfigures(1, len(shown), squeeze=False).flat if len(shown) > 1 else [figure]
    between = ",\n" if len(shown) > 1 else ", "
    for place, part in zip(places, shown, strict=True):
        title = f"{part.regime.name}{between}{part.data}"
        curves.draw(place, part.results, title, part.regime.reported(part.data))


def _experiment(
    name: str, table: tuple[Regime, ...], title: str, claim: str, checks: Checks
) -> Experiment:
    return Experiment(
        name=f"lange2022.{name}",
        family=FAMILY,
        title=title,
        claim=claim,
        choices=CHOICES,
        cells=partial(regimes.cells_of, table),
        draw=partial(_draw, table=table),
        judge=partial(_judge, checks=checks),
    )


def _panel(
    name: str,
    regime: Regime,
    claim: str,
    checks: Callable[[dict[str, Best]], tuple[Check, ...]],
) -> Experiment:
    title = f"Training with and without BNP: {regime.name}"
    return _experiment(name, (regime,), title, claim, lambda results: checks(best_of(results)))


EXPERIMENTS = (
    _panel(
        "fig3",
        regimes.FC_60,
        "At batch 60 BN and BNP are comparable, and both outperform the vanilla network and LN.",
        _batch_60,
    ),
    _panel(
        "fig4a",
        regimes.FC_6,
        "At batch 6 BNP outperforms BN and the vanilla network; Renorm and LN are close to BNP.",
        _batch_6,
    ),
    _panel(
        "fig4b",
        regimes.FC_1,
        "At batch 1 BN and Renorm do not train; BNP and LN converge much faster than vanilla.",
        _batch_1,
    ),
    _panel(
        "fig4c",
        regimes.CNN_1,
        "At batch 1 BNP trains the CNN faster than vanilla; BN w/ 4 Things underperforms.",
        _cnn_1,
    ),
    _panel(
        "fig5a",
        regimes.CNN_128,
        "At batch 128 BN and BNP are comparable, BNP a little slower at first; both outperform "
        "the vanilla network.",
        _cnn_128,
    ),
    _panel(
        "fig5b",
        regimes.CNN_2,
        "At batch 2 BNP significantly outperforms BN, Renorm and BN w/ 4 Things.",
        _cnn_2,
    ),
    _experiment(
        "batch3and4",
        (regimes.CNN_4, regimes.CNN_3),
        "Batch norm at batch 4 and batch renormalisation at batch 3: 5-layer CNN",
        "In the CNN, BN and Renorm work well for batches as small as 4 and 3.",
        _as_small_as,
    ),
)
