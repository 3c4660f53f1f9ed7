r"""Eigenvalues at the BSB1 fixed point as combinations of averages.

Every function reads like its formula in the source and works for all ε: the averages come at
each radius R, the radial law holds the weights of the outer average over x.

Symbols: B: batch size, n = B - 1, R: radius, D: slopes f′(Rw), f: values f(Rw),
τ = 1 - (1 - R²)², a = w_1/√B, b = w_2/√B.

References:
    [yang2019], Theorem 7 (backward, BSB1 direction), Appendices B (forward), C (backward) and D
    (cross-batch), all extended to ε > 0, γ and β.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from equipoise.theory.batch_norm.averages.response import SLOPES, VALUES, Averages
from equipoise.theory.batch_norm.fixed_point.radius import RadialLaw

Array = NDArray[np.float64]


def backward_g(
    batch_size: int, weight_variance: float, averages: Averages, law: RadialLaw
) -> float:
    r"""Backward eigenvalue along G, the rate at which gradients grow.

    .. math:: \lambda_G = \frac{\sigma_w^2}{B} E_x\big[s^{-2} E\{(n - \tau w_1^2) D_1^2
              + (1 + \tau w_1 w_2) D_1 D_2\}\big]
    """
    tau = 1 - (1 - law.radius**2) ** 2
    square, pair = averages.square, averages.pair
    inner = (
        (batch_size - 1) * square(SLOPES, 0)
        - tau * square(SLOPES, 2)
        + pair(SLOPES, 0, 0)
        + tau * pair(SLOPES, 1, 1)
    )
    return weight_variance / batch_size * float(np.dot(law.per_variance, inner))


def backward_l(
    batch_size: int, weight_variance: float, averages: Averages, law: RadialLaw
) -> float:
    r"""Backward eigenvalue along L, unequal gradient norms of samples.

    .. math:: \lambda_L = \sigma_w^2 E_x\big[s^{-2}\{E[D_1^2 (P_{11}^2 - g)]
              - 2 E[D_1 D_2 (P_{11} P_{12} - h)]\}\big]

    with :math:`P_{11} = 1 - \frac1B - R^2a^2`, :math:`P_{12} = -\frac1B - R^2ab` and the means of
    the same products over a further sample,
    :math:`g = \frac1{B^2} - \frac{2R^2a^2}{B(B-1)} + R^4\frac{a^2(1-a^2)}{B-1}`,
    :math:`h = \frac1{B^2} - R^2\frac{(a+b)^2}{B(B-2)} + R^4\frac{ab(1-a^2-b^2)}{B-2}`.
    """
    B, n = batch_size, batch_size - 1
    R2, R4 = law.radius**2, law.radius**4
    one, a2, a4 = (averages.square(SLOPES, p) / B ** (p / 2) for p in (0, 2, 4))
    P11_squared = (n / B) ** 2 * one - 2 * n / B * R2 * a2 + R4 * a4
    g = one / B**2 - 2 * R2 * a2 / (B * n) + R4 * (a2 - a4) / n
    both, ab, aa, a3b = _slope_pairs(averages, B)
    P11_P12 = -n / B**2 * both + R2 * (aa - n * ab) / B + R4 * a3b
    h = both / B**2 - R2 * 2 * (aa + ab) / (B * (B - 2)) + R4 * (ab - 2 * a3b) / (B - 2)
    inner = P11_squared - g - 2 * (P11_P12 - h)
    return weight_variance * float(np.dot(law.per_variance, inner))


def backward_m(
    batch_size: int, weight_variance: float, averages: Averages, law: RadialLaw
) -> float:
    r"""Backward eigenvalue along M, correlations between the samples' gradients.

    .. math:: \lambda_M = \sigma_w^2 E_x\Big[s^{-2} E\Big[D_1 D_2 \Big(1 - R^2\Big\{a^2 + b^2
              + \tfrac{(a+b)^2}{B-2}\Big\} + 2R^4 ab\Big\{ab + \tfrac{(a+b)^2}{B-2}
              + \tfrac{(a+b)^2+a^2+b^2-1}{(B-2)(B-3)}\Big\}\Big)\Big]\Big]
    """
    B = batch_size
    R2, R4 = law.radius**2, law.radius**4
    both, ab, aa, a3b = _slope_pairs(averages, B)
    a2b2 = averages.pair(SLOPES, 2, 2) / B**2
    sum_squared = 2 * (a3b + a2b2)  # E[D₁D₂ ab (a + b)²]
    inner = both - 2 * R2 * (aa + (aa + ab) / (B - 2))
    inner += (
        2
        * R4
        * (a2b2 + sum_squared / (B - 2) + (sum_squared + 2 * a3b - ab) / ((B - 2) * (B - 3)))
    )
    return weight_variance * float(np.dot(law.per_variance, inner))


def _slope_pairs(averages: Averages, batch_size: int) -> tuple[Array, Array, Array, Array]:
    """E[D₁D₂·] of 1, ab, a² and a³b."""
    one, ab, aa, a3b = (
        averages.pair(SLOPES, i, j) / batch_size ** ((i + j) / 2)
        for i, j in ((0, 0), (1, 1), (2, 0), (3, 1))
    )
    return one, ab, aa, a3b


def forward_g(
    batch_size: int, weight_variance: float, kappa: float, averages: Averages, law: RadialLaw
) -> float:
    r"""Forward eigenvalue along G; 0 at ε = 0.

    .. math:: \lambda^\uparrow_G = \frac{\sigma_w^2}{2\kappa} E_x[(x - n)\,\kappa_f(R)]
    """
    n = batch_size - 1
    per_excess = law.per_energy - law.weight
    return weight_variance * n / (2 * kappa) * float(np.dot(per_excess, averages.kappa))


def forward_l(
    batch_size: int, weight_variance: float, kappa: float, averages: Averages, law: RadialLaw
) -> float:
    r"""Forward eigenvalue along L, unequal variances of samples.

    At ε = 0, with :math:`E[\cdot]` over directions,

    .. math:: \lambda^\uparrow_L = \frac{1}{2\kappa}\Big\{E[f_1^2(w_1^2-1)]
              - \frac{2(B-1)}{B-2} E[f_1 f_2 (w_1^2-1)]\Big\}
    """
    B = batch_size
    square, pair = averages.square, averages.pair
    unequal = square(VALUES, 2) - square(VALUES, 0)
    shared = pair(VALUES, 2, 0) - pair(VALUES, 0, 0)
    inner = (unequal - 2 * (B - 1) / (B - 2) * shared) / 2
    return weight_variance / kappa * float(np.dot(law.per_energy, inner))


def forward_m(
    batch_size: int, weight_variance: float, kappa: float, averages: Averages, law: RadialLaw
) -> float:
    r"""Forward eigenvalue along M, unequal correlations between samples.

    At ε = 0, with :math:`E[\cdot]` over directions,

    .. math:: \lambda^\uparrow_M = \frac{B-1}{B\kappa}E\Big[f_1 f_2\Big(w_1w_2
              + \frac{(w_1+w_2)^2}{B-2} + \frac{(w_1+w_2)^2+w_1^2+w_2^2-B}{(B-2)(B-3)}\Big)\Big]
    """
    B = batch_size
    constant, product, square = (averages.pair(VALUES, i, j) for i, j in ((0, 0), (1, 1), (2, 0)))
    sum_squared = 2 * square + 2 * product
    inner = (
        product
        + sum_squared / (B - 2)
        + (sum_squared + 2 * square - B * constant) / ((B - 2) * (B - 3))
    )
    return weight_variance * (B - 1) / (B * kappa) * float(np.dot(law.per_energy, inner))


def cross_batch_covariance(weight_variance: float, averages: Averages, law: RadialLaw) -> float:
    r"""Second moment shared by samples of two batches, less that of the biases.

    .. math:: c_{CB} = \sigma_w^2\,(E_x E f)^2
    """
    return weight_variance * float(np.dot(law.weight, averages.mean)) ** 2


def cross_batch_rate(
    batch_size: int, weight_variance: float, kappa: float, averages: Averages, law: RadialLaw
) -> float:
    r"""Eigenvalue of covariance between two batches, forward and backward alike.

    .. math:: \lambda_{CB} = \frac{\sigma_w^2 B}{\kappa n^2}\big(E_x[\sqrt x\,E f_1 w_1]\big)^2
    """
    B, n = batch_size, batch_size - 1
    return (
        weight_variance * B / (kappa * n) * float(np.dot(law.per_amplitude, averages.first)) ** 2
    )
