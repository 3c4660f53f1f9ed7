"""The figures, tables and statements of each paper, and which experiments reproduce them."""

from __future__ import annotations

from dataclasses import dataclass

from equipoise_papers.report import statements
from equipoise_papers.report.statements import DecidedByTest


@dataclass(frozen=True, slots=True)
class Row:
    """A figure, a table or a statement of a paper.

    Args:
        label: The paper's own, such as ``Fig. 2a``.
        shows: What the paper has there, in our words.
        experiments: Names of our experiments that reproduce it.
        see: Labels of the rows whose experiments show this one too.
        reason: Why there is no experiment of its own; empty exactly if there is one.
        tested: Statements that tests decide instead of an experiment.
        unavailable: Whether nobody here can test it, for want of the text or the data.
    """

    label: str
    shows: str
    experiments: tuple[str, ...] = ()
    see: tuple[str, ...] = ()
    reason: str = ""
    tested: tuple[DecidedByTest, ...] = ()
    unavailable: bool = False


_SCHEMATIC = "A drawing that explains a notation; it measures nothing."

YANG2019 = (
    Row(
        "Fig. 1a",
        "Eigenvalues of the backward Jacobian over the batch size, ReLU: theory and 200 networks "
        "of width 1000.",
        ("yang2019.fig1a",),
    ),
    Row(
        "Fig. 1b",
        "Size of gradients over depth for several batch sizes, ReLU: theory and networks.",
        ("yang2019.fig1b",),
    ),
    Row(
        "Fig. 1c",
        "Variances of the covariance's entries over α for α-ReLU: the symmetry breaks.",
        ("yang2019.fig1c",),
    ),
    Row(
        "Fig. 1d",
        "Covariance matrices below and above the symmetry breaking.",
        ("yang2019.fig1d",),
    ),
    Row(
        "Fig. 2a",
        "Test accuracy on MNIST over depth and batch size, ReLU, SGD, 10 epochs; 16ξ overlaid.",
        ("yang2019.fig2a",),
    ),
    Row(
        "Fig. 2b",
        "The same at batch 1000, with statistics of sub-batches of size B.",
        ("yang2019.fig2b",),
    ),
    Row("Fig. 2c", "The same as Fig. 2a with RMSProp.", ("yang2019.fig2c",)),
    Row("Fig. 2d", "The same on CIFAR-10, 50 epochs.", ("yang2019.fig2d",)),
    Row(
        "Fig. 3",
        "Norms of weights (a), of gradients by pre-activations (b) and by weights (c) per layer "
        "during the first 10 steps, at several depths, ReLU.",
        ("yang2019.fig3",),
    ),
    Row(
        "Fig. 4a",
        "Test accuracy on MNIST over depth and γ, tanh, with the predicted trainable depth.",
        ("yang2019.fig4a",),
    ),
    Row("Fig. 4b", "The same over β, ReLU.", ("yang2019.fig4b",)),
    Row("Fig. 4c", "The same over ε, tanh.", ("yang2019.fig4c",)),
    Row("Fig. 4d", "The same over ε, ReLU with β = 2.", ("yang2019.fig4d",)),
    Row(
        "Fig. 5",
        "VGG19 with batch norm on CIFAR-100: median accuracy over learning rate and initial β, "
        "and over learning rate and ε, best of the unseen parameter, at several epochs.",
        ("yang2019.fig5",),
    ),
    Row(
        "Fig. 6",
        "The same with the unseen parameter at its default of 0.",
        ("yang2019.fig6",),
    ),
    Row(
        "Theorems",
        "Theorems 1 to 9 and those of the appendix: fixed points, eigenvalues and the explosion "
        "of gradients.",
        reason="Judged by tests, which hold the library's formulas against slow transcriptions, "
        "closed forms and random networks.",
        tested=statements.YANG2019,
    ),
)

