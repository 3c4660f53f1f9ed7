r"""Moments of the direction that power iteration finds from a random start, by quadrature.

After K steps from a Gaussian start the squared coordinates of the unit vector are
:math:`p_l = a_l^2y_l / \sum_i a_i^2y_i` with :math:`y_l = \sigma_l^{2K}`. Their first two moments
are integrals over one variable, because :math:`1/S = \int_0^\infty e^{-tS}dt`. With
:math:`2t = e^u`, :math:`A_l = 1/(1 + e^{-u}/y_l)` and :math:`P = \prod_i (1 + e^uy_i)^{-1/2}`,

.. math:: E\,p_l = \frac12\int A_l P\,du, \qquad
          E\,p_ip_l = \frac{1 + 2\delta_{il}}4\int A_iA_lP\,du .

Only logarithms of y are used, so that no power overflows. As functions of u all factors are the
same function, shifted by log y, so one step h of the trapezoidal rule serves all spectra. Its
error is of order :math:`e^{-\pi^2/h}`, because the factors are analytic and at most 1 for
|Im u| < π/2. The substitution t = exp(π/2 sinh x) needs fewer nodes if eigenvalues are within a
few powers of ten, but has few nodes where small eigenvalues contribute: at a ratio of 1e-12 and
K = 8 its error is 7e-4 with 760 nodes.

Symbols: σ: eigenvalues; K: steps; y = (σ/σ_1)^(2K); p: squared coordinates; ρ = Σσp: Rayleigh
quotient; A, P: as above.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

# With step 1/8 the rule's error is below rounding, and with 1/4, on every other node, below 1e-15.
_STEP = 0.125
_BLOCK = 256
# The part of each integral left of the first node is e^-42 of it, right of the last below 1e-24.
_LEAD = 42.0
_NEGLIGIBLE = 1e-24
# exp(-746) is 0 in float64: further right all integrands are 0.
_UNDERFLOW = -746.0
_UNIT = np.finfo(np.float64).eps
_TINY = np.finfo(np.float64).tiny


@dataclass(frozen=True, slots=True, eq=False)
class DirectionMoments:
    r"""Moments of the squared coordinates p with bounds on their errors, each of shape ``[D]``.

    Args:
        shares: :math:`E\,p_l`.
        energies: :math:`E\,\rho p_l`.
        share_errors: Bounds on the errors of the first.
        energy_errors: Bounds on the errors of the second.
    """

    shares: Array
    energies: Array
    share_errors: Array
    energy_errors: Array


def direction_moments(eigenvalues: Array, num_steps: int) -> DirectionMoments:
    r"""Integrate E p and E ρp for every eigenvalue.

    Every integrand of E p is log-concave in u. So the sum is complete once all integrands are past
    their modes and a block of nodes adds nothing.

    Args:
        eigenvalues: σ, not negative and not all zero, of shape ``[D]``.
        num_steps: K, not negative; at 0 every y is 1, also that of a zero eigenvalue.

    Returns:
        The moments. Errors are the difference between steps 1/8 and 1/4, plus rounding, which
        grows with the length of the range of u because exponents of that size are rounded.

    Examples:
        >>> moments = direction_moments(np.array([1.0, 0.5]), 1)
        >>> moments.shares.round(12)  # σ_1/(σ_1 + σ_2) and the rest
        array([0.66666667, 0.33333333])
    """
    largest = float(eigenvalues.max())
    log_powers = _log_powers(eigenvalues, largest, num_steps)
    kept = np.isfinite(log_powers)
    fine, coarse, span = _integrate(eigenvalues[kept] / largest, log_powers[kept])
    errors = np.abs(fine - coarse) + _UNIT * (16 + 4 * span) * fine + _TINY
    moments = np.zeros((4, len(eigenvalues)))
    moments[:, kept] = np.concatenate([fine, errors])
    moments[1::2] *= largest
    return DirectionMoments(*moments)


def _log_powers(eigenvalues: Array, largest: float, num_steps: int) -> Array:
    """Logarithms of y, with full relative accuracy also close to the largest eigenvalue."""
    if num_steps == 0:
        return np.zeros_like(eigenvalues)
    ratios = eigenvalues / largest
    with np.errstate(divide="ignore"):
        below = np.log(ratios)
    # Close to 1 the ratio is rounded, but the difference is exact.
    near = np.log1p(np.maximum((eigenvalues - largest) / largest, -0.5))
    return 2 * num_steps * np.where(ratios > 0.5, near, below)


def _integrate(ratios: Array, log_powers: Array) -> tuple[Array, Array, float]:
    """Both integrals at σ_1 = 1, ``[2, D]``, with steps 1/8 and 1/4; and the range's length."""
    start = left = -math.log(np.exp(log_powers).sum()) - _LEAD
    even, odd = np.zeros((2, 2, len(ratios)))
    while True:
        nodes = left + _STEP * np.arange(_BLOCK, dtype=np.float64)
        A, log_product = _factors(nodes, log_powers)
        share = A * np.exp(log_product)
        energy = share * (ratios @ A + 2 * ratios[:, None] * A) / 2
        added = np.stack([[part[:, k::2].sum(1) for part in (share, energy)] for k in (0, 1)])
        even, odd = even + added[0], odd + added[1]
        left += _STEP * _BLOCK
        past = bool((1 - A[:, -1] < A[:, -1].sum() / 2).all())
        settled = bool((added.sum(0) <= _NEGLIGIBLE * (even + odd)).all())
        if (past and settled) or log_product[-1] < _UNDERFLOW:
            return _STEP / 2 * (even + odd), _STEP * even, left - start


def _factors(nodes: Array, log_powers: Array) -> tuple[Array, Array]:
    """A, of shape ``[D, nodes]``, and log P, ``[nodes]``."""
    exponents = nodes + log_powers[:, None]
    small = np.exp(-np.abs(exponents))
    logs = np.maximum(exponents, 0) + np.log1p(small)
    return np.where(exponents > 0, 1, small) / (1 + small), -logs.sum(0) / 2
