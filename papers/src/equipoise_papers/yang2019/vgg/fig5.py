"""Fig. 5: VGG19 over learning rate and β or ε, at the best value of the other one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from equipoise_papers.experiments.experiment import Experiment
from equipoise_papers.experiments.verdict import Verdict
from equipoise_papers.yang2019.vgg import matrices, scores
from equipoise_papers.yang2019.vgg.scores import Chosen, every_cell
from equipoise_papers.yang2019.vgg.training import Accuracies, VGGTraining, cells

if TYPE_CHECKING:
    from matplotlib.figure import FigureBase

FAMILY = "yang2019.vgg"
CHOICES = (
    "smoke trains on digits, small on Fashion-MNIST at 14×14 pixels, a stand-in for CIFAR-100 "
    "without augmentation, with VGG19 an eighth as wide (8 to 64 channels) for 80 steps; its "
    "10, 20, 40 and 80 steps stand for the source's epochs 1 to 80, and its training accuracy is "
    "that of the last ten steps; so few steps need running statistics with momentum 0.3 instead "
    "of 0.1",
    "small: learning rates 0.001, 0.01, 0.05, 0.2; β and ε 0, 0.05, 0.2, 1, every pair; 8 seeds",
    "not stated in the source: batch 128, momentum 0.9, weight decay 0.0005, constant rate, "
    "crops with 4 pixels of margin and reflections, one linear layer after the convolutions, "
    "He's initialisation by fan-out",
    "ε = 0 stands for PyTorch's default of 10⁻⁵; training accuracy is that of the epoch's own "
    "batches; a training that diverged is as good as guessing from there on, as in Fig. 2",
    "higher means: by more than Student's t at 95 % over seeds; undecided: by less, or lower by "
    "less; ± is one standard error",
    "each seed is scored at the settings that are best by the other seeds, so that a maximum over "
    "more settings above 0 than at 0 is no bias; but such scores depend on one another: simulated "
    "without any effect, 9 % (3 seeds) or 14 % (8) of comparisons come out higher instead of 5 %, "
    "and up to 22 % or 39 % where settings differ for reasons that seeds share, such as what "
    "suits the 500 test images",
    "the first two recorded accuracies are early",
)
# How many of the recorded epochs are early.
_EARLY = 2


def draw(
    figure: FigureBase,
    results: Mapping[VGGTraining, Accuracies],
    chosen: Chosen = every_cell,
    other: str = "best over the other of β and ε",
) -> None:
    """Draw matrices of medians over seeds.

    Args:
        figure: Empty.
        results: Finished cells.
        chosen: Whether a cell belongs to the matrices over a parameter.
        other: Value of the parameter that a matrix does not show, for the title.
    """
    data = next(iter(results)).data
    matrices.draw(figure, results, f"VGG19 on {data}: median accuracy in %, {other}", chosen)


def judge(results: Mapping[VGGTraining, Accuracies], chosen: Chosen = every_cell) -> Verdict:
    """Check that β or ε above 0 trains faster at first, and, beyond the source, does no harm.

    Args:
        results: All cells.
        chosen: Whether a cell belongs to the comparison over a parameter.
    """
    cell = next(iter(results))
    if cell.data == "digits":
        return Verdict((), left_out=("smoke trains a few steps only; it is not judged",))
    rates = len({cell.rate for cell in results})
    shifts, epsilons = len({cell.beta for cell in results}), len({cell.eps for cell in results})
    left_out = (
        "CIFAR-100, VGG19's full width and 80 epochs: Fashion-MNIST at "
        f"{cell.side} × {cell.side} pixels, an eighth of the width and "
        f"{cell.epochs[-1] * cell.epoch} steps at this scale, no colour images",
        "data augmentation: none",
        f"the grid: {rates} learning rates, {shifts} of β and {epsilons} of ε",
        f"the whole validation set: {cell.test_samples} images",
        f"running statistics: momentum {cell.norm_momentum:g} for so few steps",
    )
    checks = scores.checks(results, early=_EARLY, chosen=chosen)
    if cell.data == "cifar100":
        return Verdict(checks)
    return Verdict(checks, left_out, fidelity="stand-in data")


EXPERIMENT = Experiment(
    name="yang2019.fig5",
    family=FAMILY,
    title="VGG19 with batch norm: learning rate against initial β or ε, best over the other",
    claim="Initialising β above 0, or setting ε above 0, has a positive effect on VGG19 with "
    "batch norm: training is faster in its early epochs.",
    choices=CHOICES,
    cells=cells,
    draw=draw,
    judge=judge,
)
