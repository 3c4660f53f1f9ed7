r"""The fixed point of κ at ε > 0.

Solves :math:`F(\kappa) = \sigma_w^2 E_x[\kappa_f(R)] = \kappa`.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy.interpolate import CubicSpline
from scipy.optimize import brentq

from equipoise.theory import routes
from equipoise.theory.averages import Averages, Response
from equipoise.theory.radius import RadialGrid
from equipoise.theory.setting import Setting
from equipoise.theory.small_signals import critical_variance

Array = NDArray[np.float64]

# What the interpolation below can be trusted with, as a relative error of F(κ).
_TRUSTED = 1e-5


def largest_root(setting: Setting, f: Response) -> float | None:
    """Approximate the largest solution, or return None if κ → 0.

    Networks start from κ of order one, so the largest solution is the one they reach.
    """
    B, eps, variance = setting.batch_size, setting.eps, setting.weight_variance
    # κ_f on a logarithmic grid of v, once; then F at any κ by interpolation.
    v = np.linspace(-30, 10, 101)
    kappas = routes.coarse_kappas(f, B, 1 / np.sqrt(1 + np.exp(-v)))
    log_kappas = CubicSpline(v, np.log(np.maximum(kappas, np.finfo(float).tiny)))
    d = np.sqrt(2 / (B - 1)) * np.linspace(-10, 7, 86)
    weight = np.exp((B - 1) / 2 * (d - np.expm1(d)))
    weight /= weight.sum()

    def log_ratio(log_kappa: float) -> float:
        at = np.clip(log_kappa + np.log((B - 1) / (B * eps)) + d, v[0], v[-1])
        return float(np.log(variance * (weight @ np.exp(log_kappas(at)))) - log_kappa)

    top = np.log(variance * kappas.max() * 1.01)
    candidates = top - np.linspace(0, 14, 57)
    growing = [log_ratio(candidate) > _TRUSTED for candidate in candidates]
    if any(growing):
        first = growing.index(True)
        if first == 0:
            return float(np.exp(top))
        return float(np.exp(brentq(log_ratio, candidates[first], candidates[first - 1])))
    # Closer to the critical ε than interpolation can tell, the slope of F at 0 decides; there κ
    # is proportional to slope − 1, and the refinement finds the constant.
    slope = critical_variance(f, B) * variance / eps
    return eps * (slope - 1) if slope > 1 + 1e-13 else None


def refine_root(setting: Setting, grid: RadialGrid, averages: Averages) -> float:
    """Solve log F(κ) = log κ to rounding with fixed averages; only weights move."""

    def log_ratio(log_shift: float) -> float:
        kappa = grid.kappa * np.exp(log_shift)
        value = setting.weight_variance * float(grid.law(kappa).weight @ averages.kappa)
        return float(np.log(value / kappa))

    reach = 1e-3
    while reach < 16 and log_ratio(-reach) * log_ratio(reach) > 0:
        reach *= 4
    if reach >= 16:
        raise ArithmeticError(
            f"the fixed point of kappa was lost at eps = {setting.eps}: the two sides of "
            "F(kappa) = kappa do not cross. Try a slightly different eps."
        )
    return float(grid.kappa * np.exp(brentq(log_ratio, -reach, reach, xtol=1e-16, rtol=1e-15)))
