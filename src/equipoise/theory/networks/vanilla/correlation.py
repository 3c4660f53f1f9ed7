r"""Where the correlation of two samples settles in a network without normalisation.

With the gap g = 1 - c the fixed point solves

.. math:: K(g) = \frac{\sigma_w^2}{q\,g}\,\tfrac12 E[(\phi(u_1) - \phi(u_2))^2] = 1 .

K decreases from :math:`K(0) = \chi_1` (c ↦ E[φ(u₁)φ(u₂)] is convex on [0, 1]), so there is one
solution g in (0, 1] if χ_1 > 1 and none otherwise: then c = 1. Biases drop out but for q, and
nothing cancels as g → 0.
"""

from __future__ import annotations

import math

from equipoise.numerics.quadrature import gaussian
from equipoise.records.estimate import Estimate
from equipoise.theory.batch_norm.setting import Setting
from equipoise.theory.networks.gaussian_averages import ROUNDING, pair_moments, piecewise
from equipoise.theory.networks.vanilla.variance import log_root

_STEP = 1e-3
_FACTOR = 16.0
_SMALLEST_GAP = 1e-30


def settle_correlation(
    setting: Setting, q: Estimate, chi_1: Estimate
) -> tuple[Estimate, Estimate]:
    """Correlation of two samples deep in the network, and χ_c."""
    if chi_1.value < 1 - chi_1.error:
        return Estimate(1.0, 0.0, "closed form"), chi_1
    if chi_1.value <= 1 + chi_1.error:
        return Estimate(1.0, _largest_gap(setting, q, chi_1.error), "limit of c → 1"), chi_1
    gap = _solve(setting, q.value)
    return _with_errors(setting, q, gap)


def _expansion(setting: Setting, q: float, gap: float) -> float:
    """K by quadrature at its coarsest, which is nearly exact already."""
    average = gaussian.pair_average(
        piecewise(setting.activation),
        math.sqrt(q),
        gap,
        lambda first, second: (first[:1] - second[:1]) ** 2 / 2,
        0,
    )
    return setting.weight_variance * float(average[0]) / (q * gap)


def _solve(setting: Setting, q: float) -> float:
    # An odd φ without biases has c = 0 exactly, which rounding may put on either side.
    if _expansion(setting, q, 1.0) >= 1 - ROUNDING:
        return 1.0
    high, low = 1.0, 1 / _FACTOR
    while _expansion(setting, q, low) <= 1:
        if low < _SMALLEST_GAP:
            return low
        high, low = low, low / _FACTOR
    return log_root(lambda gap: _expansion(setting, q, gap) - 1, low, high)


def _largest_gap(setting: Setting, q: Estimate, error: float) -> float:
    """Bound on the gap where χ_1 may be a little above 1: K decreases, so K < 1 is beyond it."""
    bound, gap = 1.0, 1.0
    while gap > _SMALLEST_GAP and _expansion(setting, q.value, gap) < 1 - 2 * error:
        bound, gap = gap, gap / _FACTOR
    return bound


def _with_errors(setting: Setting, q: Estimate, gap: float) -> tuple[Estimate, Estimate]:
    here = pair_moments(setting.activation, q.value, gap)
    along_q = pair_moments(setting.activation, q.value * (1 + _STEP), gap)
    along_gap = pair_moments(setting.activation, q.value, gap * (1 - _STEP))
    # What the averages change by per relative change of q and of the gap.
    by_q = abs(along_q.values - here.values) / _STEP
    by_gap = abs(along_gap.values - here.values) / _STEP
    scale = setting.weight_variance / (q.value * gap)
    k_error = scale * (here.errors[0] + (by_q[0] + here.values[0]) * q.relative_error)
    k_error += abs(scale * here.values[0] - 1) + ROUNDING
    chi_c = setting.weight_variance * float(here.values[1])
    # dK/dg = −(1 − χ_c)/g at the solution; and c is within [0, 1].
    gap_error = gap * float(k_error) / max(abs(1 - chi_c), ROUNDING) + ROUNDING / 8
    gap_error = min(gap_error, max(gap, 1 - gap))
    error = here.errors[1] + 2 * by_q[1] * q.relative_error + 2 * by_gap[1] * gap_error / gap
    return (
        Estimate(1 - gap, gap_error, q.method),
        Estimate(chi_c, setting.weight_variance * float(error), q.method),
    )