SANTURKAR2018 = (
    Row(
        "Fig. 1",
        "VGG on CIFAR-10 with and without BN: training (a) and test accuracy (b), and "
        "distributions of layer inputs over training (c).",
        ("santurkar2018.fig1",),
    ),
    Row(
        "Fig. 2",
        "Training of standard, BN and noisy BN networks, beside their distributions.",
        ("santurkar2018.fig2",),
    ),
    Row(
        "Fig. 3a",
        "Internal covariate shift of VGG: ℓ₂ difference and cosine of gradients.",
        ("santurkar2018.fig3",),
    ),
    Row(
        "Fig. 3b",
        "The same for the 25-layer deep linear network.",
        ("santurkar2018.fig3dln",),
    ),
    Row(
        "Fig. 4",
        "Landscape of VGG along the gradient: loss (a), change of the gradient (b), effective "
        "β-smoothness (c).",
        ("santurkar2018.fig4",),
    ),
    Row(
        "Random directions",
        "Landscape of VGG along random directions, of which the paper says a sentence (Section "
        "3.2) and shows no figure.",
        ("santurkar2018.random",),
    ),
    Row(
        "Fig. 5",
        "The two networks that the theory compares: with and without a BN layer.",
        reason=_SCHEMATIC,
    ),
    Row(
        "Fig. 6",
        "Internal covariate shift in further layers of both networks.",
        see=("Fig. 3a", "Fig. 3b"),
        reason="Fig. 3 with more layers. Ours draws all layers together, then three of them.",
    ),
    Row(
        "Fig. 7",
        "Change of mean and variance of activations between steps, under noisy BN.",
        ("santurkar2018.fig7",),
    ),
    Row(
        "Fig. 8",
        "Distributions of activations in the deep linear network.",
        ("santurkar2018.fig8",),
    ),
    Row("Fig. 9", "Landscape of the deep linear network.", ("santurkar2018.fig9",)),
    Row(
        "Fig. 10a",
        "Change of VGG's gradient over the distance moved along it.",
        ("santurkar2018.fig10",),
    ),
    Row("Fig. 10b", "The same for the deep linear network.", ("santurkar2018.fig10dln",)),
    Row(
        "Fig. 11",
        "VGG under ℓp normalisation: training and landscape.",
        ("santurkar2018.fig11",),
    ),
    Row(
        "Fig. 12",
        "The deep linear network under ℓp normalisation: training and landscape.",
        ("santurkar2018.fig12",),
    ),
    Row("Fig. 13a", "Training of VGG under ℓp normalisation.", ("santurkar2018.fig13",)),
    Row(
        "Fig. 13b",
        "Training of the deep linear network under ℓp normalisation.",
        ("santurkar2018.fig13dln",),
    ),
    Row(
        "Fig. 14",
        "Histograms of VGG's activations under different normalisations.",
        ("santurkar2018.fig14",),
    ),
    Row(
        "Theorems",
        "Theorems 4.1 to 4.4 and C.1, Observation 4.3, Lemma 4.5 and the facts of Appendix C.",
        ("santurkar2018.theorems",),
    ),
)

