r"""The linear network with batch norm, whose covariance map acts on eigenvalues alone.

Batch norm of a linear network maps the nonzero eigenvalues :math:`\lambda_i` of GΣG, scaled to
sum 1, to

.. math:: \bar\lambda_i = \int_0^\infty \frac{\lambda_i}{1+2s\lambda_i}
          \prod_j (1+2s\lambda_j)^{-1/2}\,ds

and keeps their eigenvectors. ``bn_map(cov, "identity")`` is B times this, with eigenvectors.
From every start all eigenvalues become equal. It is the only network whose global convergence
is known.

Symbols: B: batch size, C: rank of GΣG.

References:
    [yang2019], Appendix B.2 (global convergence of the linear network).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from equipoise.numerics.checks import check_whole
from equipoise.records.estimate import Estimate
from equipoise.theory.covariance.bn_map import (
    MappedCovariance,
    centred_spectrum,
    checked_covariance,
)
from equipoise.theory.covariance.laplace_fourier import laplace_rule

Array = NDArray[np.float64]

_UNIT = 2.220446049250313e-16
_SMALLEST = 1e-12


@dataclass(frozen=True, slots=True, eq=False)
class MappedEigenvalues:
    """Normalised eigenvalues after one layer.

    Args:
        value: In the order of the input, of the same shape; their sum is 1.
        error: A bound on each one's numerical error.
    """

    value: Array
    error: Array


def linear_step(eigenvalues: ArrayLike) -> MappedEigenvalues:
    r"""Map the eigenvalues of GΣG through one layer of a linear network with batch norm.

    The order is kept, zeros stay zero, and with A positive eigenvalues scaled to sum 1

    .. math:: \bar\lambda_{max} - \bar\lambda_{min} \le
        \Big(1 - \frac{2A\lambda_{min}}{A+2}\Big)(\lambda_{max} - \lambda_{min}) .

    Args:
        eigenvalues: Not negative, at least one positive, of shape ``[count]``, in any order and
            scale; batch norm forgets the scale.

    Raises:
        ValueError: If the eigenvalues are not such a vector.

    Examples:
        >>> linear_step([1.0, 1.0, 0.0]).value.round(12)
        array([0.5, 0.5, 0. ])
        >>> linear_step([4.0, 1.0]).value.round(12)  # √λ_i / (√λ_1 + √λ_2)
        array([0.66666667, 0.33333333])

    References:
        [yang2019], Appendix B.2 (global convergence of the linear network).
    """
    values = np.array(eigenvalues, dtype=np.float64)
    usable = values.ndim == 1 and values.size and np.isfinite(values).all()
    if not usable or values.min() < 0 or values.max() == 0:
        raise ValueError(
            "eigenvalues must be a vector of finite numbers, none negative and one positive, "
            f"got {eigenvalues!r:.80}. Give those of the centred covariance."
        )
    positive = values > 0
    if values[positive].min() < _SMALLEST * values.max():
        raise ValueError(
            f"eigenvalues must lie within a factor of {1 / _SMALLEST:.0e} of each other or be 0, "
            f"got {eigenvalues!r:.80}. Set smaller ones to 0: they are rounding of larger ones."
        )
    rule = laplace_rule(values[positive] / values.max(), batch_size=1, alpha=1.0)
    fine, coarse = rule.weight @ rule.shrunk, rule.coarse @ rule.shrunk
    mapped, error = np.zeros_like(values), np.zeros_like(values)
    mapped[positive] = fine
    # All terms are positive, so rounding is relative; 64 covers logarithms of up to 40.
    error[positive] = np.abs(fine - coarse) + 64 * _UNIT * fine
    return MappedEigenvalues(mapped, error)


def linear_limit(cov: ArrayLike | Tensor) -> MappedCovariance:
    r"""Where a linear network with batch norm takes a covariance.

    .. math:: \lim_{l\to\infty}\Sigma^l = \frac BC\,P

    with the projector P on the range of GΣG, of rank C.

    Args:
        cov: Covariance of a batch, of shape ``[B, B]``, as for :func:`bn_map`.

    Returns:
        The limit. Its error assumes that eigenvalues at the level of rounding are 0.

    Raises:
        ValueError: If ``cov`` is no covariance, or all samples are equal.

    Examples:
        >>> linear_limit(np.diag([1.0, 2.0, 5.0])).value.round(12)  # B/(B - 1) G
        array([[ 1. , -0.5, -0.5],
               [-0.5,  1. , -0.5],
               [-0.5, -0.5,  1. ]])

    References:
        [yang2019], Appendix B.2 (global convergence of the linear network).
    """
    spectrum = centred_spectrum(checked_covariance(cov))
    B, C = spectrum.vectors.shape
    if not C:
        raise ValueError(
            "cov has equal samples only (GΣG = 0), which batch norm divides by zero. "
            "Give samples that differ."
        )
    value = B / C * spectrum.vectors @ spectrum.vectors.T
    # Vectors turn by rounding over the gap to the zeros, which is the smallest eigenvalue.
    turned = B * spectrum.rounding / spectrum.values[0] if C < B - 1 else 0.0
    error = np.full((B, B), B / C * (B * _UNIT + turned))
    return MappedCovariance(value, error, "closed form")


def linear_rate(rank: int) -> Estimate:
    r"""Factor by which each layer of a linear network shrinks differences of eigenvalues.

    .. math:: 1 - \frac2{C+2} = \frac C{C+2}

    near the limit, for a centred covariance of rank C; :math:`(B-1)/(B+1)` at full rank, which
    is both forward eigenvalues of the BSB1 point.

    Raises:
        ValueError: If the rank is no whole number of at least 1.

    Examples:
        >>> print(linear_rate(5))
        0.71429
    """
    rank = check_whole("rank", rank, 1)
    return Estimate(rank / (rank + 2), _UNIT, "closed form")
