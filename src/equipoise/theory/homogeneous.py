r"""Closed forms for φ(x) = a·max(x, 0)^α − b·max(−x, 0)^α at ε = 0, β = 0.

Symbols: J_α: correlation kernel of max(x, 0)^α with J_α(1) = 1, c = -1/(B - 1): correlation of
two centred samples, J = J_φ(c), D = J_φ(1) - J_φ(c).

References:
    [yang2019], Theorem 8 and Appendix; the kernel's stable form is evaluated with ₂F₁.
"""

from __future__ import annotations

import math

from scipy.special import gamma as gamma_function
from scipy.special import hyp2f1

from equipoise.records import Estimate
from equipoise.theory.activations import Homogeneity
from equipoise.theory.setting import Setting

_UNIT = 2.220446049250313e-16


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


def closed_form_rate(setting: Setting) -> Estimate | None:
    r"""The explosion rate in closed form, or None where none is known.

    .. math:: \lambda_G = \frac{\alpha^2\{(B-2)J_\phi(1)+(2\alpha-1)J\}
        + \frac{B-3+2\alpha}{B-1}J_{\phi'}(c)}{(2\alpha-1)(B-3)D}

    For α = 1 without a kink this is (B - 2)/(B - 3), for ReLU
    (B - 2 + J_1(c) + J_0(c)) / ((B - 3)(1 - J_1(c))).
    """
    shape = setting.activation.homogeneity
    if shape is None or setting.eps or setting.beta:
        return None
    B, alpha, a, b = setting.batch_size, shape.alpha, shape.a, shape.b
    if alpha == 1 and a == b:
        return Estimate((B - 2) / (B - 3), _UNIT, "closed form", stable=True)
    c = -1 / (B - 1)
    J1, J = a * a + b * b, kernel_of(shape, c)
    slope = kernel_of_slope(shape, c)
    D = J1 - J
    rate = alpha**2 * ((B - 2) * J1 + (2 * alpha - 1) * J) + (B - 3 + 2 * alpha) / (B - 1) * slope
    rate /= (2 * alpha - 1) * (B - 3) * D
    # α > 1/2 close to 1/2 loses digits in 2α − 1; a ≈ b loses them in D.
    error = 32 * _UNIT * rate * (1 + 1 / (2 * alpha - 1)) * max(1.0, J1 / D)
    return Estimate(rate, error, "closed form", stable=_is_stable(shape, B, slope, D))


def _is_stable(shape: Homogeneity, B: int, slope: float, D: float) -> bool:
    """Whether λ↑_L and λ↑_M are below 1, with J_φ′ = (2α − 1) J′."""
    alpha = shape.alpha
    derivative = slope / (2 * alpha - 1)
    along_m = B * derivative / ((B - 1 + 2 * alpha) * D)
    along_l = alpha * (B - 2) / (B - 1 + 2 * alpha) + along_m / (B - 1)
    return max(along_l, along_m) < 1
