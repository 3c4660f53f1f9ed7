r"""The critical ε, above which small differences between samples die out with depth.

Near a point where all samples are equal, f(x) ≈ f(0) + t(x) with t linear, or with two slopes
at a kink. There :math:`F(\kappa) \approx \kappa\,\varepsilon_c/\varepsilon`, so differences die
out when ε exceeds

.. math:: \varepsilon_c = \sigma_w^2\,\kappa_t\,\frac{B-1}{B},

which is :math:`\sigma_w^2\gamma^2\phi'(\beta)^2` wherever φ has a slope at β.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Unpack

import numpy as np

from equipoise.numerics.options import named_options
from equipoise.theory.activation.adapt import ActivationLike
from equipoise.theory.activation.catalogue import Homogeneity
from equipoise.theory.batch_norm.averages.homogeneous import homogeneous_averages
from equipoise.theory.batch_norm.averages.response import Response
from equipoise.theory.batch_norm.fixed_point.solution import UNIT
from equipoise.theory.batch_norm.setting import (
    SMALLEST_BATCH,
    Setting,
    SettingOptions,
    as_setting,
)

# Distances from a kink at 0 at which slopes are read: far below any scale of f, far above where
# a user's x² or x⁴ would underflow. From a kink elsewhere, the smallest that rounding leaves.
_NEAR, _FAR = 1e-60, 1e-30
# Between these two distances the slope of a fractional power changes by more than this factor.
_SAME = 1.1


@named_options
def critical_eps(
    setting: Setting | ActivationLike,
    batch_size: int | None = None,
    **options: Unpack[SettingOptions],
) -> float:
    r"""The ε above which small differences between samples die out with depth.

    .. math:: \varepsilon_c = \sigma_w^2\gamma^2\phi'(\beta)^2

    Just below it small differences barely survive, gradients neither explode nor vanish, and the
    depth scale diverges. Above it the state in which all samples are equal is stable; where φ is
    steeper elsewhere than at β, networks that start far from it may still keep another state,
    which :func:`bsb1_fixed_point` then returns.

    Args:
        setting: A :class:`Setting`, or its activation, followed by its batch size and keywords;
            its ε is ignored.
        batch_size: Only needed where φ has a kink at β, as ReLU has at 0. Gradients then do
            not become balanced near the critical ε, though samples still become equal.

    Raises:
        ValueError: If φ has a kink at β and no batch size is given, or is not usable.

    Examples:
        >>> critical_eps("tanh"), critical_eps("relu", beta=2.0)
        (1.0, 1.0)
        >>> round(critical_eps("relu", batch_size=64), 4)
        0.3394

    References:
        [yang2019], Section 4 and Fig. 4c, d.
    """
    known = isinstance(setting, Setting) or batch_size is not None
    setting = as_setting(setting, batch_size, options, default_batch_size=SMALLEST_BATCH)
    kinks = setting.activation.kinks
    if not known and any(kink.at == setting.beta for kink in kinks):
        raise ValueError(
            f"activation {setting.activation.name} has a kink at beta = {setting.beta:g}, where "
            "the critical eps depends on the batch size. Give batch_size=..., or move beta."
        )
    return setting.weight_variance * critical_variance(Response.of(setting), setting.batch_size)


@lru_cache(maxsize=16)
def tangent(f: Response) -> Homogeneity | None:
    """The slopes of f on either side of 0, or None where f is flat there."""
    at_kink = [kink for kink in f.activation.kinks if kink.at == f.beta]
    near = max(_NEAR, 2 * UNIT * abs(f.beta)) if at_kink else 0.0
    below, above = _slopes_beside(f, near)
    if any(kink.power for kink in at_kink):
        far = max(_FAR, math.sqrt(UNIT) * abs(f.beta))
        limits = zip((below, above), _slopes_beside(f, far), strict=True)
        below, above = (_limit(*slopes) for slopes in limits)
    if math.isinf(below) or math.isinf(above):
        return Homogeneity(1.0, math.inf, math.inf)
    if at_kink and max(abs(below), abs(above)) < math.sqrt(_NEAR):
        return None  # such as max(x, 0)²: flat at its kink, but not beside it
    return Homogeneity(1.0, above, below) if above or below else None


def _slopes_beside(f: Response, distance: float) -> tuple[float, float]:
    _, (below, above) = f(np.array([f.beta - distance, f.beta + distance]))
    return float(below), float(above)


def _limit(near: float, far: float) -> float:
    """The slope on one side of a kink; 0 or ∞ where φ is a fractional power there."""
    if abs(near) > _SAME * abs(far):
        return math.inf
    return 0.0 if _SAME * abs(near) < abs(far) else near


def critical_variance(f: Response, batch_size: int) -> float:
    """ε_c at σ_w² = 1; 0 where f is flat, infinite where its slope is."""
    slopes = tangent(f)
    if slopes is None:
        return 0.0
    if slopes.a == slopes.b:
        return slopes.a**2
    kappa = float(homogeneous_averages(slopes, 1.0, batch_size).kappa[0])
    return kappa * (batch_size - 1) / batch_size
