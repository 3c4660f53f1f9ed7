"""Which networks train, and how well that is known before: thousands of small trainings."""

from equipoise_papers.trainability.experiment import EXPERIMENTS, FIGURES

__all__ = ["EXPERIMENTS", "FIGURES"]
