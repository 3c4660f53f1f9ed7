"""Statements and measurements of "Matrix Normalization via Rank-1 Update" [yu2020]."""

from equipoise_papers.yu2020 import accuracy, speed, theorem1

EXPERIMENTS = (theorem1.EXPERIMENT, speed.EXPERIMENT, accuracy.EXPERIMENT)

# Each experiment is one figure.
FIGURES: dict[str, tuple[str, tuple[str, ...]]] = {}

__all__ = ["EXPERIMENTS", "FIGURES"]
