r"""Second moments of an activation's outputs under Gaussian inputs, in closed form.

.. math:: V_\phi(\Sigma) = E[\phi(h)\phi(h)^T], \qquad h \sim N(0, \Sigma)

Every formula also holds for complex symmetric Σ = (P + pI)^-1 with P positive definite and p off
the negative axis, where the Fourier form of the batch-norm map needs it. There the imaginary part
of Σ is definite, hence so is that of a Schur complement, and 1 - c² = Σ_jj|i / Σ_jj never becomes
negative: principal branches are the analytic continuation.

Symbols: c: correlation of two inputs, θ = arccos c, J_α: correlation kernel of max(x, 0)^α.

References:
    [yang2019], Appendix H; the arcsine kernel is Williams's (1997).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import gamma as gamma_function
from scipy.special import hyp2f1

from equipoise.theory.activation.catalogue import ACTIVATIONS, Activation, Homogeneity

Numbers = NDArray[Any]  # float64 or complex128


@dataclass(frozen=True, slots=True, eq=False)
class Kernel:
    r"""The map Σ → V_φ(Σ) of one activation.

    Args:
        function: V on arrays of shape ``[..., B, B]``, real or complex symmetric.
        degree: α where φ is positive-homogeneous of degree α, else None.

    Examples:
        >>> kernel = closed_form_kernel(ACTIVATIONS["relu"])
        >>> kernel(np.array([[2.0, 0.0], [0.0, 2.0]])) * math.pi  # on the diagonal π
        array([[3.14159265, 1.        ],
               [1.        , 3.14159265]])
    """

    function: Callable[[Numbers], Numbers]
    degree: float | None = None

    def __call__(self, cov: Numbers) -> Numbers:
        """Return V_φ of each matrix in ``cov``, of shape ``[..., B, B]``."""
        return self.function(cov)


def closed_form_kernel(activation: Activation) -> Kernel | None:
    r"""Find V_φ of an activation, or None where no closed form is known.

    Known are the identity, :math:`a\max(x,0)^\alpha - b\max(-x,0)^\alpha` for α > 1/2, erf, sin
    and the square.
    """
    shape = activation.homogeneity
    if shape is None:
        return _NAMED.get(activation)
    if not shape.alpha > 0.5:
        return None
    if shape.alpha == 1 and shape.a == shape.b:
        return Kernel(lambda cov: shape.a**2 * cov, 1.0)
    return Kernel(lambda cov: homogeneous_kernel(shape, cov), shape.alpha)


def homogeneous_kernel(shape: Homogeneity, cov: Numbers) -> Numbers:
    r"""V_φ of :math:`\phi(x) = a\max(x,0)^\alpha - b\max(-x,0)^\alpha`.

    .. math:: V_{ij} = c_\alpha (\Sigma_{ii}\Sigma_{jj})^{\alpha/2}
        \{(a^2+b^2) J_\alpha(c_{ij}) - 2ab J_\alpha(-c_{ij})\}, \quad
        c_\alpha = \frac{2^{\alpha-1}\Gamma(\alpha+\frac12)}{\sqrt\pi}
    """
    alpha, a, b = shape.alpha, shape.a, shape.b
    size = 2 ** (alpha - 1) * math.gamma(alpha + 0.5) / math.sqrt(math.pi)

    def joint(c: Numbers) -> Numbers:
        same, opposite = correlation_kernels(alpha, c, both=a * b != 0)
        same = (a * a + b * b) * same
        return size * (same if a * b == 0 else same - 2 * a * b * opposite)

    c, root = _correlations(cov)
    power = root**alpha
    return np.asarray(power[..., :, None] * power[..., None, :] * _mirrored(joint, c))


def correlation_kernels(alpha: float, c: Numbers, *, both: bool = True) -> tuple[Numbers, Numbers]:
    r"""J_α(c) and J_α(-c), elementwise, for α > -1/2.

    .. math:: J_\alpha(c) = \frac{F(x)}{F(1)}\,x^{\alpha+\frac12}, \quad
        F(x) = {}_2F_1(\tfrac12, \tfrac12; \alpha+\tfrac32; x), \quad x = \frac{1+c}2 .

    This is the solution of the kernel's differential equation that vanishes at c = -1. All terms
    of F are positive, so that no digits cancel. The difference of two functions of c² in
    :func:`equipoise.theory.batch_norm.averages.homogeneous.kernel` loses them near c = -1.

    Args:
        alpha: Power of the rectifier.
        c: Correlations, real in [-1, 1] or complex off the real axis beyond it.
        both: Whether J_α(-c) is needed; zeros are returned in its place otherwise.
    """
    if alpha in (1, 2):
        return _elementary(int(alpha), c, both)
    at_one = gamma_function(alpha + 1.5) * gamma_function(alpha + 0.5)
    at_one /= gamma_function(alpha + 1) ** 2

    def one_side(x: Numbers) -> Numbers:
        series = hyp2f1(0.5, 0.5, alpha + 1.5, x)
        return np.asarray(series / at_one * x ** (alpha + 0.5))

    return one_side((1 + c) / 2), one_side((1 - c) / 2) if both else np.zeros_like(c)


def _elementary(alpha: int, c: Numbers, both: bool) -> tuple[Numbers, Numbers]:
    """J_1 and J_2 at c and -c, an order of magnitude faster than the series."""
    angle = np.arccos(c)
    # From the angle, not as √(1 - c²): both then lie on the same side of the branch at c = ±1.
    sine = np.sin(angle)
    if alpha == 1:
        same = (sine + (np.pi - angle) * c) / np.pi
        return same, (sine - angle * c) / np.pi if both else np.zeros_like(c)
    odd, even = 3 * c * sine, 1 + 2 * c * c
    same = (odd + (np.pi - angle) * even) / (3 * np.pi)
    return same, (angle * even - odd) / (3 * np.pi) if both else np.zeros_like(c)


def _correlations(cov: Numbers) -> tuple[Numbers, Numbers]:
    """Correlations ``[..., B, B]``, 0 where a variance is 0, and roots of the variances."""
    variance = np.diagonal(cov, axis1=-2, axis2=-1)
    real = not np.iscomplexobj(cov)
    root = np.sqrt(np.maximum(variance, 0) if real else variance)
    scale = root[..., :, None] * root[..., None, :]
    c = np.divide(cov, scale, out=np.zeros_like(scale), where=scale != 0)
    diagonal = np.arange(cov.shape[-1])
    c[..., diagonal, diagonal] = 1
    return (np.clip(c, -1, 1) if real else c), root


def _mirrored(function: Callable[[Numbers], Numbers], symmetric: Numbers) -> Numbers:
    """Apply a costly elementwise function to symmetric matrices, once for each pair."""
    size = symmetric.shape[-1]
    first, second = np.triu_indices(size)
    pair = np.empty((size, size), dtype=np.intp)
    pair[first, second] = pair[second, first] = np.arange(len(first))
    # Flat, because indexing with two arrays takes up to twice as long.
    flat = symmetric.reshape(*symmetric.shape[:-2], size * size)
    return function(flat.take(first * size + second, -1)).take(pair, -1)


def _erf(cov: Numbers) -> Numbers:
    """2/π arcsin(2Σ_ij / √((1 + 2Σ_ii)(1 + 2Σ_jj)))."""
    root = np.sqrt(1 + 2 * np.diagonal(cov, axis1=-2, axis2=-1))
    sine = 2 * cov / (root[..., :, None] * root[..., None, :])
    return 2 / np.pi * _mirrored(np.arcsin, sine)


def _sin(cov: Numbers) -> Numbers:
    """exp(-(Σ_ii + Σ_jj)/2) sinh(Σ_ij), without its overflow."""
    variance = np.diagonal(cov, axis1=-2, axis2=-1)
    mean = (variance[..., :, None] + variance[..., None, :]) / 2
    return np.asarray((np.exp(cov - mean) - np.exp(-cov - mean)) / 2)


def _square(cov: Numbers) -> Numbers:
    """Σ_ii Σ_jj + 2Σ_ij²."""
    variance = np.diagonal(cov, axis1=-2, axis2=-1)
    return np.asarray(variance[..., :, None] * variance[..., None, :] + 2 * cov * cov)


_NAMED: dict[Activation, Kernel] = {
    ACTIVATIONS["erf"]: Kernel(_erf),
    ACTIVATIONS["sin"]: Kernel(_sin),
    ACTIVATIONS["square"]: Kernel(_square, 2.0),
}
