r"""How far an extremal eigenvalue may be beyond the extremal Ritz value.

A small residual only says that *some* eigenvalue is near. For the extremal one the random start
helps: with :math:`p(\lambda) = \prod_i(\lambda - \theta_i)`, Lanczos' next basis vector is
:math:`p(A)q_1 / \prod_i\beta_i`, and its component along an eigenvector u of eigenvalue λ,

.. math:: \frac{|p(\lambda)|}{\prod_i\beta_i}\,|\langle u, q_1\rangle| \le 1,

is that of a unit vector. So a λ far above all θ takes a start almost orthogonal to u, and a start
that is uniform on the sphere rarely is.

Symbols: θ: Ritz values; β: off-diagonal entries of T and what remained, as many as θ; u: an
eigenvector; q₁: the start; n: the dimension.

References:
    J. L. M. van Dorsselaer, M. E. Hochstenbach and H. A. van der Vorst (2001), Computing
    probabilistic bounds for extreme eigenvalues of symmetric matrices with the Lanczos method.
    SIAM J. Matrix Anal. Appl. 22, 837-852.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import brentq
from scipy.special import betaincinv

Array = NDArray[np.float64]


def likely_overlap(size: int, failure: float) -> float:
    r"""The value that :math:`|\langle u, q_1\rangle|` exceeds with probability ``1 - failure``.

    The square of one component of a uniform unit vector has a Beta(½, (n - 1)/2) law.

    Args:
        size: The dimension n, at least 1.
        failure: A probability, in (0, 1).

    Examples:
        >>> round(likely_overlap(2, 0.5) ** 2, 12)  # the median of cos²
        0.5
    """
    return math.sqrt(betaincinv(0.5, (size - 1) / 2, failure)) if size > 1 else 1.0


def is_within(theta: Array, beta: Array, overlap: float, distance: float) -> bool:
    """Whether :func:`distance_above` is at most ``distance``, without solving for it."""
    return _excess(theta, beta, overlap, distance) >= 0


def distance_above(theta: Array, beta: Array, overlap: float) -> float:
    r"""Distance from the largest Ritz value beyond which there is no eigenvalue.

    The root x of :math:`\prod_i(\theta_{max} + x - \theta_i)\,\omega = \prod_i\beta_i` with ω the
    overlap that is exceeded.

    Args:
        theta: Ritz values, in any order.
        beta: As many off-diagonal entries; the last is the norm that remained.
        overlap: From :func:`likely_overlap`.

    Returns:
        The distance; 0 if the Krylov space is invariant, or if it underflows.

    Examples:
        >>> distance_above(np.array([2.0]), np.array([3.0]), 0.5)  # 3/½
        6.0
    """
    if not beta.all():
        return 0.0
    # At x every factor is at least x, so the root is below this.
    high = float(np.exp((np.log(beta).sum() - math.log(overlap)) / len(beta)))
    low = high
    while _excess(theta, beta, overlap, low) > 0:
        low /= 16.0
    if low in (0.0, high):
        return low
    # In the logarithm, so that the solver's absolute tolerance becomes a relative one.
    root: float = brentq(
        lambda log: _excess(theta, beta, overlap, math.exp(log)),
        math.log(low),
        math.log(high),
        xtol=1e-6,
    )
    return math.exp(root)


def _excess(theta: Array, beta: Array, overlap: float, distance: float) -> float:
    """Logarithm of a number that is at most 1 if an eigenvalue is at this distance; increasing."""
    if not distance > 0:
        return -math.inf
    factors = (theta.max() - theta) + distance
    return float(np.log(factors).sum() - np.log(beta).sum()) + math.log(overlap)
