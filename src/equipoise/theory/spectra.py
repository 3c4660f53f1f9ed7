r"""Eigenvalues at the BSB1 fixed point as combinations of averages.

Every function reads like its formula in the source and works for all ε: the averages come at
each radius R, the radial law holds the weights of the outer average over x.

Symbols: B: batch size, n = B - 1, R: radius, D: slopes f′(Rw), f: values f(Rw),
τ = 1 - (1 - R²)².

References:
    [yang2019], Theorem 7 (backward, BSB1 direction) and Appendix B (forward), both extended to
    ε > 0, γ and β.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from equipoise.theory.averages import SLOPES, VALUES, Averages
from equipoise.theory.radius import RadialLaw

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
    return weight_variance / batch_size * float(law.per_variance @ inner)


def forward_g(
    batch_size: int, weight_variance: float, kappa: float, averages: Averages, law: RadialLaw
) -> float:
    r"""Forward eigenvalue along G; 0 at ε = 0.

    .. math:: \lambda^\uparrow_G = \frac{\sigma_w^2}{2\kappa} E_x[(x - n)\,\kappa_f(R)]
    """
    n = batch_size - 1
    per_excess = law.per_energy - law.weight
    return weight_variance * n / (2 * kappa) * float(per_excess @ averages.kappa)


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
    return weight_variance / kappa * float(law.per_energy @ inner)


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
    return weight_variance * (B - 1) / (B * kappa) * float(law.per_energy @ inner)
