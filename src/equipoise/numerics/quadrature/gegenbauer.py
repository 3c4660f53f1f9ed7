r"""Orthonormal polynomials for one coordinate of a uniform point on a sphere.

Let v be uniform on the unit sphere of the zero-mean vectors in R^B and w = √B v, so that every
coordinate of w has mean 0 and variance 1 and lives on :math:`|w| < \sqrt n`. Its density is
proportional to :math:`(1 - w^2/n)^{(B-4)/2}`, whose orthonormal polynomials are rescaled
Gegenbauer polynomials :math:`C_k^{(B-3)/2}(w/\sqrt n)`.

Symbols: B: batch size, n = B - 1, ψ_k: the polynomials, ρ_k: correlation of ψ_k at two
coordinates, ``E[ψ_j(w_1) ψ_k(w_2)] = δ_jk ρ_k``.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import eigh_tridiagonal

Array = NDArray[np.float64]

# How many ρ_k are computed at first, twice as many whenever more are asked for.
_FIRST_KNOWN = 80
# |ρ_k| oscillates below an envelope that decreases; so many in a row contain its next maximum.
_OSCILLATION = 16


def recurrence(batch_size: float | Array, count: int) -> Array:
    r"""Coefficients of :math:`w\psi_k = b_{k+1}\psi_{k+1} + b_k\psi_{k-1}`.

    Returns:
        :math:`b_1, \dots, b_{count}`, of shape ``[count]``, or ``[..., count]`` for batch sizes of
        shape ``[...]``.

    Examples:
        >>> round(float(recurrence(10, 1)[0]), 12)  # E[w²] = 1
        1.0
    """
    B = np.asarray(batch_size, dtype=np.float64)[..., None]
    k = np.arange(2, count + 1, dtype=np.float64)
    later = (B - 1) * k * (k + B - 4) / ((2 * k + B - 3) * (2 * k + B - 5))
    # E[w²] = 1 at every B; on a circle the formula would give 0/0.
    return np.asarray(np.sqrt(np.concatenate([np.ones((*later.shape[:-1], 1)), later], -1)))


def polynomials(batch_size: float | Array, count: int, points: Array) -> Iterator[Array]:
    """Yield ψ_0, …, ψ_{count-1} at the points, each of the shape of ``points``.

    Batch sizes of shape ``[rows]`` take points of shape ``[rows, m]``.
    """
    b = recurrence(batch_size, count)
    factors = b.tolist() if b.ndim == 1 else list(np.moveaxis(b, -1, 0)[..., None])
    previous, current = np.zeros_like(points), np.ones_like(points)
    for back, ahead in pairwise([0.0, *factors]):
        yield current
        following = points * current
        following -= back * previous
        following /= ahead
        previous, current = current, following


def pair_correlations(batch_size: int, count: int) -> Array:
    r"""Correlations :math:`\rho_k = C_k^{(B-3)/2}(-1/n)\,/\,C_k^{(B-3)/2}(1)`.

    Returns:
        :math:`\rho_0, \dots, \rho_{count-1}`, of shape ``[count]``, read-only.

    Examples:
        >>> pair_correlations(5, 2)  # two of five centred samples correlate by -1/4
        array([ 1.  , -0.25])
    """
    known = _FIRST_KNOWN
    while known < count:
        known *= 2
    return _known_correlations(batch_size, known)[:count]


@lru_cache(maxsize=128)
def _known_correlations(batch_size: int, count: int) -> Array:
    rho = correlations_of(float(batch_size), count)
    rho.flags.writeable = False
    return rho


def correlations_of(batch_sizes: float | Array, count: int) -> Array:
    """:func:`pair_correlations` for batch sizes of any shape, in shape ``[count, ...]``."""
    n, offset = batch_sizes - 1, batch_sizes - 3
    before, last = n / n, -1 / n  # numbers take a ninth of the time of arrays of one
    rho = [before, last]
    for k in range(1, count - 1):
        before, last = last, -((2 * k + offset) / n * last + k * before) / (k + offset)
        rho.append(last)
    return np.array(rho[:count])


def count_above(batch_size: int, least: float, most: int) -> int:
    r"""How many :math:`\rho_k` there are up to the last above ``least``, and at most ``most``.

    Examples:
        >>> pair_correlations(64, 3).round(5)
        array([ 1.     , -0.01587, -0.01587])
        >>> count_above(64, 1e-3, 50)
        3
    """
    known = _FIRST_KNOWN
    while True:
        above = np.flatnonzero(np.abs(_known_correlations(batch_size, known)) > least)
        count = int(above[-1]) + 1
        if count >= most or count + _OSCILLATION <= known:
            return min(count, most)
        known *= 2


def correlation_tail(batch_size: int, count: int) -> float:
    r"""Largest :math:`|\rho_k|` over k ≥ count."""
    return float(np.abs(pair_correlations(batch_size, count + _OSCILLATION)[count:]).max())


def gauss(batch_size: int, count: int) -> tuple[Array, Array]:
    """Gauss nodes and weights for one coordinate, exact up to degree 2·count - 1.

    Returns:
        Nodes and weights, each of shape ``[count]``, read-only; the weights sum to 1.
    """
    return _gauss(batch_size, count)[:2]


def gauss_transform(batch_size: int, count: int, terms: int) -> Array:
    """Matrix of ψ_k at the Gauss nodes, of shape ``[terms, count]``, read-only."""
    return _gauss(batch_size, count)[2][:terms]


@lru_cache(maxsize=64)
def _gauss(batch_size: int, count: int) -> tuple[Array, Array, Array]:
    b = recurrence(batch_size, count)
    nodes = eigh_tridiagonal(np.zeros(count), b[:-1], eigvals_only=True, check_finite=False)
    nodes = (nodes - nodes[::-1]) / 2  # exactly symmetric, as the density is
    # Christoffel numbers: no gamma functions, no overflow at any batch size.
    psi = np.concatenate(list(polynomials(batch_size, count, nodes))).reshape(count, count)
    weights = 1 / (psi * psi).sum(0)
    weights /= weights.sum()
    for array in (nodes, weights, psi):
        array.flags.writeable = False
    return nodes, weights, psi
