"""Beyond the critical ε all samples of a batch become equal."""

from __future__ import annotations

import math

import numpy as np

from equipoise.records.estimate import Estimate
from equipoise.theory.activation.catalogue import Homogeneity
from equipoise.theory.batch_norm.averages.homogeneous import homogeneous_averages
from equipoise.theory.batch_norm.averages.response import Response
from equipoise.theory.batch_norm.fixed_point.critical_eps import critical_variance, tangent
from equipoise.theory.batch_norm.fixed_point.radius import RadialLaw
from equipoise.theory.batch_norm.fixed_point.solution import UNIT, Solution
from equipoise.theory.batch_norm.setting import Setting
from equipoise.theory.batch_norm.spectra import formulas


def collapsed(setting: Setting, f: Response) -> Solution:
    """κ* = 0: batch norm divides by √ε alone."""
    B, variance, eps = setting.batch_size, setting.weight_variance, setting.eps
    values, _ = f(np.array([f.beta]))
    q = variance * float(values[0]) ** 2 + setting.bias_variance
    backward = forward = (0.0, 0.0, 0.0)
    cross_rate = 0.0
    slopes = tangent(f)
    if slopes is not None:
        # Slopes over √ε: of an ε near the end of float64 there is no 1/ε.
        root = math.sqrt(eps)
        per_root = Homogeneity(slopes.alpha, slopes.a / root, slopes.b / root)
        averages, one = homogeneous_averages(per_root, 1.0, B), np.ones(1)
        # Backward at R = 0; forward R² = κx/(Bε) to first order in κ, with E[x²] = n(n + 2).
        law = RadialLaw(0 * one, one, one, one * (B + 1) / B, one)
        backward = (
            formulas.backward_g(B, variance, averages, law),
            formulas.backward_l(B, variance, averages, law),
            formulas.backward_m(B, variance, averages, law),
        )
        forward = (
            critical_variance(f, B) * variance / eps,
            formulas.forward_l(B, variance, 1.0, averages, law),
            formulas.forward_m(B, variance, 1.0, averages, law),
        )
        cross_rate = variance * ((per_root.a + per_root.b) / 2) ** 2
    method = "closed form: the fixed point has collapsed"
    # Barely below the critical ε, κ is not 0 but of the order of the distance to it.
    beyond = max(0.0, forward[0] - 1)

    def exact(value: float, scale: float) -> Estimate:
        return Estimate(value, 64 * UNIT * abs(value) + 1e3 * beyond * scale, method)

    return Solution(
        q=exact(q, eps),
        c=exact(1.0, 1.0),
        kappa=exact(0.0, eps),
        backward=(exact(backward[0], 1.0), exact(backward[1], 1.0), exact(backward[2], 1.0)),
        forward=(exact(forward[0], 1.0), exact(forward[1], 1.0), exact(forward[2], 1.0)),
        cross_covariance=exact(q, eps),
        cross_rate=exact(cross_rate, 1.0),
    )
