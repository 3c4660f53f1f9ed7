"""Figures and tables of "Batch Normalization Preconditioning" [lange2022]."""

from equipoise.experiments.lange2022 import fig8, panels, table1, tables

EXPERIMENTS = (*panels.EXPERIMENTS, fig8.EXPERIMENT, table1.EXPERIMENT, *tables.EXPERIMENTS)

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
}

__all__ = ["EXPERIMENTS", "FIGURES"]
