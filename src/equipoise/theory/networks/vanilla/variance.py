r"""Where the second moment of a network without normalisation settles.

The map :math:`F(q) = \sigma_w^2E[\phi(\sqrt q z)^2] + \sigma_b^2` is followed from
:math:`\sigma_w^2 + \sigma_b^2`, the second moment that inputs of unit second moment give, in the
direction in which it moves q, up to the next fixed point. There F′ < 1, and F′ ≥ -1/2 holds
everywhere, since :math:`F' = \sigma_w^2E[\phi^2(z^2-1)]/(2q) \ge -F/(2q)`: that point is stable.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

import numpy as np
from scipy.optimize import brentq

from equipoise.numerics.quadrature import gaussian
from equipoise.records.estimate import Estimate
from equipoise.theory.activation.catalogue import Activation
from equipoise.theory.batch_norm.setting import Setting
from equipoise.theory.networks.gaussian_averages import ROUNDING, moments, piecewise

# F(q)/q − 1 below this is rounding.
_NOISE = 1e-13
_LARGEST, _SMALLEST = 1e24, 1e-24
_UNBOUNDED = 1e120
# One-sided slopes at a kink; so close to it that a fractional power has reached 0 or infinity.
_BESIDE = 1e-200
_METHOD = "Gaussian quadrature on panels"


def settle_variance(setting: Setting) -> Estimate:
    """Second moment of a pre-activation deep in the network.

    Raises:
        ValueError: If it grows without bound.
    """
    shape = setting.activation.homogeneity
    if shape is not None and shape.alpha == 1:
        return _of_constant_slopes(setting)
    start = setting.weight_variance + setting.bias_variance
    bracket = _ascend(setting, start) if _excess(setting, start) > 0 else _descend(setting, start)
    if isinstance(bracket, Estimate):
        return bracket
    return _with_error(setting, log_root(partial(_excess, setting), *bracket))


def log_root(function: Callable[[float], float], low: float, high: float) -> float:
    """Root of a function that falls from above 0 to below on [low, high], in log x.

    Where rounding turns the sign at an end, that end is the root as far as values can tell.
    """
    if function(low) <= 0:
        return low
    if function(high) >= 0:
        return high
    width = math.log(high / low)

    def along(part: float) -> float:
        # exp(log x) would move the ends by many roundings.
        return min(low * math.exp(part), high) if part < width else high

    found = brentq(lambda part: function(along(part)), 0.0, width, xtol=1e-15, rtol=1e-15)
    return along(found)


def mean_square_slope_at_zero(activation: Activation) -> float:
    """E[φ′(u)²] for a signal that dies out: the mean over both sides of 0."""
    shape = activation.homogeneity
    if shape is not None and shape.alpha != 1:
        return 0.0 if shape.alpha > 1 else math.inf
    at_kink = any(kink.at == 0 for kink in activation.kinks)
    beside = _BESIDE if at_kink else 0.0
    _, slopes = activation(np.array([-beside, beside]))
    square = float(np.mean(slopes**2))
    return square if square < _LARGEST else math.inf


def _excess(setting: Setting, q: float) -> float:
    """F(q)/q − 1 by quadrature at its coarsest, which is nearly exact already."""
    f = piecewise(setting.activation)
    with np.errstate(over="ignore", invalid="ignore"):
        square = gaussian.average(f, math.sqrt(q), lambda values, _: values[:1] ** 2, 0)
    value = (setting.weight_variance * float(square[0]) + setting.bias_variance) / q - 1
    if not math.isfinite(value):
        raise _diverges(setting)
    return value


def _ascend(setting: Setting, low: float) -> tuple[float, float]:
    # An excess within the noise decides nothing: F(q)/q may fall to 1 without passing it.
    high = 2 * low
    far = 2 * _LARGEST * max(1.0, low)
    while high < _UNBOUNDED:
        excess = _excess(setting, high)
        if excess < -_NOISE:
            return low, high
        if excess > 0:
            low = high
        high *= 2 if high < far else 16
    raise _diverges(setting)


def _descend(setting: Setting, high: float) -> tuple[float, float] | Estimate:
    silent = setting.bias_variance == 0 and setting.activation.values(np.zeros(1))[0] == 0
    while high > _SMALLEST or not silent:
        excess = _excess(setting, high / 2)
        # Twice: a fixed point of its own may lie on high / 2 to the last digit.
        if silent and max(abs(excess), abs(_excess(setting, high / 4))) <= _NOISE:
            return Estimate(0.0, high, "limit of small signals")
        if excess >= 0:
            return high / 2, high
        high /= 2
    return Estimate(0.0, 0.0, "closed form")


def _of_constant_slopes(setting: Setting) -> Estimate:
    """F(q) = χq + σ_b² exactly."""
    chi = setting.weight_variance * mean_square_slope_at_zero(setting.activation)
    is_neutral = abs(chi - 1) <= ROUNDING / 4
    if is_neutral and setting.bias_variance == 0:
        return Estimate(setting.weight_variance, 0.0, "closed form")
    if is_neutral or chi > 1:
        raise _diverges(setting)
    q = setting.bias_variance / (1 - chi)
    return Estimate(q, ROUNDING * q / (1 - chi), "closed form")


def _with_error(setting: Setting, q: float) -> Estimate:
    averaged = moments(setting.activation, q)
    slope = setting.weight_variance * float(averaged.values[1])
    # What is left of F(q) − q, where values and their rounding allow no better root.
    left = abs(setting.weight_variance * float(averaged.values[0]) + setting.bias_variance - q)
    error = setting.weight_variance * float(averaged.errors[0]) + ROUNDING * q + left
    return Estimate(q, error / max(abs(1 - slope), ROUNDING), _METHOD)


def _diverges(setting: Setting) -> ValueError:
    return ValueError(
        f"pre-activations of {setting.activation.name} networks grow without bound at "
        f"weight_variance = {setting.weight_variance:g}, bias_variance = "
        f"{setting.bias_variance:g}: no fixed point exists above the start, or none "
        "within float64. Use a smaller weight_variance (for relu at most 2, without biases) or a "
        "normaliser."
    )
