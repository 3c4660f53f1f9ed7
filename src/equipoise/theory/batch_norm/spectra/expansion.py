r"""The explosion rate as a weighted mean over orthonormal polynomials (Theorem 9).

An activation of a normalised sample is a sum of components of every degree, and each degree has a
rate of its own, so the explosion rate is at least that of the lowest.

Symbols: B: batch size, n = B - 1, w: normalised sample, ψ_k: orthonormal polynomials of w,
f(w) = φ(γw + β), ρ_k: correlation of ψ_k at two samples, :math:`c_k = 1 - \rho_k`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from equipoise.numerics.quadrature import gegenbauer
from equipoise.records.estimate import Estimate
from equipoise.theory.activation.adapt import ActivationLike
from equipoise.theory.batch_norm.setting import make_setting
from equipoise.theory.batch_norm.spectra.coefficients import refined_coefficients

Array = NDArray[np.float64]

_METHOD = "quadrature on panels"
_UNIT = float(np.finfo(float).eps)


@dataclass(frozen=True, slots=True, eq=False)
class GegenbauerExpansion:
    r"""The first components of an activation, :math:`f = \sum_k a_k\psi_k`.

    Args:
        batch_size: B.
        coefficients: :math:`a_0, \dots, a_{K-1}`, of shape ``[terms]``.
        errors: Bounds on the coefficients' errors, of shape ``[terms]``.
        gaps: :math:`c_k = 1 - \rho_k`, of shape ``[terms]``: 0 at k = 0, else positive.
        rates: Rate of each degree, :math:`k(k + B - 3)/(B - 3)`, of shape ``[terms]``.
        second_moment: :math:`E[f^2] = \sum_k a_k^2` over all k.
        slope_energy: :math:`E[(n - w^2) f'^2] = \sum_k k(k + B - 3)\,a_k^2` over all k.
    """

    batch_size: int
    coefficients: Array
    errors: Array
    gaps: Array
    rates: Array
    second_moment: Estimate
    slope_energy: Estimate

    @property
    def partial_second_moments(self) -> Array:
        """Sums of a_k² up to every degree; by Parseval they tend to ``second_moment``."""
        return np.cumsum(self.coefficients**2)

    @property
    def kappa(self) -> Estimate:
        r"""Sum of the terms of :math:`\kappa = \sum_k c_ka_k^2`; its error covers the rest."""
        value = float(self.gaps @ self.coefficients**2)
        return Estimate(value, self._rest_of_kappa() + self._rounding(self.gaps), self._method)

    @property
    def rate(self) -> Estimate:
        r"""Explosion rate from the terms alone; its error covers the rest.

        .. math:: \lambda_G = \frac{\sum_k \frac{k(k+B-3)}{B-3} c_ka_k^2}{\sum_k c_ka_k^2}

        For smooth φ this is exact within a few dozen terms. For φ with kinks :math:`a_k^2` decays
        so slowly that what K terms leave out is of order 1/K: ReLU at batch size 16 is wrong by
        5e-4 at K = 3000. Use :func:`explosion_rate` for the number, this for its anatomy.
        """
        weights = self.gaps * self.coefficients**2
        below, above = float(weights.sum()), float(self.rates @ weights)
        if below <= self._rounding(self.gaps):
            return Estimate(math.nan, math.nan, self._method)
        rest_below, rest_above = self._rest_of_kappa(), self._rest_of_numerator()
        rate = above / below
        lowest = above / (below + rest_below)
        highest = (above + rest_above) / below
        rounding = self._rounding(self.gaps * self.rates) + rate * self._rounding(self.gaps)
        error = max(rate - lowest, highest - rate) + rounding / below
        return Estimate(rate, error, self._method)

    @property
    def _method(self) -> str:
        return f"Gegenbauer series, {len(self.coefficients)} terms"

    def _largest_gap_left_out(self) -> float:
        return 1 + gegenbauer.correlation_tail(self.batch_size, len(self.coefficients))

    def _rest_of_kappa(self) -> float:
        """Σ_{k≥K} c_k a_k² at most: Parseval says what Σ a_k² leaves out."""
        left_out = self.second_moment.value - float(np.sum(self.coefficients**2))
        return self._largest_gap_left_out() * (max(left_out, 0.0) + self.second_moment.error)

    def _rest_of_numerator(self) -> float:
        """The same for the numerator, by Parseval for the slopes."""
        B = self.batch_size
        included = (B - 3) * float(self.rates @ self.coefficients**2)
        left_out = max(self.slope_energy.value - included, 0.0) + self.slope_energy.error
        return self._largest_gap_left_out() * left_out / (B - 3)

    def _rounding(self, weights: Array) -> float:
        """What the coefficients' errors make of Σ weight·a_k²."""
        return float(np.abs(weights) @ (2 * np.abs(self.coefficients) * self.errors))


