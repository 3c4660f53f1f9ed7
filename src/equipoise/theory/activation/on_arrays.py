"""Values and slopes of the known activations on NumPy arrays.

Theory averages over a few thousand points at a time, for which NumPy takes a fraction of the time
of tensors. Formulas keep their digits in both tails, where 1 − tanh² or 1 + erf have lost them.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import erfc

Array = NDArray[np.float64]
Numbers = Callable[[Array], Array]


@dataclass(frozen=True, slots=True)
class OnArrays:
    """φ and φ′, each of an array of any shape.

    Args:
        values: φ.
        slopes: φ′.
        is_polynomial: Whether φ is a polynomial of low degree between its kinks.
    """

    values: Numbers
    slopes: Numbers
    is_polynomial: bool = False


def two_slopes(a: float, b: float) -> OnArrays:
    """a·max(x, 0) + b·min(x, 0)."""
    if a == b:
        return OnArrays(lambda x: a * x, lambda x: np.full_like(x, a), is_polynomial=True)
    return OnArrays(
        lambda x: a * np.maximum(x, 0) + b * np.minimum(x, 0),
        lambda x: np.where(x > 0, float(a), float(b)),
        is_polynomial=True,
    )


def exponential_unit(alpha: float, width: float = 1.0, scale: float = 1.0) -> OnArrays:
    """max(x, 0) + α·(exp(min(x, 0)/width) − 1), times a scale."""

    def values(x: Array) -> Array:
        return scale * np.where(x > 0, x, alpha * np.expm1(np.minimum(x, 0) / width))

    def slopes(x: Array) -> Array:
        return scale * np.where(x > 0, 1.0, alpha / width * np.exp(np.minimum(x, 0) / width))

    return OnArrays(values, slopes)


def softplus(beta: float) -> OnArrays:
    """log(1 + exp(βx))/β."""
    return OnArrays(lambda x: _softplus(beta * x) / beta, lambda x: _sigmoid(beta * x))


def clipped(low: float, high: float) -> OnArrays:
    """The identity between two arguments, and constant beyond."""
    return OnArrays(
        lambda x: np.clip(x, low, high),
        lambda x: np.where((x > low) & (x < high), 1.0, 0.0),
        is_polynomial=True,
    )


def _sigmoid(x: Array) -> Array:
    return 1 / (1 + np.exp(-x))  # 0 where exp overflows


def _softplus(x: Array) -> Array:
    return np.maximum(x, 0) + np.log1p(np.exp(-np.abs(x)))


def _sech2(x: Array) -> Array:
    cosh = np.cosh(x)
    return 1 / (cosh * cosh)  # 0 where cosh overflows


def _sigmoid_slope(x: Array) -> Array:
    decay = np.exp(-np.abs(x))
    return np.asarray(decay / ((1 + decay) * (1 + decay)))


def _gelu(x: Array) -> Array:
    return np.asarray(0.5 * x * erfc(-x * math.sqrt(0.5)))


def _gelu_slope(x: Array) -> Array:
    density = np.exp(-x * x / 2) / math.sqrt(2 * math.pi)
    return np.asarray(0.5 * erfc(-x * math.sqrt(0.5)) + x * density)


# gelu_tanh is x sigmoid(scale (x + cube x³)).
GELU_SCALE, GELU_CUBE = math.sqrt(8 / math.pi), 0.044715


def _gelu_tanh(x: Array) -> Array:
    # (1 + tanh u)/2 = sigmoid(2u), which keeps the digits of the left tail.
    return x * _sigmoid(GELU_SCALE * (x + GELU_CUBE * (x * x * x)))


def _gelu_tanh_slope(x: Array) -> Array:
    square = x * x
    inner = GELU_SCALE * (x + GELU_CUBE * (square * x))
    slope = GELU_SCALE * (1 + 3 * GELU_CUBE * square)
    return _sigmoid(inner) + x * _sigmoid_slope(inner) * slope


def _silu_slope(x: Array) -> Array:
    return _sigmoid(x) + x * _sigmoid_slope(x)


def _mish_slope(x: Array) -> Array:
    smooth = _softplus(x)
    return np.tanh(smooth) + x * _sech2(smooth) * _sigmoid(x)


def _softsign_slope(x: Array) -> Array:
    beside = 1 + np.abs(x)
    return np.asarray(1 / (beside * beside))


def _hardswish_slope(x: Array) -> Array:
    return np.where(x < -3, 0.0, np.where(x > 3, 1.0, (2 * x + 3) / 6))


def _tanhshrink(x: Array) -> Array:
    """The difference x − tanh x; near 0 by Lambert's tanh x = x/(1 + x²/(3 + x²/(5 + …)))."""
    square = np.minimum(x * x, 1)
    rest = np.full_like(x, 19.0)  # below 1 the next terms are less than rounding
    for odd in range(17, 1, -2):
        rest = odd + square / rest
    part = square / rest
    return np.where(np.abs(x) < 1, x * part / (1 + part), x - np.tanh(x))


def _squared_tanh(x: Array) -> Array:
    tanh = np.tanh(x)
    return tanh * tanh


TANH = OnArrays(np.tanh, _sech2)
SIGMOID = OnArrays(_sigmoid, _sigmoid_slope)
GELU, GELU_TANH = OnArrays(_gelu, _gelu_slope), OnArrays(_gelu_tanh, _gelu_tanh_slope)
SILU = OnArrays(lambda x: x * _sigmoid(x), _silu_slope)
MISH = OnArrays(lambda x: x * np.tanh(_softplus(x)), _mish_slope)
HARDSIGMOID = OnArrays(
    lambda x: np.clip(x + 3, 0, 6) / 6,
    lambda x: np.where(np.abs(x) < 3, 1 / 6, 0.0),
    is_polynomial=True,
)
HARDSWISH = OnArrays(lambda x: x * np.clip(x + 3, 0, 6) / 6, _hardswish_slope, is_polynomial=True)
SOFTSIGN = OnArrays(lambda x: x / (1 + np.abs(x)), _softsign_slope)
LOG_SIGMOID = OnArrays(lambda x: -_softplus(-x), lambda x: _sigmoid(-x))
TANHSHRINK = OnArrays(_tanhshrink, _squared_tanh)
SELU = exponential_unit(1.6732632423543772, scale=1.0507009873554805)
SQUARE = OnArrays(lambda x: x * x, lambda x: 2 * x, is_polynomial=True)
