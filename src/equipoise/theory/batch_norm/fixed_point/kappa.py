r"""The fixed point of κ at ε > 0.

Solves :math:`F(\kappa) = \sigma_w^2 E_x[\kappa_f(R)] = \kappa`.
"""

from __future__ import annotations

from functools import partial

import numpy as np
from numpy.typing import NDArray
from scipy.interpolate import PchipInterpolator
from scipy.optimize import brentq

from equipoise.theory.batch_norm.averages import compute
from equipoise.theory.batch_norm.averages.response import Averages, Response
from equipoise.theory.batch_norm.fixed_point.critical_eps import critical_variance
from equipoise.theory.batch_norm.fixed_point.radius import RadialGrid, radial_grid
from equipoise.theory.batch_norm.setting import ConvergenceError, Setting

Array = NDArray[np.float64]

# Relative error of F(κ) within which the interpolation below can be trusted.
_TRUSTED = 1e-4
# If the slope exceeds 1 by less than this, κ is below what float64 resolves.
CRITICAL = 1e-9


@np.errstate(divide="ignore")
def largest_root(setting: Setting, f: Response) -> float | None:
    """Approximate the largest solution, or return None if κ → 0.

    Networks start from κ of order one, so the largest solution is the one they reach.
    """
    B, eps, variance = setting.batch_size, setting.eps, setting.weight_variance
    # κ_f on a logarithmic grid of v, once; then F at any κ by monotone interpolation.
    v = np.linspace(-30, 10, 101)
    kappas = compute.coarse_kappas(f, B, 1 / np.sqrt(1 + np.exp(-v)))
    log_kappas = PchipInterpolator(v, np.log(np.maximum(kappas, np.finfo(float).tiny)))
    d = np.sqrt(2 / (B - 1)) * np.linspace(-10, 7, 86)
    weight = np.exp((B - 1) / 2 * (d - np.expm1(d)))
    weight /= weight.sum()

    def log_ratio(log_kappa: float) -> float:
        at = np.clip(log_kappa + np.log((B - 1) / (B * eps)) + d, v[0], v[-1])
        return float(np.log(variance * (weight @ np.exp(log_kappas(at)))) - log_kappa)

    top = float(np.log(variance * kappas.max() * 1.01))
    candidates = top - np.linspace(0, 14, 57)
    ratios = np.array([log_ratio(candidate) for candidate in candidates])
    growing = np.flatnonzero(ratios > _TRUSTED)
    if growing.size:
        falling = np.flatnonzero(ratios[: growing[0]] < 0)
        if not falling.size:
            return float(np.exp(top))
        low, high = candidates[growing[0]], candidates[falling[-1]]
        guess = float(brentq(log_ratio, low, high))
        if exact_log_ratio(setting, f, guess - 1) > 0 > exact_log_ratio(setting, f, guess + 1):
            return float(np.exp(guess))
        return _root_below(setting, f, top)
    # Closer to the critical ε than interpolation can tell, the slope of F at 0 decides.
    slope = critical_variance(f, B) * variance / eps
    return _root_below(setting, f, top) if slope > 1 + CRITICAL else None


def exact_log_ratio(setting: Setting, f: Response, log_kappa: float) -> float:
    """Logarithm of F(κ)/κ from averages made for this κ."""
    B, kappa = setting.batch_size, float(np.exp(log_kappa))
    grid = radial_grid(B, setting.eps, kappa, np.empty(0), 2)
    mean = grid.law(kappa).weight @ compute.averages(f, B, grid.radius, 1).kappa
    return float(
        np.log(np.maximum(setting.weight_variance * mean, np.finfo(float).tiny)) - log_kappa
    )


def _root_below(setting: Setting, f: Response, top: float) -> float | None:
    """Step down from the largest conceivable κ until F(κ) > κ; None if that never happens."""
    high = top
    for low in top - np.arange(1, 60, 0.5):
        if exact_log_ratio(setting, f, low) > 0:
            if exact_log_ratio(setting, f, high) > 0:
                return float(np.exp(high))
            find = partial(exact_log_ratio, setting, f)
            return float(np.exp(brentq(find, low, high, xtol=1e-3)))
        high = float(low)
    return None


@np.errstate(divide="ignore")
def refine_root(setting: Setting, grid: RadialGrid, averages: Averages) -> float:
    """Solve log F(κ) = log κ to rounding; averages stay fixed, only their weights depend on κ."""

    def log_ratio(log_shift: float) -> float:
        kappa = grid.kappa * np.exp(log_shift)
        value = setting.weight_variance * float(grid.law(kappa).weight @ averages.kappa)
        return float(np.log(np.maximum(value, np.finfo(float).tiny) / kappa))

    reach = 1e-3
    while reach < 16 and log_ratio(-reach) * log_ratio(reach) > 0:
        reach *= 4
    if reach >= 16:
        raise ConvergenceError(
            f"the fixed point of kappa was lost at eps = {setting.eps}: the two sides of "
            "F(kappa) = kappa do not cross. Try a slightly different eps."
        )
    return float(grid.kappa * np.exp(brentq(log_ratio, -reach, reach, xtol=1e-16, rtol=1e-15)))
