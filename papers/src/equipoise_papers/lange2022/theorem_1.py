r"""Theorem 1 of [lange2022]: the rate at which gradient descent approaches its minimisers."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

_UNIT = torch.finfo(torch.float64).eps


@dataclass(frozen=True, slots=True)
class LocalRate:
    r"""Local linear convergence of gradient descent.

    Args:
        rate: r, the factor by which the distance to the nearest minimiser shrinks per step.
        smallest: Smallest eigenvalue that is not zero to rounding.
        largest: Largest eigenvalue.
        flat: Number of directions without curvature. The rate holds only if these are the
            directions along the manifold of minimisers, which the Hessian cannot tell.
    """

    rate: float
    smallest: float
    largest: float
    flat: int

    @property
    def converges(self) -> bool:
        """Whether r < 1; then 0 < α < 2/λ_max and no eigenvalue is negative."""
        return self.rate < 1

    @property
    def best_learning_rate(self) -> float:
        """α = 2/(λ*_min + λ_max), at which r = (κ - 1)/(κ + 1)."""
        return 2 / (self.smallest + self.largest) if self.smallest > 0 else math.nan


def local_rate(hessian: Tensor, learning_rate: float) -> LocalRate:
    r"""Rate at which gradient descent approaches a manifold of minimisers.

    .. math:: r = \max(|1 - \alpha\lambda^*_{min}|, |1 - \alpha\lambda_{max}|)

    with :math:`\lambda^*_{min}` the smallest eigenvalue that is not zero. It holds only where
    r < 1, and at the minimiser nearest to the iterate: r changes along the manifold.

    Args:
        hessian: At a minimiser, symmetric.
        learning_rate: α, positive.

    Raises:
        ValueError: If the learning rate is not positive or the Hessian is zero.

    Examples:
        >>> local_rate(torch.diag(torch.tensor([4.0, 1.0, 0.0])), 0.4)
        LocalRate(rate=0.6..., smallest=1.0, largest=4.0, flat=1)

    References:
        [lange2022], Theorem 1.
    """
    if not learning_rate > 0:
        raise ValueError(f"learning_rate must be positive, got {learning_rate}.")
    eigenvalues = torch.linalg.eigvalsh(hessian.detach().double())
    noise = len(hessian) * _UNIT * eigenvalues.abs().max()
    kept = eigenvalues[eigenvalues.abs() > noise]
    if not len(kept):
        raise ValueError("the Hessian is zero: there is no direction to converge in.")
    rate = float((1 - learning_rate * kept).abs().max())
    return LocalRate(rate, float(kept.min()), float(kept.max()), len(eigenvalues) - len(kept))
