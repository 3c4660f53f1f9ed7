r"""How far from the centre samples still matter to averages of a response.

Symbols: ρ = tanh u: distance of two samples from the centre of their disc, 1 at most; c = Bε/κ.
The density of u is proportional to :math:`\tanh u\,\operatorname{sech}^{B-3}u\;
(B - 3 + c\cosh^2u)\,e^{-\frac c2\sinh^2u}`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from equipoise.theory.batch_norm.averages.response import Response
from equipoise.theory.batch_norm.setting import ConvergenceError

Array = NDArray[np.float64]

# A Bε/κ that is not 0, but moves nothing.
ALMOST_NO_C = 1e-12
# Exponents below this are left out: exp(-42) = 6e-19.
LEFT_OUT = 42.0
# Densities are followed down to e^-500, and to e^-660 where f is flat or still grows there:
# products with f² then keep their digits in float64.
_FARTHEST = 500.0, 660.0
# Quadratic steps: fine where the density is, which may be far inside.
_PARTS = np.linspace(0, 1, 193) ** 2
_TINY = float(np.finfo(float).tiny)


def exponent(batch_size: int, sinh2: Array) -> Array:
    """(B - 3) log cosh u, from sinh² u."""
    return np.asarray((batch_size - 3) / 2 * np.log1p(sinh2))


@dataclass(frozen=True, slots=True, eq=False)
class Range:
    """Where samples matter.

    Args:
        end: The u beyond which densities, times f² or its slope's square, are below rounding.
        size: The largest distance of f from f(β) up to it.
        peak: About the logarithm of E[(f − f(β))²].
        whole: Whether that is so; else samples too rare for float64 matter.
        u: Where rarity is known, ascending.
        rarity: How far, as a logarithm, densities times squares are below their peak from each on.
    """

    end: float
    size: float
    peak: float
    whole: bool
    u: Array
    rarity: Array

    def rarity_from(self, u: Array) -> Array:
        """How rare the least rare samples from each u on are, as a logarithm."""
        return np.asarray(self.rarity[np.maximum(np.searchsorted(self.u, u) - 1, 0)])


def range_of(f: Response, batch_size: int, c: float) -> Range:
    """Find how far out samples matter; farther out where all within the usual range is flat."""
    if c == 0:
        return _range(f, batch_size, 0.0)
    found = _range(f, batch_size, ALMOST_NO_C)
    # Else c moves hardly any weight.
    return _range(f, batch_size, c) if c * math.sinh(found.end) ** 2 > 1 else found


@lru_cache(maxsize=16)
@np.errstate(over="ignore", invalid="ignore")  # the solver refuses overflows by name
def _range(f: Response, batch_size: int, c: float) -> Range:
    found = _within(f, batch_size, c, _FARTHEST[0])
    return found if found.whole and found.size > 0 else _within(f, batch_size, c, _FARTHEST[1])


def whole_range(f: Response, batch_size: int, c: float) -> Range:
    """Find how far out samples matter.

    Raises:
        ConvergenceError: If samples too rare for float64 matter.
    """
    found = range_of(f, batch_size, c)
    if found.whole:
        return found
    raise ConvergenceError(
        f"averages of activation {f.activation.name} at gamma = {f.gamma:g}, beta = {f.beta:g} "
        f"are made by samples of density below e^-{_FARTHEST[1]:g}, which float64 cannot follow. "
        "Move beta to where it varies, use a smaller gamma, or an activation that grows slower."
    )


def _within(f: Response, batch_size: int, c: float, farthest: float) -> Range:
    """The range among samples of a density above e^-farthest."""
    # Of z + b, weights keep b = c cosh² u at most, which is no more than a power of cosh.
    power = batch_size - 1 if c else batch_size
    # Farther out either factor alone is below e^-farthest.
    log_cosh = farthest / max(power - 3, 1)
    high = math.asinh(math.sqrt(math.expm1(2 * log_cosh))) if log_cosh < 2 * LEFT_OUT else np.inf
    high = min(high, math.asinh(math.sqrt(2 * farthest / c)) if c else 2 * LEFT_OUT)
    u = high * _PARTS
    argument = f.gamma * math.sqrt(batch_size - 1) * np.tanh(u)
    values = f.activation.values(f.beta + np.concatenate([-argument, argument])).reshape(2, -1)
    sizes = np.abs(np.array([values[:, 1:] - values[:, :1], values[:, 1:] - values[:, :-1]]))
    sizes = sizes.max(1)
    sizes[1] /= np.maximum(argument[1:] - argument[:-1], _TINY)
    u = u[1:]
    sinh2 = np.sinh(u) ** 2
    left = -exponent(power, sinh2) - c / 2 * sinh2
    # Ends where f itself ends are no growth: only the largest so far counts.
    grown = left + 2 * np.log(np.maximum(np.maximum.accumulate(sizes, 1), _TINY))
    weight = grown + np.log(u)
    peak = weight.max(1, keepdims=True)
    kept = grown > peak - LEFT_OUT
    last = u.size - int(kept[:, ::-1].argmax(1).min())  # none kept: all
    last = min(last, u.size - 1)
    size = float(sizes[0, : last + 1].max())
    # Not where the sphere ends, or tanh u is 1 to the last digit.
    cut = math.tanh(high) < 1
    rising = kept[:, -1] | (grown[:, -1] > grown[:, -2])
    whole = not (cut and size > 0 and math.isfinite(grown.sum()) and rising.any())
    rarity = np.minimum.accumulate((peak - weight).min(0)[::-1])[::-1]
    return Range(float(u[last]), size, float(grown[0].max()), whole, u, rarity)
