r"""Averages over the part z of a batch's squared norm that lies outside the plane of two outputs.

:math:`z\sim\chi^2_\nu`, and averages depend on b alone. In log b they are analytic up to ±πi:
many b need no more than a few dozen sums over z, between which polynomials are as exact as sums.
"""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np
from numpy.polynomial import chebyshev
from numpy.typing import NDArray

from equipoise.numerics.special import gamma_ratio
from equipoise.theory.batch_norm.averages.reach import LEFT_OUT

Array = NDArray[np.float64]

# Length of a piece in log b, and nodes on it: a polynomial misses 6.4^-22 = 2e-18.
_LENGTH, _NODES = 2.0, 22
# Fewer terms of sums are not worth it.
_FEW = 100_000
_AT = chebyshev.chebpts1(_NODES)
_TO_COEFFICIENTS = np.linalg.inv(chebyshev.chebvander(_AT, _NODES - 1))


def averages_over_z(nu: int, b: Array, s: Array) -> tuple[Array, Array]:
    """E[(z + s)/(z + b)], which is R², and E[(z + b)^1.5], for z of ν degrees of freedom."""
    if not b.any():  # ε = 0: R = 1
        return np.ones_like(b), np.full_like(b, nu**1.5 * gamma_ratio(nu / 2, 1.5))
    z, weight = _chi_squared(nu, _lowest(nu, float(b.min())))
    if b.size * z.size < _FEW:
        part, inverse, amplitude = _sums(z, weight, b)
        return part + s * inverse, amplitude
    part, inverse, amplitude = _interpolated(nu, b.ravel()).reshape(3, *b.shape)
    whole = nu + b
    return (nu * part + s * inverse) / whole, amplitude * whole * np.sqrt(whole)


def _lowest(nu: int, b: float) -> float:
    """Logarithm of z/ν below which 1/(z + b) is flat: the density's own decay suffices there."""
    return min(0.0, math.log(max(b, 1e-300) / nu)) if nu <= 2 else 0.0


def _sums(z: Array, weight: Array, b: Array) -> tuple[Array, Array, Array]:
    """E[z/(z + b)], E[1/(z + b)] and E[(z + b)^1.5]."""
    sums = z + b[..., None]
    amplitude = (sums * np.sqrt(sums)) @ weight
    inverse = np.reciprocal(sums, out=sums)
    return inverse @ (z * weight), inverse @ weight, amplitude


def _interpolated(nu: int, b: Array) -> Array:
    """Those in units of ν/(ν + b), 1/(ν + b) and (ν + b)^1.5, for b of shape ``[m]``."""
    order = b.argsort()
    log_b = np.log(b[order]) / _LENGTH
    pieces = np.floor(log_b)
    basis = chebyshev.chebvander(2 * (log_b - pieces) - 1, _NODES - 1)
    starts = np.flatnonzero(np.append(True, np.diff(pieces) > 0))
    found = np.empty((b.size, 3))
    for start, rows in zip(starts.tolist(), np.split(basis, starts[1:]), strict=True):
        found[order[start : start + len(rows)]] = rows @ _coefficients(nu, int(pieces[start]))
    return found.T


@lru_cache(maxsize=256)
def _coefficients(nu: int, piece: int) -> Array:
    """Chebyshev coefficients of the three on a piece of log b, of shape ``[nodes, 3]``."""
    b = np.exp(_LENGTH * (piece + (1 + _AT) / 2))
    part, inverse, amplitude = _sums(*_chi_squared(nu, _lowest(nu, float(b[0]))), b)
    whole = nu + b
    found = [part * whole / nu, inverse * whole, amplitude / (whole * np.sqrt(whole))]
    return np.asarray(_TO_COEFFICIENTS @ np.transpose(found))


@lru_cache(maxsize=32)
def _chi_squared(nu: int, lowest: float) -> tuple[Array, Array]:
    """Nodes z and weights for averages over χ² of ν degrees of freedom, from e^lowest·ν on."""
    spread = np.sqrt(2 / nu)
    step = min(0.18, 0.45 * spread)
    d = np.arange(lowest - 13 * spread - 80 / nu, 13 * spread, step)
    density = nu / 2 * (d - np.expm1(d))
    kept = density > -LEFT_OUT - (0.0 if nu > 2 else -lowest)
    d, density = d[kept], density[kept]
    z, weight = nu * np.exp(d), np.exp(density)
    weight /= weight.sum()
    z.flags.writeable = weight.flags.writeable = False
    return z, weight
