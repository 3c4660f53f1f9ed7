r"""What rank-1 update normalisation (RUN) does to a spectrum on average over its random start.

RUN finds a direction :math:`\hat v` by K steps of power iteration from a Gaussian start and
shrinks the features F, or their second moment B = FᵀF, along it. On average B keeps its
eigenvectors, and each eigenvalue shrinks in proportion to its share of the direction.

Symbols: σ: eigenvalues of B, which are the squared singular values of F; u: its eigenvectors;
K: steps; p_l = (u_lᵀv̂)²; α_l = E p_l; ρ = v̂ᵀBv̂; β_l = E ρp_l; ε, η: how much is removed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from equipoise.records import Estimate
from equipoise_papers.checks import whole_number
from equipoise_papers.yu2020.expected_spectra.integrals import direction_moments

Array = NDArray[np.float64]
Eigenvalues: TypeAlias = Sequence[float] | NDArray[np.floating] | Tensor

_QUADRATURE = "trapezoidal rule in log t"
_UNIT = float(np.finfo(np.float64).eps)


@dataclass(frozen=True, slots=True, eq=False)
class Estimates:
    """One estimate per eigenvalue, as arrays; indexing gives an :class:`Estimate`.

    Args:
        values: The numbers, ``[D]``.
        errors: Their errors, ``[D]``: bounds for a computation, standard errors for a simulation.
        method: How they were obtained.
    """

    values: Array
    errors: Array
    method: str

    def __len__(self) -> int:
        return len(self.values)

    def __getitem__(self, index: int) -> Estimate:
        return Estimate(float(self.values[index]), float(self.errors[index]), self.method)


def direction_shares(eigenvalues: Eigenvalues, num_steps: int) -> Estimates:
    r"""Expected share of every eigenvector in the direction that RUN removes.

    For :math:`v_0 \sim N(0, I)`, :math:`v_K = B^Kv_0` and :math:`y_l = \sigma_l^{2K}`,

    .. math:: \alpha_l = E\,\frac{(u_l^Tv_K)^2}{\|v_K\|^2}
        = \int_0^\infty \frac{y_l}{1 + 2ty_l} \prod_i \frac1{\sqrt{1 + 2ty_i}}\,dt .

    Shares are ordered as the eigenvalues and sum to 1. Equal eigenvalues have equal shares, so an
    m-fold largest one has 1/m each at large K. Shares decay slowly with K: in two dimensions
    :math:`\alpha_2 = \sigma_2^K / (\sigma_1^K + \sigma_2^K)`, with the power K and not 2K, because
    the start may be almost orthogonal to the first eigenvector.

    Args:
        eigenvalues: σ, of shape ``[D]`` in any order, not negative and not all zero. Negative
            ones within rounding of their type, D times its unit times the largest, count as 0.
        num_steps: K, at least 0; at 0 the direction ignores B and every share is 1/D.

    Returns:
        α in the order given, with bounds on the numerical error relative to each share's own
        size; shares below 1e-300 may come out as 0.

    Raises:
        ValueError: If eigenvalues or steps are out of range.

    Examples:
        >>> shares = direction_shares([3.0, 1.0], 2)  # 9/10 and 1/10
        >>> shares.values.round(12)
        array([0.9, 0.1])
        >>> print(direction_shares([4.0, 4.0, 1.0], 60)[0])
        0.5

    References:
        [yu2020], Theorem 1; its proof is wrong (inequality 14 is false), the statement is right.
    """
    sigma = checked_eigenvalues(eigenvalues)
    moments = direction_moments(sigma, whole_number("num_steps", num_steps, 0))
    return Estimates(moments.shares, moments.share_errors, _QUADRATURE)


def expected_matrix_spectrum(
    eigenvalues: Eigenvalues, *, epsilon: float, num_steps: int
) -> Estimates:
    r"""Eigenvalues of :math:`E\,B_K`, the average of RUN's matrix form :math:`B - \epsilon BP`.

    .. math:: E\,B_K = U\,\mathrm{diag}\big(\sigma_l(1 - \epsilon\alpha_l)\big)\,U^T,
        \qquad P = \hat v\hat v^T .

    The order of eigenvalues may change: two dominant eigenvalues close together are halved.

    Args:
        eigenvalues: σ, as for :func:`direction_shares`.
        epsilon: ε in [0, 1]; with the factor form's η it is 1 - (1 - η)².
        num_steps: K, at least 0.

    Returns:
        The expected eigenvalues in the order of σ.

    Raises:
        ValueError: If an argument is out of range.

    Examples:
        >>> expected_matrix_spectrum([3.0, 2.9, 1.0], epsilon=1.0, num_steps=8).values.round(3)
        array([1.298, 1.645, 1.   ])

    References:
        [yu2020], Theorem 1.
    """
    epsilon = _within("epsilon", epsilon, 1.0)
    sigma = checked_eigenvalues(eigenvalues)
    shares = direction_shares(sigma, num_steps)
    errors = sigma * (epsilon * shares.errors + 2 * _UNIT)
    return Estimates(sigma * (1 - epsilon * shares.values), errors, shares.method)


def expected_factor_spectrum(eigenvalues: Eigenvalues, *, eta: float, num_steps: int) -> Estimates:
    r"""Eigenvalues of :math:`E\,F_K^TF_K` for RUN's factor form :math:`F_K = F(I - \eta P)`.

    .. math:: E\,F_K^TF_K
        = U\,\mathrm{diag}\big(\sigma_l(1 - 2\eta\alpha_l) + \eta^2\beta_l\big)\,U^T,
        \qquad \beta_l = \sum_i \sigma_i E\,p_ip_l = E\,\rho p_l .

    Its trace equals that of the matrix form at :math:`\epsilon = 2\eta - \eta^2`; its eigenvalues
    do not, because the term with η² spreads over all coordinates of the direction.

    Args:
        eigenvalues: σ, as for :func:`direction_shares`.
        eta: η in [0, 2]; 1 removes the direction, 2 reflects it and changes no singular value.
        num_steps: K, at least 0.

    Returns:
        The expected eigenvalues in the order of σ.

    Raises:
        ValueError: If an argument is out of range.

    Examples:
        >>> expected_factor_spectrum([3.0, 1.0], eta=1.0, num_steps=1).values.round(12)
        array([0.5625, 0.9375])

    References:
        [yu2020], Theorem 1, carried over to the factor form.
    """
    eta = _within("eta", eta, 2.0)
    sigma = checked_eigenvalues(eigenvalues)
    moments = direction_moments(sigma, whole_number("num_steps", num_steps, 0))
    taken, returned = 2 * eta * sigma * moments.shares, eta**2 * moments.energies
    values = sigma - taken + returned
    errors = 2 * eta * sigma * moments.share_errors + eta**2 * moments.energy_errors
    errors += 4 * _UNIT * (sigma + taken + returned)
    return Estimates(values, errors, _QUADRATURE)


def checked_eigenvalues(eigenvalues: Eigenvalues) -> Array:
    """Check eigenvalues of a positive semi-definite matrix; return float64, rounding below 0 as 0.

    Raises:
        ValueError: If there are none, or they are not finite, negative beyond rounding, or all 0.
    """
    sigma, unit = _with_rounding_unit(eigenvalues)
    if sigma.ndim != 1 or not len(sigma) or not np.isfinite(sigma).all():
        raise ValueError(
            f"eigenvalues must be finite numbers of shape [D], got shape {sigma.shape} with "
            f"{int((~np.isfinite(sigma)).sum())} that are not finite."
        )
    if sigma.max() <= 0:
        raise ValueError(
            f"at least one eigenvalue must be positive, got at most {sigma.max():g}: a matrix of "
            "zeros has no direction to remove, and RUN leaves it as it is."
        )
    if sigma.min() < -len(sigma) * unit * sigma.max():
        raise ValueError(
            f"eigenvalues must not be negative, got {sigma.min():g}: B = FᵀF has none. Pass the "
            "eigenvalues of B, or the squared singular values of F."
        )
    return np.maximum(sigma, 0)


def _with_rounding_unit(eigenvalues: Eigenvalues) -> tuple[Array, float]:
    """Eigenvalues as float64, and the rounding unit of their original type."""
    if isinstance(eigenvalues, Tensor):
        dtype = eigenvalues.dtype
        unit = torch.finfo(dtype).eps if dtype.is_floating_point else _UNIT
        return np.asarray(eigenvalues.detach().cpu().double()), unit
    array = np.asarray(eigenvalues)
    floating = np.issubdtype(array.dtype, np.floating)
    return array.astype(np.float64), float(np.finfo(array.dtype).eps) if floating else _UNIT


def _within(name: str, value: float, most: float) -> float:
    if not 0 <= value <= most:
        raise ValueError(f"{name} must be in [0, {most:g}], got {value!r}.")
    return float(value)
