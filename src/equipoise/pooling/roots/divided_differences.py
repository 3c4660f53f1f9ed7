r"""Scalar functions of eigenvalues, with the divided differences that differentiate matrices.

For :math:`f(A) = U f(\Lambda) U^\top` the first and second derivatives in symmetric directions E
and G are, in A's eigenbasis,

.. math:: (Df[E])_{ij} = f[\lambda_i, \lambda_j]\, E_{ij}, \qquad
          (D^2f[E, G])_{ij} =
              \sum_k f[\lambda_i, \lambda_k, \lambda_j] (E_{ik} G_{kj} + G_{ik} E_{kj}) .

Both sums stay finite where eigenvalues coincide; derivatives of eigenvectors do not.

Symbols: x: nodes, the points at which f is evaluated, ascending ``[..., D]``; a ≥ b: two of them;
t = log(b/a); p: an exponent. The logarithm is the limit p → 0 of (x^p - 1)/p.

References:
    R. Bhatia, Matrix Analysis, Theorem V.3.3 (Daleckii and Krein), for the first derivative.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor


class Curve(Protocol):
    """A scalar function and its derivatives; eigenvalues are ``[..., D]``, ascending."""

    def nodes(self, eigenvalues: Tensor) -> Tensor:
        """The points at which f is evaluated, ``[..., D]``."""

    def value(self, x: Tensor) -> Tensor:
        """f(x), ``[..., D]``."""

    def slopes(self, x: Tensor) -> Tensor:
        """First divided differences, f' on ties, ``[..., D, D]``."""

    def half_second(self, x: Tensor) -> Tensor:
        """f''(x)/2, the second divided difference on a triple tie."""


@dataclass(frozen=True, slots=True)
class Power:
    """x^p on the range of a matrix, 0 on its null space.

    Between two null directions, where the slope is infinite for p < 1, it counts as 0. That is
    exact for perturbations that keep the rank, such as those of FᵀF with fewer rows than columns,
    because they have no component there.

    Args:
        exponent: p, above 0.
        relative_cutoff: Eigenvalues up to this fraction of the largest are the null space; by
            default D roundings.
    """

    exponent: float
    relative_cutoff: float | None = None

    def nodes(self, eigenvalues: Tensor) -> Tensor:
        """Eigenvalues with exact zeros in place of rounding and negative ones."""
        fraction = self.relative_cutoff
        if fraction is None:
            fraction = eigenvalues.shape[-1] * torch.finfo(eigenvalues.dtype).eps
        return torch.where(eigenvalues <= fraction * eigenvalues[..., -1:], 0.0, eigenvalues)

    def value(self, x: Tensor) -> Tensor:
        """x^p."""
        return x.sqrt() if self.exponent == 0.5 else x**self.exponent

    def slopes(self, x: Tensor) -> Tensor:
        """(a^p - b^p)/(a - b); for p = ½ that is 1/(√a + √b), without a difference."""
        if self.exponent == 0.5:
            slopes = 1 / _pairwise_sum(x.sqrt())
        else:
            p = self.exponent
            a, r, t = _log_ratios(x)
            slopes = a ** (p - 1) * torch.where(r == 0, p, torch.expm1(p * t) / r)
        at_zero = 1.0 if self.exponent == 1 else 0.0
        return torch.where(_pairwise_sum(x) == 0, at_zero, slopes)

    def half_second(self, x: Tensor) -> Tensor:
        """½ p (p - 1) x^(p - 2); 0 at 0 where that is infinite."""
        p = self.exponent
        at_zero = 1.0 if p == 2 else 0.0
        return torch.where(x == 0, at_zero, 0.5 * p * (p - 1) * x ** (p - 2))


@dataclass(frozen=True, slots=True)
class Logarithm:
    """log(λ + ε); negative eigenvalues, which a PSD matrix has by rounding only, count as 0.

    Args:
        eps: ε, above 0.
    """

    eps: float

    def nodes(self, eigenvalues: Tensor) -> Tensor:
        """λ + ε."""
        return eigenvalues.clamp(min=0) + self.eps

    def value(self, x: Tensor) -> Tensor:
        """Natural logarithm."""
        return x.log()

    def slopes(self, x: Tensor) -> Tensor:
        """log(a/b)/(a - b)."""
        a, r, t = _log_ratios(x)
        return torch.where(r == 0, 1.0, t / r) / a

    def half_second(self, x: Tensor) -> Tensor:
        """-1/(2x²)."""
        return -0.5 / x.square()


def second_derivative(curve: Curve, x: Tensor, E: Tensor, G: Tensor) -> Tensor:
    r"""D²f[E, G] in the eigenbasis, by slices over k: :math:`O(D^3)` time, :math:`O(D^2)` memory.

    Args:
        curve: f.
        x: Nodes, ascending, ``[..., D]``.
        E: Symmetric direction in the eigenbasis, ``[..., D, D]``.
        G: Another one.
    """
    slopes, index = curve.slopes(x), torch.arange(x.shape[-1], device=x.device)
    rows, columns = index[:, None], index[None, :]
    total = torch.zeros_like(E)
    for k in range(x.shape[-1]):
        high = torch.maximum(rows, columns).clamp(min=k)
        low = torch.minimum(rows, columns).clamp(max=k)
        middle = rows + columns + k - high - low
        gap = x[..., high] - x[..., low]
        mean = (x[..., :, None] + x[..., None, :] + x[..., k, None, None]) / 3
        # Rounding of the quotient ~ ε/gap meets the Taylor error ~ gap² where gap = ε^(1/3).
        tied = gap <= torch.finfo(x.dtype).eps ** (1 / 3) * x[..., high]
        quotient = (slopes[..., middle, high] - slopes[..., low, middle]) / gap
        differences = torch.where(tied, curve.half_second(mean), quotient)
        products = (
            E[..., :, k, None] * G[..., k, None, :] + G[..., :, k, None] * E[..., k, None, :]
        )
        total = total + differences * products
    return total


def _pairwise_sum(x: Tensor) -> Tensor:
    return x[..., :, None] + x[..., None, :]


def _log_ratios(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Of all pairs the larger node a, r = (b - a)/a and t = log(b/a), each to full precision."""
    a = torch.maximum(x[..., :, None], x[..., None, :])
    b = torch.minimum(x[..., :, None], x[..., None, :])
    r = (b - a) / a
    # log1p(r) loses b where it is far below a, log(b/a) loses the difference where it is close.
    return a, r, torch.where(r > -0.5, torch.log1p(r), torch.log(b / a))
