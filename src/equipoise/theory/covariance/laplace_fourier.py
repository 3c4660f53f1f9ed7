r"""Two quadrature rules that replace a Gaussian vector's norm by averages of shrunk covariances.

An average over y = Gh, h ~ N(0, Σ), of a function of y/√(S + ε) with S = ‖y‖²/B becomes a sum of
weight × (average of the function of y itself), with the eigenvalues of GΣG shrunk at each node
and its eigenvectors kept. In Laplace's form, for functions of degree 2α,

.. math:: (S+\varepsilon)^{-\alpha} = \frac1{\Gamma(\alpha)}\int_0^\infty
          s^{\alpha-1} e^{-s(S+\varepsilon)}\,ds ;

in Fourier's, for any, the density of S at t is an inverse Laplace transform along a contour in p.
Both include the rule with twice the step, from which callers estimate the error.

Symbols: B: batch size, G: centring projector, λ_k: eigenvalues of Σ^G = GΣG, scaled so that the
largest is 1, C: their number, b_k = B/(2λ_k), d_k = b_k - min b, D_k = q + d_k.

References:
    [yang2019], Theorems 2 and 3, Appendices B.1.1 and B.1.2; extended to ε > 0 here.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from equipoise.theory.covariance.kernels import Numbers

Array = NDArray[np.float64]

# Nodes whose weight is below exp(-40) = 4e-18 of the largest are left out.
_LEFT_OUT = 40.0
# Angle of the contour from the vertical. Below π/4 the integrand falls from the saddle on,
# whatever the spectrum, so that nothing cancels.
_TILT = 0.7


@dataclass(frozen=True, slots=True, eq=False)
class Rule:
    """Nodes whose sum of weight × V_φ(U diag(shrunk) Uᵀ) is the map, as its real part.

    Args:
        shrunk: Eigenvalues at each node, of shape ``[nodes, C]``.
        weight: Weights, ``[nodes]``.
        coarse: Weights of the rule with twice the step, ``[nodes]``.
    """

    shrunk: Numbers
    weight: Numbers
    coarse: Numbers


def laplace_rule(values: Array, batch_size: int, alpha: float, eps: float = 0.0) -> Rule:
    r"""Trapezoid rule in log s of Laplace's form.

    .. math:: V_{B_\phi} = \frac{B^\alpha}{\Gamma(\alpha)}\int_0^\infty ds\,s^{\alpha-1}
        e^{-sB\varepsilon}\det(I+2s\Sigma^G)^{-1/2}\,V_\phi\big(\Sigma^G(I+2s\Sigma^G)^{-1}\big)

    Args:
        values: Positive eigenvalues λ_k, the largest being 1.
        batch_size: B.
        alpha: Degree of φ.
        eps: ε in the units of ``values``.
    """
    # Γ(α + iω), the integrand's transform at large B, has a width of √α in ω. At this step the
    # coarse rule is exact to 1e-12.
    step = 0.15 / max(1.0, math.sqrt(alpha))
    lowest = -_LEFT_OUT / alpha - math.log(2 * batch_size * (1 + eps))
    index = np.arange(math.floor(lowest / step), math.ceil(90 / step))
    s = np.exp(step * index)
    growth = 1 + 2 * s[:, None] * values
    logs = alpha * step * index - np.log(growth).sum(1) / 2 - s * batch_size * eps
    logs += alpha * math.log(batch_size) - math.lgamma(alpha) + math.log(step)
    kept = _above(logs + alpha * np.log((values / growth).max(1)))
    weight = np.exp(logs[kept])
    return Rule((values / growth)[kept], weight, 2 * weight * (index[kept] % 2 == 0))


def fourier_rule(values: Array, batch_size: int, eps: float = 0.0) -> Rule:
    r"""Product rule of Fourier's form, over S and a contour in p = iλ.

    .. math:: V_{B_\phi} = \int_0^\infty dt\int\frac{dp}{2\pi i}\,e^{pt}
        \det\Big(I+\frac{2p}B\Sigma^G\Big)^{-1/2}\,V_\phi\Big(\frac1{t+\varepsilon}
        \Sigma^G\big(I+\frac{2p}B\Sigma^G\big)^{-1}\Big)

    t runs over the values of S and is parametrised by the saddle point of the inner integrand,
    t = ½ Σ_k 1/D_k at p = q - min b. The contour is a hyperbola through that saddle, bent towards
    the branch points. Talbot's bends further, so that the determinant grows along it before e^pt
    decays: with equal eigenvalues e^4 cancels at C = 100, but e^31 at C = 200.

    Args:
        values: Positive eigenvalues λ_k, the largest being 1.
        batch_size: B.
        eps: ε in the units of ``values``.
    """
    b = batch_size / (2 * values)
    shift = b.min()
    step, index, saddle = _saddles(b, shift)
    fine, column, move, speed = _hyperbola()
    distance = saddle[:, None] + (b - shift)  # [saddles, C]
    t = (1 / distance).sum(1) / 2
    curvature = (1 / distance**2).sum(1) / 2
    shifts = move / np.sqrt(curvature)[:, None]  # [saddles, columns], p - p_saddle
    point = distance[:, None, :] + shifts[:, :, None]  # p + b_k
    logs = (saddle[:, None] - shift + shifts) * t[:, None] - np.log(point / b).sum(2) / 2
    logs += np.log(speed) + np.log(fine * step / np.pi * np.sqrt(curvature) * saddle)[:, None]
    kept = logs.real > logs.real.max() - _LEFT_OUT
    weight = np.exp(logs) * np.where(column == 0, 0.5, 1.0)  # the other half is its conjugate
    even = (index[:, None] % 2 == 0) & (column % 2 == 0)
    shrunk = batch_size / (2 * point) / (t + eps)[:, None, None]
    return Rule(shrunk[kept], weight[kept], (4 * weight * even)[kept])


def _hyperbola() -> tuple[float, NDArray[np.int64], Numbers, Numbers]:
    """Step, columns, points and speed (over i) of the upper half of a contour of width 1."""
    # At this step the coarse rule is exact to 1e-10, or 1e-14 at small B.
    step = 0.075
    column = np.arange(math.ceil(6 / step))
    sinh, cosh = np.sinh(step * column), np.cosh(step * column)
    bend, rise = math.sin(_TILT), math.cos(_TILT)
    return step, column, bend * (1 - cosh) + 1j * rise * sinh, rise * cosh + 1j * bend * sinh


def _saddles(b: Array, shift: float) -> tuple[float, NDArray[np.int64], Array]:
    """Step, indices and values of q on a logarithmic grid, where the inner integrals matter."""
    # The density of log S has a width of √(2/C).
    step = 0.18 / max(1.0, math.sqrt(len(b) / 2))
    index = np.arange(math.floor(-8 / step), math.ceil(90 / step))
    q = shift * np.exp(step * index)
    distance = q[:, None] + (b - shift)
    t, curvature = (1 / distance).sum(1) / 2, (1 / distance**2).sum(1) / 2
    height = (q - shift) * t - np.log(distance / b).sum(1) / 2
    kept = _above(height + np.log(q) + np.log(curvature) / 2)
    return step, index[kept], q[kept]


def _above(logs: Array) -> NDArray[np.bool_]:
    return np.asarray(logs > logs.max() - _LEFT_OUT)