def gegenbauer_expansion(
    activation: ActivationLike,
    batch_size: int,
    *,
    terms: int,
    gamma: float = 1.0,
    beta: float = 0.0,
) -> GegenbauerExpansion:
    r"""Expand φ(γw + β) of a normalised sample w in orthonormal polynomials.

    .. math:: a_k = E[\phi(\gamma w + \beta)\,\psi_k(w)], \qquad
              \psi_k(w) \propto C_k^{(B-3)/2}(w / \sqrt{B-1})

    Args:
        activation: A name, a module, or an elementwise callable on float64 tensors.
        batch_size: Samples that share batch statistics, at least 4.
        terms: How many coefficients, at least 1; thousands are fine.
        gamma: Batch norm's scale.
        beta: Batch norm's shift.

    Returns:
        The coefficients with bounds on their errors, and what the theory makes of them.

    Raises:
        ValueError: If ``batch_size < 4``, a number is out of range or the activation is not
            usable.

    Examples:
        >>> expansion = gegenbauer_expansion("square", 9, terms=4)
        >>> expansion.coefficients.round(6) + 0.0  # w² = 1 + (a multiple of ψ₂)
        array([1.      , 0.      , 1.183216, 0.      ])
        >>> print(expansion.rate)  # 2(B - 1)/(B - 3)
        2.66667

    References:
        [yang2019], Theorem 9.
    """
    setting = make_setting(
        activation,
        batch_size,
        eps=0.0,
        gamma=gamma,
        beta=beta,
        weight_variance=1.0,
        bias_variance=0.0,
    )
    count = _check_terms(terms)
    (coarse, rough), (fine, sharp) = refined_coefficients(setting, count)
    if not (np.isfinite(fine).all() and np.isfinite(sharp).all()):
        raise ValueError(
            f"activation {setting.activation.name} overflows on normalised samples at "
            f"gamma = {gamma:g}, beta = {beta:g}. Use one that grows slower."
        )
    B, k = setting.batch_size, np.arange(count)
    # Angles at large B add ε_mach·√B.
    rounding = _UNIT * (1 + math.sqrt(B) / 16)
    energies = (
        Estimate(float(value), float(abs(value - other) + 16 * rounding * value), _METHOD)
        for value, other in zip(sharp, rough, strict=True)
    )
    second_moment, slope_energy = energies
    return GegenbauerExpansion(
        batch_size=B,
        coefficients=fine,
        errors=_errors(fine, coarse, 16 * rounding * math.sqrt(second_moment.value)),
        gaps=1 - gegenbauer.pair_correlations(B, count),
        rates=k * (k + B - 3) / (B - 3),
        second_moment=second_moment,
        slope_energy=slope_energy,
    )


def _errors(fine: Array, coarse: Array, rounding: float) -> Array:
    # A difference may vanish by luck, so each degree takes the largest up to it. Both levels
    # share the rounding of the recurrence: measured with ReLU, whose odd coefficients vanish, it
    # reaches 2.7e-14 at degree 3000 and B = 4, less at larger B; this allows twice that.
    growth = np.sqrt(1 + np.arange(len(fine)) / 64)
    return np.asarray(2 * np.maximum.accumulate(np.abs(fine - coarse)) + rounding * growth)


def _check_terms(terms: object) -> int:
    if isinstance(terms, bool) or not isinstance(terms, int | np.integer) or terms < 1:
        raise ValueError(f"terms must be a whole number of at least 1, got {terms!r}.")
    return int(terms)
