r"""What quadrature cannot see of slopes within rounding of kinks.

Floating-point arguments have no points between the kink of a fractional power and its neighbours,
where slopes squared, like :math:`d^{2\alpha-2}`, still have weight; beside 0 it is quadrature that
ends. Where slopes jump, the kink is known to its last bit.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from equipoise.theory.activation.catalogue import Activation, Kink

# Where double exponential rules end, and how near to a kink at 0 slopes are read that jump: far
# above where a user's x² would underflow.
_NEAREST, _READ = 1e-130, 1e-60
# Distances at which slopes are compared, in roundings of the kink.
_FAR = 256.0


@dataclass(frozen=True, slots=True)
class Unseen:
    """Integrals over arguments within rounding of one kink.

    Args:
        at: The kink.
        squares: ∫ φ′² dx.
        slopes: ∫ |φ′| dx.
    """

    at: float
    squares: float
    slopes: float


@lru_cache(maxsize=64)
def unseen(activation: Activation) -> tuple[Unseen, ...]:
    """Bounds on what lies within four roundings of each power's kink, and one of the others."""
    if not activation.kinks:
        return ()
    near = [4 * max(math.ulp(k.at), _NEAREST if k.power else _READ) for k in activation.kinks]
    beside = [
        kink.at + side * far
        for kink, distance in zip(activation.kinks, near, strict=True)
        for far in (distance, _FAR * distance)
        for side in (-1.0, 1.0)
    ]
    slopes = np.abs(activation(np.array(beside))[1]).reshape(-1, 2, 2).tolist()
    return tuple(map(_unseen, activation.kinks, near, slopes))


def _unseen(kink: Kink, near: float, slopes: list[list[float]]) -> Unseen:
    """Of one kink, from slopes nearer and farther, on either side of each."""
    nearer, farther = slopes
    if not kink.power:
        rounding, (below, above) = math.ulp(kink.at), nearer
        return Unseen(
            kink.at, abs(above * above - below * below) * rounding, abs(above - below) * rounding
        )
    squares = total = 0.0
    for one, other in zip(nearer, farther, strict=True):
        if one > 0 and other > 0 and math.isfinite(one) and math.isfinite(other):
            # α − 1, from slopes that fall like d^(α - 1)
            falls = (math.log(other) - math.log(one)) / math.log(_FAR)
            squares += one * one * near / max(1 + 2 * falls, 1e-3)
            total += one * near / max(1 + falls, 1e-3)
    return Unseen(kink.at, squares, total)
