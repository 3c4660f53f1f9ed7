r"""The explosion rate as a weighted mean over orthonormal polynomials (Theorem 9).

An activation of a normalised sample is a sum of components of every degree, and each degree has a
rate of its own, so the explosion rate is at least that of the lowest.

The coefficients :math:`a_k = E[f(w)\psi_k(w)]` come from quadrature on panels split at the kinks.
In the angle :math:`\theta = \arccos(w/\sqrt n)` a polynomial of degree k turns k times, so panels
shrink as the degree grows; their number then makes thousands of coefficients as good as the first.

Symbols: B: batch size, n = B - 1, w: normalised sample, ψ_k: orthonormal polynomials of w,
f(w) = φ(γw + β), ρ_k: correlation of ψ_k at two samples, :math:`c_k = 1 - \rho_k`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TypeAlias, Unpack

import numpy as np
from numpy.typing import NDArray

from equipoise.numerics.checks import check_whole
from equipoise.numerics.options import named_options
from equipoise.numerics.quadrature import gegenbauer, panels
from equipoise.records.estimate import Estimate
from equipoise.theory.activation.adapt import ActivationLike
from equipoise.theory.batch_norm.averages.response import Response, unseen_slopes
from equipoise.theory.batch_norm.setting import Setting, SettingOptions, as_setting

Array = NDArray[np.float64]
Level: TypeAlias = tuple[Array, Array]

_METHOD = "quadrature on panels"
_UNIT = float(np.finfo(float).eps)
# Beyond 12 standard deviations the density is below 1e-31; at large B the sphere is far wider.
_REACH = 12.0
# Panels on which ψ_k turns by at most this angle are resolved by their nodes.
_TURN = 8.0
_LEAST_SPLITS = 24
_RULES = (panels.analytic(20), panels.analytic(28))
_POWER_RULES = (panels.any_powers(140), panels.any_powers(200))
# Levels beyond the second cut panels in four; steep functions need that.
_LEVELS, _GOAL = 5, 1e-12


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
        r"""Sum of the terms of :math:`\kappa = \sum_k c_ka_k^2`, for :math:`\sigma_w^2 = 1`.

        Its error covers the terms left out.
        """
        value = float(self.gaps @ self.coefficients**2)
        return Estimate(value, self._rest_of_kappa() + self._rounding(self.gaps), self._method)

    @property
    def rate(self) -> Estimate:
        r"""Explosion rate from the terms alone; its error covers the rest.

        .. math:: \lambda_G = \frac{\sum_k \frac{k(k+B-3)}{B-3} c_ka_k^2}{\sum_k c_ka_k^2}

        For smooth φ this is exact within a few dozen terms. For φ with kinks :math:`a_k^2` decays
        so slowly that what K terms leave out is of order 1/K: ReLU at batch size 16 is wrong by
        5e-4 at K = 3000. Use :func:`explosion_rate` for the number, and this to
        see which degrees it comes from.

        Raises:
            ValueError: If no term has a part that differs between samples.
        """
        weights = self.gaps * self.coefficients**2
        below, above = float(weights.sum()), float(self.rates @ weights)
        if below <= self._rounding(self.gaps):
            raise ValueError(
                f"the first {len(self.coefficients)} terms have no part that differs between "
                "samples, so that they have no rate. Use more terms."
            )
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
        """The same bound for the numerator, by Parseval for the slopes."""
        B = self.batch_size
        included = (B - 3) * float(self.rates @ self.coefficients**2)
        left_out = max(self.slope_energy.value - included, 0.0) + self.slope_energy.error
        return self._largest_gap_left_out() * left_out / (B - 3)

    def _rounding(self, weights: Array) -> float:
        """Error of Σ weight·a_k² caused by the coefficients' errors."""
        return float(np.abs(weights) @ (2 * np.abs(self.coefficients) * self.errors))


@named_options
def gegenbauer_expansion(
    setting: Setting | ActivationLike,
    batch_size: int | None = None,
    *,
    terms: int,
    **options: Unpack[SettingOptions],
) -> GegenbauerExpansion:
    r"""Expand φ(γw + β) of a normalised sample w in orthonormal polynomials.

    .. math:: a_k = E[\phi(\gamma w + \beta)\,\psi_k(w)], \qquad
              \psi_k(w) \propto C_k^{(B-3)/2}(w / \sqrt{B-1})

    Args:
        setting: A :class:`Setting`, or its activation, followed by its batch size and keywords.
            Its ε must be 0; the variances of weights and biases do not enter.
        batch_size: Only beside an activation.
        terms: How many coefficients, at least 1; thousands are fine.

    Returns:
        The coefficients with bounds on their errors, and κ and the rate that follow from them.

    Raises:
        ValueError: If ``batch_size < 4``, a number is out of range or the activation is not
            usable.

    Examples:
        >>> expansion = gegenbauer_expansion("square", 9, terms=4)
        >>> expansion.coefficients.round(6) + 0.0  # w² = 1 + (a multiple of ψ₂)
        array([1.      , 0.      , 1.183216, 0.      ])
        >>> print(expansion.rate)  # 2(B - 1)/(B - 3)
        2.6667

    References:
        [yang2019], Theorem 9.
    """
    setting = as_setting(setting, batch_size, options)
    if setting.eps:
        raise ValueError(
            f"the expansion needs eps = 0, got {setting.eps:g}: at eps > 0 the size of a sample "
            "is random too, and polynomials of w are not enough. Set eps=0.0."
        )
    count = check_whole("terms", terms, 1)
    (coarse, rough), (fine, sharp) = _refined_coefficients(setting, count)
    if not (np.isfinite(fine).all() and np.isfinite(sharp).all()):
        raise ValueError(
            f"activation {setting.activation.name} overflows on normalised samples at "
            f"gamma = {setting.gamma:g}, beta = {setting.beta:g}. Use one that grows slower."
        )
    B, k = setting.batch_size, np.arange(count)
    # Angles at large B add ε_mach·√B.
    rounding = _UNIT * (1 + math.sqrt(B) / 16)
    energies = (
        Estimate(float(value), float(abs(value - other) + 16 * rounding * value), _METHOD)
        for value, other in zip(sharp, rough, strict=True)
    )
    second_moment, slope_energy = energies
    unseen = (B - 1) * float(unseen_slopes(Response.of(setting), B, np.ones(1))[0])
    slope_energy = replace(slope_energy, error=slope_energy.error + unseen)
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
    # A difference may vanish by chance, so each degree takes the largest up to it. Both levels
    # share the rounding of the recurrence: measured with ReLU, whose odd coefficients vanish, it
    # reaches 2.7e-14 at degree 3000 and B = 4, less at larger B; this allows twice that.
    growth = np.sqrt(1 + np.arange(len(fine)) / 64)
    return np.asarray(2 * np.maximum.accumulate(np.abs(fine - coarse)) + rounding * growth)