LANGE2022 = (
    Row(
        "Fig. 1",
        "Which parts of a padded feature map an element of a kernel passes over.",
        reason=_SCHEMATIC,
    ),
    Row(
        "Fig. 2",
        "Which part of the feature map is left out where the channel's mean and variance stand "
        "in for those that an element of the kernel sees.",
        ("lange2022.fig2",),
    ),
    Row(
        "Fig. 3",
        "Fully connected network at batch 60, MNIST (left) and CIFAR-10 (right): vanilla, BN, LN "
        "and BNP.",
        ("lange2022.fig3",),
    ),
    Row(
        "Fig. 4, left",
        "Fully connected network on CIFAR-10 at batch 6: vanilla, BN, Renorm, LN and BNP.",
        ("lange2022.fig4a",),
    ),
    Row(
        "Fig. 4, right, FC",
        "Fully connected network on CIFAR-10 at batch 1: vanilla, LN and BNP.",
        ("lange2022.fig4b",),
    ),
    Row(
        "Fig. 4, right, CNN",
        "Five-layer CNN on CIFAR-10 at batch 1: vanilla, BN with four things and BNP.",
        ("lange2022.fig4c",),
    ),
    Row(
        "Fig. 5, left",
        "Five-layer CNN on CIFAR-10 at batch 128: vanilla, BN, BN with four things and BNP.",
        ("lange2022.fig5a",),
    ),
    Row("Fig. 5, right", "The same at batch 2, with Renorm.", ("lange2022.fig5b",)),
    Row(
        "Batches of 3 and 4",
        "The same at batch 4 with BN and at batch 3 with Renorm, of which the paper says a "
        "sentence and shows no figure.",
        ("lange2022.batch3and4",),
    ),
    Row(
        "Fig. 6, left",
        "ResNet-110 on CIFAR-10: BN, GN, BNP and BNP+GN.",
        ("lange2022.fig6a",),
    ),
    Row(
        "Fig. 6, right",
        "Pre-activation ResNet-110 on CIFAR-100: BN, GN, BNP and BNP+GN.",
        ("lange2022.fig6b",),
    ),
    Row("Fig. 7", "ResNet-18 on ImageNet: BN, GN and BNP+GN.", ("lange2022.fig7",)),
    Row(
        "Fig. 8",
        "Training with and without BNP (left), condition number of the Hessian and of the "
        "preconditioned one (centre), and of D (right).",
        ("lange2022.fig8",),
    ),
    Row(
        "Fig. 9",
        "Time of training with BN and with BNP at batch 16, 256 and 512.",
        ("lange2022.fig9",),
    ),
    Row(
        "Table 1",
        "Average time of an epoch with BN and with BNP at batch 16, 256 and 512.",
        ("lange2022.table1",),
    ),
    Row(
        "Table 2",
        "Best learning rates of fully connected networks.",
        ("lange2022.table2",),
    ),
    Row("Table 3", "Best learning rates of CNNs and ResNets.", ("lange2022.table3",)),
    Row(
        "Theorems",
        "Theorems 1, 3 and 4, Propositions 2, 5 to 7 and 9 to 11, Lemma 8: convergence, Hessian "
        "blocks, and what preconditioning does to condition numbers.",
        reason="Judged by tests, which hold BNP against explicit PPᵀ, Hessian blocks against "
        "automatic differentiation, and show each erratum by a counterexample; Fig. 8 measures "
        "what Theorem 4 promises.",
        tested=statements.LANGE2022,
    ),
)

YU2020 = (
    Row(
        "Theorem 1",
        "The average matrix after RUN has the same eigenvectors, and its large eigenvalues "
        "shrink most (supplement, section 1).",
        ("yu2020.theorem1",),
    ),
    Row(
        "Back-propagation",
        "The gradient of RUN, formulas 18 to 26 (supplement, section 2).",
        reason="A derivation without numbers, judged by tests, which compare the library's "
        "backward with automatic differentiation and finite differences.",
        tested=statements.YU2020,
    ),
    Row(
        "Speed",
        "330 times as fast as Newton–Schulz in full bilinear pooling, 5,400 times as fast as an "
        "SVD in compact pooling (abstract of the preprint; the published one names no factor, "
        "only a “substantial” and a “significant” gain).",
        ("yu2020.speed",),
    ),
    Row(
        "Accuracy",
        "Accuracy comparable to other normalisations on four public benchmarks (abstract).",
        ("yu2020.accuracy",),
    ),
    Row(
        "Figures and tables",
        "Those of the main paper: how many there are and what they show is not known to us.",
        reason="The main paper's body was not available; the supplement has no figure and no "
        "table, and no source that was read states benchmarks, backbone, accuracies or "
        "hardware. Nothing is compared with numbers that we have not seen.",
        unavailable=True,
    ),
)
