r"""What quadrature cannot see of slopes within rounding of kinks.

Floating-point arguments have no points between the kink of a fractional power and its neighbours,
where slopes squared, like :math:`d^{2\alpha-2}`, still have weight; beside 0 it is quadrature that
ends. Where slopes jump, the kink is known to its last bit.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from equipoise.theory.activation.catalogue import Activation

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
    at = np.array([kink.at for kink in activation.kinks])
    power = np.array([kink.power for kink in activation.kinks])
    rounding = np.spacing(np.abs(at))
    near = 4 * np.maximum(rounding, np.where(power, _NEAREST, _READ))
    beside = at + near * np.array([[-1.0], [1.0], [-_FAR], [_FAR]])
    both = np.abs(activation(beside)[1]).reshape(2, 2, -1)  # [nearer or farther, side, kinks]
    jumps = np.abs(both[0, 1] ** 2 - both[0, 0] ** 2) * rounding
    step = np.abs(both[0, 1] - both[0, 0]) * rounding
    # α − 1, from slopes that fall like d^(α - 1)
    counted = (both > 0).all(0) & np.isfinite(both).all(0)
    falls = np.log(both[1], out=np.zeros_like(both[1]), where=counted)
    falls -= np.log(both[0], out=np.zeros_like(both[0]), where=counted)
    falls /= np.log(_FAR)
    squares = (both[0] ** 2 * near / np.maximum(1 + 2 * falls, 1e-3) * counted).sum(0)
    slopes = (both[0] * near / np.maximum(1 + falls, 1e-3) * counted).sum(0)
    squares, slopes = np.where(power, squares, jumps), np.where(power, slopes, step)
    return tuple(map(Unseen, at.tolist(), squares.tolist(), slopes.tolist()))