@np.errstate(over="ignore", invalid="ignore")
def _refined_coefficients(setting: Setting, terms: int) -> tuple[Level, Level]:
    """Refine until two levels agree; return the coarser and the finer.

    Args:
        setting: The activation, γ, β and the batch size.
        terms: How many coefficients.

    Returns:
        Two pairs of the coefficients, of shape ``[terms]``, and of E[f²] and E[(n − w²) f′²].
        Overflows are left to the caller.
    """
    fine = _expand(setting, terms, 0)
    for level in range(1, _LEVELS):
        coarse, fine = fine, _expand(setting, terms, level)
        change = float(np.abs(fine[0] - coarse[0]).max())
        if not change > _GOAL * math.sqrt(fine[1][0]):
            break
    return coarse, fine


def _expand(setting: Setting, terms: int, level: int) -> Level:
    """Coefficients, E[f²] and E[(n − w²) f′²]."""
    f = Response.of(setting)
    n = setting.batch_size - 1
    cosine, argument, weights = _nodes(f, n, terms, level)
    values, slopes = f(argument)
    values, slopes = (np.where(weights > 0, part, 0.0) for part in (values, slopes))
    weighted = weights * values
    polynomials = gegenbauer.polynomials(setting.batch_size, terms, math.sqrt(n) * cosine)
    coefficients = np.array([weighted @ psi for psi in polynomials])
    energy = weights @ (n * (1 - cosine**2) * slopes**2)
    return coefficients, np.array([weighted @ values, energy])


def _nodes(f: Response, n: int, terms: int, level: int) -> tuple[Array, Array, Array]:
    """Nodes cos θ = w/√n on panels of θ, f's arguments γw + β there, and the law's weights."""
    angles, arguments, singular = _edges(f, n, terms, level)
    pairs = [np.stack([part[:-1], part[1:]], 1) for part in (angles, arguments)]
    on_power = singular[:-1] | singular[1:]
    parts = []
    for rule, chosen in (
        (_RULES[min(level, 1)], ~on_power),
        (_POWER_RULES[min(level, 1)], on_power),
    ):
        if chosen.any():
            edges, x_edges = (pair[chosen] for pair in pairs)
            nodes = panels.place(rule, edges)
            cos_edge, step, sine = nodes.on_circle(edges, np.cos(edges))
            x = nodes.of_edges(x_edges) + f.gamma * math.sqrt(n) * step
            weights = nodes.weights * _density(n, cos_edge + step, sine)
            parts.append([part.ravel() for part in (cos_edge + step, x, weights)])
    cosines, x, weights = (np.concatenate(part) for part in zip(*parts, strict=True))
    return cosines, x, weights / weights.sum()


def _edges(f: Response, n: int, terms: int, level: int) -> tuple[Array, Array, NDArray[np.bool_]]:
    """Ascending edges in θ, f's arguments there, and whether each is a fractional power."""
    scale, widest = f.gamma * math.sqrt(n), _widest(n)
    at = (f.kinks - f.beta) / scale
    kinks = sorted(f.activation.kinks, key=lambda kink: kink.at)
    powers = np.array([kink.power for kink in kinks], dtype=bool)
    inside = np.abs(at) < widest
    found, powers = np.arccos(at[inside]), powers[inside]
    ends = np.arccos([widest, -widest])
    splits = max(_LEAST_SPLITS, math.ceil(float(np.ptp(ends)) * terms / _TURN)) * 4 ** max(
        0, level - 1
    )
    uniform, width = np.linspace(ends[0], ends[1], splits + 1, retstep=True)
    # A panel that ends close to a fractional power, but not on it, would need its rule too.
    uniform = uniform[(np.abs(uniform[:, None] - found[powers]) > width / 2).all(1)]
    angles = np.concatenate([found, uniform, ends])
    arguments = np.concatenate(
        [f.kinks[inside], *(scale * np.cos(part) + f.beta for part in (uniform, ends))]
    )
    singular = np.zeros(len(angles), dtype=bool)
    singular[: len(found)] = powers
    angles, first = np.unique(angles, return_index=True)
    return angles, arguments[first], singular[first]


def _widest(n: int) -> float:
    return min(_REACH / math.sqrt(n), 1.0)


def _density(n: int, cosine: Array, sine: Array) -> Array:
    """sin^(B-3) θ. A power n loses n·ε_mach, the logarithm loses digits near the poles instead."""
    if _widest(n) == 1:
        return np.asarray(sine ** (n - 2))
    return np.asarray(np.exp((n - 2) / 2 * np.log1p(-(cosine**2))))
