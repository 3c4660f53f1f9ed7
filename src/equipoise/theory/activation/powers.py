r"""What quadrature cannot see beside the kinks of fractional powers.

Floating-point arguments have no points between such a kink and its neighbours, where slopes
squared, like :math:`d^{2\alpha-2}`, still have weight; beside 0 it is quadrature that ends.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from equipoise.theory.activation.catalogue import Activation

# Where double exponential rules end.
_NEAREST = 1e-130
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
    """What lies within four roundings of each fractional power's kink, with bounds on it."""
    found = []
    for kink in activation.kinks:
        if not kink.power:
            continue
        near = 4 * max(float(np.spacing(abs(kink.at))), _NEAREST)
        squares = slopes = 0.0
        for side in (-near, near):
            _, (at, farther) = np.abs(activation(kink.at + side * np.array([1.0, _FAR])))
            if at and farther:
                # α − 1, from slopes that fall like d^(α - 1)
                power = float(np.log(farther / at) / np.log(_FAR))
                squares += float(at**2) * near / max(1 + 2 * power, 1e-3)
                slopes += float(at) * near / max(1 + power, 1e-3)
        found.append(Unseen(kink.at, squares, slopes))
    return tuple(found)
