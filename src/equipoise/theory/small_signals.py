r"""What happens to small differences between samples, which decides the critical ε.

Near a point where all samples are equal, f(x) ≈ f(0) + t(x) with t linear, or with two slopes
at a kink. There :math:`F(\kappa) \approx \kappa\,\varepsilon_c/\varepsilon`, so differences die
out when ε exceeds

.. math:: \varepsilon_c = \sigma_w^2\,\kappa_t\,\frac{B-1}{B},

which is :math:`\sigma_w^2\gamma^2\phi'(\beta)^2` wherever φ has a slope at β.
"""

from __future__ import annotations

import math

import numpy as np

from equipoise.theory import routes
from equipoise.theory.activations import Activation, Homogeneity, homogeneous
from equipoise.theory.averages import Averages, Response

# Far below any scale of f, far above rounding: one-sided slopes at a kink.
_STEP = 1e-9


def tangent(f: Response) -> Homogeneity | None:
    """The slopes of f on either side of 0, or None where f is flat there."""
    at_kink = [kink for kink in f.activation.kinks if kink.at == f.beta]
    step = _STEP if at_kink else 0.0
    _, slopes = f(np.array([f.beta - step, f.beta + step]))
    below, above = float(slopes[0]), float(slopes[1])
    if any(kink.power for kink in at_kink):
        # A fractional power has slope 0 or ∞ at its kink, never one in between.
        return None if abs(below) + abs(above) < 1 else Homogeneity(1.0, math.inf, math.inf)
    return Homogeneity(1.0, above, below) if above or below else None


def tangent_averages(slopes: Homogeneity, batch_size: int) -> Averages:
    """Averages of the tangent at R = 1."""
    activation: Activation = homogeneous("tangent", slopes.alpha, slopes.a, slopes.b)
    return routes.averages(Response(activation, 1.0, 0.0), batch_size, np.ones(1), 2)


def critical_variance(f: Response, batch_size: int) -> float:
    """ε_c at σ_w² = 1; 0 where f is flat, infinite where its slope is."""
    slopes = tangent(f)
    if slopes is None:
        return 0.0
    if slopes.a == slopes.b:
        return slopes.a**2
    kappa = float(tangent_averages(slopes, batch_size).kappa[0])
    return kappa * (batch_size - 1) / batch_size
