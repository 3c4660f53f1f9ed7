"""Figures of "A Mean Field Theory of Batch Normalization" [yang2019]."""

from equipoise_papers.yang2019.fig1 import covariances, eigenvalues, gradients, symmetry
from equipoise_papers.yang2019.first_steps import fig3
from equipoise_papers.yang2019.trainability import fig2, fig4
from equipoise_papers.yang2019.vgg import fig5, fig6

EXPERIMENTS = (
    eigenvalues.EXPERIMENT,
    gradients.EXPERIMENT,
    symmetry.EXPERIMENT,
    covariances.EXPERIMENT,
    *fig2.EXPERIMENTS,
    fig3.EXPERIMENT,
    *fig4.EXPERIMENTS,
    fig5.EXPERIMENT,
    fig6.EXPERIMENT,
)

# Whole figures: what they show, and their panels.
FIGURES = {
    "yang2019.fig1": (
        "Theory and random networks: eigenvalues, gradients, symmetry breaking",
        tuple(f"yang2019.fig1{panel}" for panel in "abcd"),
    ),
    "yang2019.fig2": (
        "How deep ReLU networks train, over batch sizes: SGD, sub-batches, RMSProp, other data",
        tuple(f"yang2019.fig2{panel}" for panel in "abcd"),
    ),
    "yang2019.fig4": (
        "Three ways to balanced gradients, and how deep each lets networks train",
        tuple(f"yang2019.fig4{panel}" for panel in "abcd"),
    ),
}

__all__ = ["EXPERIMENTS", "FIGURES"]
