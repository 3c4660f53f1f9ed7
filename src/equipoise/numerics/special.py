r"""Ratios of gamma functions without the cancellation of two large logarithms."""

from __future__ import annotations

import math
from functools import lru_cache

# Stirling's series log Γ(x) = (x - ½) log x - x + ½ log 2π + Σ_j s_j / x^(2j - 1).
_STIRLING = (1 / 12, -1 / 360, 1 / 1260, -1 / 1680, 1 / 1188)
# From here on the series' next term, 691/360360 x^-11, is below 1e-17.
_LARGE = 20.0


@lru_cache(maxsize=256)
def gamma_ratio(x: float, a: float) -> float:
    r"""Ratio :math:`\Gamma(x + a) / (\Gamma(x)\,x^a)`, which tends to 1 as x grows.

    Accurate to rounding at every x. Subtracting two log-gammas would lose :math:`x\log x` units
    of rounding, nine digits at :math:`x = 10^6`.

    Args:
        x: Positive.
        a: Above -x.

    Raises:
        ValueError: If an argument is out of range.

    Examples:
        >>> gamma_ratio(3.0, 1.0)  # Γ(4) / (Γ(3)·3)
        1.0
        >>> round(gamma_ratio(0.5, 0.5) ** 2 * math.pi, 12)  # (1 / √(π/2))² π
        2.0
    """
    if not (x > 0 and x + a > 0):
        raise ValueError(f"gamma_ratio needs x > 0 and x + a > 0, got x = {x}, a = {a}.")
    if a in (0.0, 1.0):
        return 1.0
    correction = 1.0
    base = x
    while min(x, x + a) < _LARGE:  # Γ(x + a) / Γ(x) = x / (x + a) · Γ(x + 1 + a) / Γ(x + 1)
        correction *= x / (x + a)
        x += 1
    logarithm = (x + a - 0.5) * math.log1p(a / x) - a + _stirling(x + a) - _stirling(x)
    return correction * math.exp(logarithm + a * math.log(x / base))


def _stirling(x: float) -> float:
    return sum(s / x ** (2 * j + 1) for j, s in enumerate(_STIRLING))
