"""Statements and measurements of "Matrix Normalization via Rank-1 Update" [yu2020]."""

from equipoise_papers.yu2020 import theorem1
from equipoise_papers.yu2020.accuracy import experiment as accuracy
from equipoise_papers.yu2020.speed import experiment as speed

EXPERIMENTS = (theorem1.EXPERIMENT, speed.EXPERIMENT, accuracy.EXPERIMENT)

# Each experiment is one figure.
FIGURES: dict[str, tuple[str, tuple[str, ...]]] = {}

__all__ = ["EXPERIMENTS", "FIGURES"]
