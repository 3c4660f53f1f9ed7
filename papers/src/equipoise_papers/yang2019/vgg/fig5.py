"""Fig. 5: VGG19 over learning rate and β or ε, at the best value of the other one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from equipoise_papers.reproduction.experiment import Experiment
from equipoise_papers.reproduction.record import Verdict
from equipoise_papers.yang2019.vgg import matrices as vgg_matrices
from equipoise_papers.yang2019.vgg import scores as vgg_scores
from equipoise_papers.yang2019.vgg.sweep import Accuracies, Cell, cells, run

if TYPE_CHECKING:
    from matplotlib.figure import FigureBase

FAMILY = "yang2019.vgg"
CHOICES = (
    "smoke trains on digits, small on Fashion-MNIST at 14×14 pixels, a stand-in for CIFAR-100 "
    "without augmentation, with VGG19 an eighth as wide (8 to 64 channels) for 80 steps; its "
    "10, 20, 40 and 80 steps stand for the source's epochs 1 to 80, and its training accuracy is "
    "that of the last ten steps; so few steps need running statistics with momentum 0.3 instead "
    "of 0.1",
    "small: learning rates 0.001, 0.01, 0.05, 0.2; β and ε 0, 0.05, 0.2, 1, every pair; 3 seeds",
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
EARLY = 2


def draw(figure: FigureBase, results: Mapping[Cell, Accuracies]) -> None:
    """Draw matrices of medians over seeds, maximal over what they do not show."""
    data = next(iter(results)).data
    vgg_matrices.draw(
        figure,
        results,
        f"VGG19 on {data}: median accuracy in %, best over the other of β and ε",
        lambda parameter, cell: True,
    )


def judge(results: Mapping[Cell, Accuracies]) -> Verdict:
    """Whether β or ε above 0 trains faster at first; beyond the source, that it does no harm."""
    cell = next(iter(results))
    if cell.data == "digits":
        return Verdict((), left_out=("smoke trains a few steps only; it is not judged",))
    return Verdict(vgg_scores.checks(results, early=EARLY), left_out=left_out(cell))


def left_out(cell: Cell) -> tuple[str, ...]:
    """What a scale below the paper's lacks."""
    if cell.data == "cifar100":
        return ()
    return ("CIFAR-100, VGG19's full width and 80 epochs: no colour images at this scale",)


EXPERIMENT: Experiment[Any, Any] = Experiment(
    name="yang2019.fig5",
    family=FAMILY,
    title="VGG19 with batch norm: learning rate against initial β or ε, best over the other",
    claim="Initialising β above 0, or setting ε above 0, has a positive effect on VGG19 with "
    "batch norm: training is faster in its early epochs.",
    choices=CHOICES,
    record=Accuracies,
    cells=cells,
    run=run,
    draw=draw,
    judge=judge,
)
