r"""Averages of φ(x) = a·max(x, 0)^α − b·max(−x, 0)^α in closed form.

Symbols: y_1, y_2: standard normal with correlation c = -1/n, n = B - 1; J_α: correlation kernel
of max(x, 0)^α with J_α(1) = 1; f = φ(γx), D = f'.

References:
    [yang2019], Appendix B.4; the kernel's stable form is evaluated with ₂F₁. The averages with
    powers of w are derived in :func:`homogeneous_averages`.
"""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray
from scipy.special import gamma as gamma_function
from scipy.special import hyp2f1

from equipoise.numerics.special import gamma_ratio
from equipoise.theory.activation.catalogue import Homogeneity
from equipoise.theory.batch_norm.averages.response import (
    PAIR_POWERS,
    SLOPES,
    SQUARE_POWERS,
    VALUES,
    Averages,
)

Array = NDArray[np.float64]


def kernel(alpha: float, c: float) -> float:
    r"""Correlation kernel :math:`J_\alpha(c)` of the α-ReLU, for α > -1/2.

    .. math:: J_\alpha(c) = \frac{\Gamma(\frac{\alpha+1}2)^2
        {}_2F_1(-\frac\alpha2,-\frac\alpha2;\frac12;c^2) + 2c\,\Gamma(\frac\alpha2+1)^2
        {}_2F_1(\frac{1-\alpha}2,\frac{1-\alpha}2;\frac32;c^2)}{2\sqrt\pi\,\Gamma(\alpha+\frac12)}

    Examples:
        >>> round(kernel(1, 1.0), 12), round(kernel(1, 0.0) * math.pi, 12)
        (1.0, 1.0)
    """
    even = gamma_function((alpha + 1) / 2) ** 2 * hyp2f1(-alpha / 2, -alpha / 2, 0.5, c * c)
    odd = gamma_function(alpha / 2 + 1) ** 2 * hyp2f1((1 - alpha) / 2, (1 - alpha) / 2, 1.5, c * c)
    return float(even + 2 * c * odd) / (
        2 * math.sqrt(math.pi) * float(gamma_function(alpha + 0.5))
    )


def kernel_of(shape: Homogeneity, c: float) -> float:
    """Kernel J_φ(c) = (a² + b²) J_α(c) − 2ab J_α(−c) of the two-sided function."""
    a, b = shape.a, shape.b
    return (a * a + b * b) * kernel(shape.alpha, c) - 2 * a * b * kernel(shape.alpha, -c)


def kernel_of_slope(shape: Homogeneity, c: float) -> float:
    """Kernel J_φ′(c) = α²[(a² + b²) J_{α-1}(c) + 2ab J_{α-1}(−c)] of the slopes."""
    a, b, alpha = shape.a, shape.b, shape.alpha
    same, opposite = kernel(alpha - 1, c), kernel(alpha - 1, -c)
    return alpha**2 * ((a * a + b * b) * same + 2 * a * b * opposite)


def kernel_derivative(shape: Homogeneity, c: float) -> float:
    """Derivative J′ of J_φ with respect to c, from J_φ′ = (2α − 1) J′."""
    return kernel_of_slope(shape, c) / (2 * shape.alpha - 1)


def half_moment(power: float) -> float:
    """E[max(y, 0)^p] of a standard normal y.

    Examples:
        >>> half_moment(2.0)
        0.5
    """
    return math.exp2(power / 2 - 1) * float(gamma_function((power + 1) / 2)) / math.sqrt(math.pi)


@lru_cache(maxsize=64)
def homogeneous_averages(shape: Homogeneity, gamma: float, batch_size: int) -> Averages:
    r"""Averages at R = 1 for α > 1/2; those that no formula of spectra needs are nan.

    A normalised batch is a normal one on a sphere, so what is homogeneous of degree d has
    :math:`E[h(w)] = E[h(y)]/\rho(d/2)` with ρ(s) = Γ(n/2 + s)/(Γ(n/2)(n/2)^s).
    With P = E[f₁f₂] and Q = E[D₁D₂] = dP/dc, Stein's lemma and y·D = αf give

    .. math:: X &= E[y_1f_1D_2] = (1 - c^2)Q + \alpha cP, \\
              E[y_1^2f_1f_2] &= (1 + \alpha)P + cX, \qquad
              E[y_1y_2f_1f_2] = X + (1 + \alpha)cP,

    and every average with slopes is one of these, by :math:`y_1D_1 = \alpha f_1` once or twice.
    """
    alpha, n = shape.alpha, batch_size - 1
    a, b, c = shape.a * gamma**alpha, shape.b * gamma**alpha, -1 / n
    scaled = Homogeneity(alpha, a, b)

    def rho(degree: float) -> float:
        return gamma_ratio(n / 2, degree / 2)

    moment = half_moment(2 * alpha)
    own, P, Q = (
        moment * part
        for part in (a * a + b * b, kernel_of(scaled, c), kernel_derivative(scaled, c))
    )
    X = (1 - c * c) * Q + alpha * c * P
    one_squared, both = (1 + alpha) * P + c * X, X + (1 + alpha) * c * P
    mean = (a - b) * half_moment(alpha)
    m = mean / rho(alpha)  # E[f], which values are less
    m2 = (1 + alpha) * mean / rho(alpha + 2)  # E[w² f]
    across = (c * c * (1 + alpha) + 1 - c * c) * mean / rho(alpha + 2)  # E[w₁² f₂]
    squares = np.full((2, SQUARE_POWERS, 1), np.nan)
    pairs = np.full((2, PAIR_POWERS, PAIR_POWERS, 1), np.nan)
    squares[VALUES, 0] = own / rho(2 * alpha) - m * m
    squares[VALUES, 2] = (2 * alpha + 1) * own / rho(2 * alpha + 2) - 2 * m * m2 + m * m
    squares[SLOPES, 0] = alpha**2 * own / (2 * alpha - 1) / rho(2 * alpha - 2)
    squares[SLOPES, 2] = alpha**2 * own / rho(2 * alpha)
    squares[SLOPES, 4] = alpha**2 * (2 * alpha + 1) * own / rho(2 * alpha + 2)
    pairs[VALUES, 0, 0] = P / rho(2 * alpha) - m * m
    pairs[VALUES, 1, 1] = both / rho(2 * alpha + 2) - 2 * m * c * m2 + m * m * c
    pairs[VALUES, 2, 0] = one_squared / rho(2 * alpha + 2) - m * (m2 + across) + m * m
    pairs[SLOPES, 0, 0] = Q / rho(2 * alpha - 2)
    pairs[SLOPES, 1, 1] = alpha**2 * P / rho(2 * alpha)
    pairs[SLOPES, 2, 0] = alpha * X / rho(2 * alpha)
    pairs[SLOPES, 3, 1] = alpha**2 * one_squared / rho(2 * alpha + 2)
    pairs[SLOPES, 2, 2] = alpha**2 * both / rho(2 * alpha + 2)
    first = (a + b) * half_moment(alpha + 1) / rho(alpha + 1)
    return Averages(np.array([m]), np.array([first]), squares, pairs, 0.0, "closed form")


def at_radii(at_one: Averages, alpha: float, radii: Array) -> Averages:
    """Averages at other radii than R = 1: f(Rw) = R^α f(w)."""
    factors = np.array([radii**alpha, radii ** (alpha - 1)])  # [2, radii]
    return Averages(
        at_one.mean * factors[VALUES],
        at_one.first * factors[VALUES],
        at_one.squares * factors[:, None] ** 2,
        at_one.pairs * factors[:, None, None] ** 2,
        at_one.truncation,
        at_one.method,
    )
