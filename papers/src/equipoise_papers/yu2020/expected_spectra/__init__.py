"""What rank-1 update normalisation does to a spectrum on average: Theorem 1."""

from equipoise_papers.yu2020.expected_spectra.expectations import (
    direction_shares,
    expected_factor_spectrum,
    expected_matrix_spectrum,
)
from equipoise_papers.yu2020.expected_spectra.simulation import simulate_direction_shares

__all__ = [
    "direction_shares",
    "expected_matrix_spectrum",
    "expected_factor_spectrum",
    "simulate_direction_shares",
]
