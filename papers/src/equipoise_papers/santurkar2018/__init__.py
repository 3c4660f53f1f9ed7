"""Figures of "How Does Batch Normalization Help Optimization?" [santurkar2018]."""

from equipoise_papers.santurkar2018 import fig7, figures, theorems

EXPERIMENTS = (*figures.EXPERIMENTS, fig7.EXPERIMENT, theorems.EXPERIMENT)

# Whole figures: what they show, and their panels.
FIGURES = {
    "santurkar2018.fig6": (
        "Internal covariate shift, VGG and deep linear network (Figs. 3 and 6)",
        ("santurkar2018.fig3", "santurkar2018.fig3dln"),
    ),
}

__all__ = ["EXPERIMENTS", "FIGURES"]
