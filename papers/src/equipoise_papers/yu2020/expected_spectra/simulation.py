"""Shares of RUN's direction by simulation, to check their quadrature."""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

from equipoise_papers.checks import whole_number
from equipoise_papers.yu2020.expected_spectra.expectations import (
    Eigenvalues,
    Estimates,
    checked_eigenvalues,
)

# Numbers drawn at once.
_CHUNK = 2**20


def simulate_direction_shares(
    eigenvalues: Eigenvalues, num_steps: int, draws: int, generator: torch.Generator
) -> Estimates:
    r"""Average the squared coordinates of RUN's direction over random starts.

    .. math:: p_l = \frac{a_l^2\sigma_l^{2K}}{\sum_i a_i^2\sigma_i^{2K}}, \qquad a \sim N(0, I),

    computed as a softmax of logarithms, so that no power overflows.

    Args:
        eigenvalues: σ, as for :func:`direction_shares`.
        num_steps: K, at least 0.
        draws: Number of starts, at least 2.
        generator: Source of the starts; they are drawn on its device.

    Returns:
        Means with standard errors. At large K the share of a small eigenvalue comes from rare
        starts; if few of these are drawn, its standard error is too small as well.

    Raises:
        ValueError: If an argument is out of range.

    Examples:
        >>> shares = simulate_direction_shares([3.0, 1.0], 1, 10000, torch.Generator())
        >>> bool(abs(shares.values[0] - 0.75) < 4 * shares.errors[0])
        True

    References:
        [yu2020], equation (11).
    """
    sigma = checked_eigenvalues(eigenvalues)
    steps = whole_number("num_steps", num_steps, 0)
    draws = whole_number("draws", draws, 2)
    ratios = torch.as_tensor(sigma / sigma.max(), device=generator.device)
    log_powers = 2 * steps * ratios.log() if steps else torch.zeros_like(ratios)
    rows = max(2, _CHUNK // len(sigma))
    total = mean = squares = torch.zeros_like(ratios)
    for size in (min(rows, draws - done) for done in range(0, draws, rows)):
        p = _squared_coordinates(log_powers, size, generator)
        # Chan's update: sums of squares would lose the digits of the variance of shares near 1.
        shift, total = p.mean(0) - mean, total + size
        squares = squares + (p - p.mean(0)).square().sum(0)
        squares = squares + shift.square() * size * (total - size) / total
        mean = mean + shift * size / total
    errors = (squares / (draws - 1)).sqrt() / math.sqrt(draws)
    return Estimates(
        np.asarray(mean.cpu()), np.asarray(errors.cpu()), f"Monte Carlo, {draws} starts"
    )


def _squared_coordinates(log_powers: Tensor, draws: int, generator: torch.Generator) -> Tensor:
    """Draw p, of shape ``[draws, D]``."""
    start = torch.randn(
        draws,
        len(log_powers),
        generator=generator,
        device=generator.device,
        dtype=torch.float64,
    )
    return torch.softmax(start.square().log() + log_powers, 1)
