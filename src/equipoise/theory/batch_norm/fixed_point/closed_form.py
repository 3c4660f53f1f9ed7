r"""Closed forms for φ(x) = a·max(x, 0)^α − b·max(−x, 0)^α at ε = 0, β = 0.

Symbols: J_α: correlation kernel of max(x, 0)^α with J_α(1) = 1, c = -1/(B - 1): correlation of
two centred samples, J = J_φ(c), D = J_φ(1) - J_φ(c).

References:
    [yang2019], Theorem 8 (backward, G), Appendices B.4 (forward), C.3 (backward) and D
    (cross-batch).
"""

from __future__ import annotations

import math
from typing import cast

from scipy.special import gamma as gamma_function

from equipoise.numerics.special import gamma_ratio
from equipoise.records.estimate import Estimate
from equipoise.theory.activation.catalogue import Homogeneity
from equipoise.theory.batch_norm.averages.homogeneous import (
    half_moment,
    kernel_derivative,
    kernel_of,
)
from equipoise.theory.batch_norm.fixed_point.solution import UNIT, Solution, Triple
from equipoise.theory.batch_norm.setting import Setting


def is_closed(setting: Setting) -> bool:
    """Whether a closed form is known: for α > 1/2 at ε = β = 0."""
    shape = setting.activation.homogeneity
    return shape is not None and shape.alpha > 0.5 and setting.eps == setting.beta == 0


def closed_form(setting: Setting) -> Solution | None:
    r"""Everything in closed form, or None where no closed form is known.

    With :math:`K = c_\alpha\,\Gamma(\frac n2)(\frac n2)^\alpha/\Gamma(\frac n2+\alpha)`,
    :math:`q = K J_\phi(1)`, :math:`qc = KJ`, :math:`\kappa = KD`, and eigenvalues that depend on
    J, J′ and D alone.
    """
    shape = setting.activation.homogeneity
    if shape is None or not is_closed(setting):
        return None
    B, alpha, a, b = setting.batch_size, shape.alpha, shape.a, shape.b
    n, J1, J = B - 1, a * a + b * b, kernel_of(shape, -1 / (B - 1))
    D = J1 - J
    variance = setting.weight_variance * setting.gamma ** (2 * alpha)
    K = variance * half_moment(2 * alpha) / gamma_ratio(n / 2, alpha)
    q, qc = K * J1 + setting.bias_variance, K * J + setting.bias_variance
    shared = variance * _shared_moment(shape) / gamma_ratio(n / 2, alpha / 2) ** 2

    # α close to 1/2 loses digits in 2α − 1, a large one in gamma functions; a ≈ b in D.
    lost = 1 / (2 * alpha - 1) + max(1.0, J1 / D) + alpha

    def estimate(value: float, terms: float = 0.0) -> Estimate:
        error = 32 * UNIT * max(abs(value), terms) * lost
        return Estimate(value, error, "closed form")

    slope = kernel_derivative(shape, -1 / n) / D
    backward = tuple(estimate(*pair) for pair in _backward(shape, B, slope, J1 / D, J / D))
    if alpha == 1 and a == b:
        backward = (Estimate((B - 2) / (B - 3), UNIT, "closed form"), *backward[1:])
    along_m = B * slope / (B - 1 + 2 * alpha)
    along_l = alpha * (B - 2) / (B - 1 + 2 * alpha) + along_m / n
    return Solution(
        q=estimate(q),
        c=estimate(qc / q, J1 / q * K),
        kappa=estimate(K * D),
        backward=cast("Triple", backward),
        forward=(Estimate(0.0, 0.0, "closed form"), estimate(along_l), estimate(along_m)),
        cross_covariance=estimate(shared + setting.bias_variance),
        cross_rate=estimate(_cross_rate(shape, B) / D),
    )


def _shared_moment(shape: Homogeneity) -> float:
    """(E φ)² for a standard normal argument."""
    half = float(gamma_function((shape.alpha + 1) / 2))
    return (shape.a - shape.b) ** 2 * math.exp2(shape.alpha) * half**2 / (4 * math.pi)


def _backward(
    shape: Homogeneity, B: int, slope: float, J1: float, J: float
) -> tuple[tuple[float, float], ...]:
    """Backward eigenvalues along G, L, M, each with the size of its terms.

    ``slope``, ``J1`` and ``J`` are J′, J_φ(1) and J_φ(c), each divided by D.
    """
    alpha, n = shape.alpha, B - 1
    degree = n + 2 * alpha
    along_g = (
        alpha**2 * ((B - 2) * J1 / (2 * alpha - 1) + J) + (B - 3 + 2 * alpha) / n * slope
    ) / (B - 3)
    along_m = (
        B * (B**2 + 2 * (alpha - 2) * B + 2 * alpha * (alpha - 3) + 3) / ((B - 3) * n * degree)
    ) * slope
    parts = (
        -2 * alpha**2 * (B - 2) * (n + alpha) / ((B - 3) * n * degree),
        2 * (alpha**2 * (3 * B - 4) + alpha * n * (3 * B - 8) + (B - 3) * n**2)
        / ((B - 3) * n**2 * degree) * slope,
        alpha**2 * (B - 2) * (B - 3 + 2 * alpha) / ((2 * alpha - 1) * (B - 3) * n) * J1,
    )  # fmt: skip
    size = sum(abs(part) for part in parts)
    return (along_g, along_g), (sum(parts), size), (along_m, along_g)


def _cross_rate(shape: Homogeneity, B: int) -> float:
    """λ_CB·D, by the gamma functions P(n/2, α) / P(B/2, α/2)² and J′(0)."""
    alpha, n = shape.alpha, B - 1
    ratio = gamma_ratio(n / 2, alpha) / gamma_ratio(B / 2, alpha / 2) ** 2
    return B / n * math.pow(n / B, alpha) * ratio * kernel_derivative(shape, 0.0)
