"""Figures and tables of "Batch Normalization Preconditioning" [lange2022]."""

from equipoise_papers.lange2022 import fig2, fig8, panels, tables
from equipoise_papers.lange2022.resnets import panels as resnet_panels
from equipoise_papers.lange2022.timing import fig9, table1

EXPERIMENTS = (
    fig2.EXPERIMENT,
    *panels.EXPERIMENTS,
    *resnet_panels.EXPERIMENTS,
    fig8.EXPERIMENT,
    fig9.EXPERIMENT,
    table1.EXPERIMENT,
    *tables.EXPERIMENTS,
)

# Whole figures: what they show, and their panels.
FIGURES = {
    "lange2022.fig4": (
        "Small batches: fully connected at 6 and 1, CNN at 1",
        ("lange2022.fig4a", "lange2022.fig4b", "lange2022.fig4c"),
    ),
    "lange2022.fig5": (
        "Five-layer CNN at batch 128 and 2",
        ("lange2022.fig5a", "lange2022.fig5b"),
    ),
    "lange2022.fig6": (
        "Residual networks: ResNet-110 on CIFAR-10, with pre-activation on CIFAR-100",
        ("lange2022.fig6a", "lange2022.fig6b"),
    ),
}

__all__ = ["EXPERIMENTS", "FIGURES"]
