r"""Averages over random starts: the direction's shares, and the matrices themselves.

Symbols: σ: eigenvalues of B = FᵀF, U: its eigenvectors; a: coordinates of the start in them;
K: steps; y = σ^(2K); b = a².
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from equipoise.pooling import epsilon_from_eta, run_factor, run_matrix

# Starts per chunk.
_CHUNK = 4000


@dataclass(frozen=True, slots=True)
class Mean:
    """A matrix averaged over starts, in the basis of B's eigenvectors.

    Args:
        values: Mean, ``[D, D]``.
        errors: Standard error of every entry.
        draws: Starts.
    """

    values: Tensor
    errors: Tensor
    draws: int


def features(eigenvalues: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Random features ``[D + 3, D]`` with this spectrum of FᵀF, and its eigenvectors."""
    size = len(eigenvalues)
    left, _ = torch.linalg.qr(_normal(size + 3, size, generator))
    U, _ = torch.linalg.qr(_normal(size, size, generator))
    return left * eigenvalues.sqrt() @ U.mT, U


def averaged_forms(
    F: Tensor, U: Tensor, *, eta: float, num_steps: int, draws: int, generator: torch.Generator
) -> tuple[Mean, Mean]:
    """Average :math:`U^TB_KU` and :math:`U^TF_K^TF_KU` over Gaussian starts."""
    B, epsilon = F.mT @ F, epsilon_from_eta(eta)
    matrix, factor = _Average(), _Average()
    for starts in _chunks(F.shape[-1], draws, generator):
        rows = len(starts)
        B_K = run_matrix(B.expand(rows, -1, -1), starts, epsilon=epsilon, num_steps=num_steps)
        F_K = run_factor(F.expand(rows, -1, -1), starts, eta=eta, num_steps=num_steps)
        matrix.add(U.mT @ B_K @ U)
        factor.add(U.mT @ (F_K.mT @ F_K) @ U)
    return matrix.mean(), factor.mean()


def printed_inequality(
    eigenvalues: Tensor, *, num_steps: int, draws: int, generator: torch.Generator
) -> tuple[Tensor, int]:
    r"""How often the printed proof's inequality (14) fails, start by start.

    For every pair s < t it claims

    .. math:: \frac{b_sy_s - b_ty_t}{\sum b_iy_i} \ge \frac{y_t}{y_1}\frac{b_s - b_t}{\sum b_i} .

    Returns:
        The share of starts that break it, one per pair, and how many of the failures have
        :math:`b_s \ge b_t`, where the proof's step is sound.
    """
    y = (eigenvalues / eigenvalues.max()) ** (2 * num_steps)
    s, t = torch.triu_indices(len(y), len(y), offset=1)
    broken, sound = torch.zeros(len(s), dtype=torch.float64), 0
    for starts in _chunks(len(y), draws, generator):
        b = starts.square()
        left = (b[:, s] * y[s] - b[:, t] * y[t]) / (b @ y)[:, None]
        right = y[t] / y[0] * (b[:, s] - b[:, t]) / b.sum(1, keepdim=True)
        rounding = 1e-12 * (left.abs() + right.abs())
        fails = left < right - rounding
        broken += fails.sum(0)
        sound += int((fails & (b[:, s] >= b[:, t])).sum())
    return broken / draws, sound


class _Average:
    """Running mean and spread of matrices, chunk by chunk."""

    def __init__(self) -> None:
        self._count = 0
        self._mean: Tensor | None = None
        self._squares: Tensor | None = None

    def add(self, values: Tensor) -> None:
        rows, mean = len(values), values.mean(0)
        squares = (values - mean).square().sum(0)
        if self._mean is None or self._squares is None:
            self._count, self._mean, self._squares = rows, mean, squares
            return
        # Chan's update: sums of squares themselves would lose a small spread.
        total, shift = self._count + rows, mean - self._mean
        self._squares = self._squares + squares + shift.square() * (self._count * rows / total)
        self._mean = self._mean + shift * (rows / total)
        self._count = total

    def mean(self) -> Mean:
        assert self._mean is not None
        assert self._squares is not None
        deviation = (self._squares / (self._count - 1)).sqrt()
        return Mean(self._mean, deviation / math.sqrt(self._count), self._count)


def _chunks(size: int, draws: int, generator: torch.Generator) -> Iterator[Tensor]:
    for done in range(0, draws, _CHUNK):
        yield _normal(min(_CHUNK, draws - done), size, generator)


def _normal(rows: int, columns: int, generator: torch.Generator) -> Tensor:
    return torch.randn(rows, columns, generator=generator, dtype=torch.float64)
