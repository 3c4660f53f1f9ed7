"""Numbers as functions of standard normal latents.

A function T is held as a table of its values on fixed nodes; what pairs of them average to stands
in :mod:`equipoise.theory.propagation.pair_averages`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Indices = NDArray[np.intp]
Series: TypeAlias = Callable[[Array, Array, Array, Array, Array], Array]

# Panels of half a standard deviation, so that a kink at the centre is an edge.
_REACH, _WIDTH, _PER_PANEL = 9.0, 0.5, 10
# More would oscillate faster than the nodes can follow, see the test of few dimensions.
TERMS = 48


@lru_cache(maxsize=1)
def nodes() -> tuple[Array, Array]:
    """Nodes of a standard normal number and their weights, each of shape ``[M]``.

    Examples:
        >>> g, weights = nodes()
        >>> round(float(weights @ g**4), 12)
        3.0
    """
    x, w = np.polynomial.legendre.leggauss(_PER_PANEL)
    edges = np.arange(-_REACH, _REACH, _WIDTH)
    g = (edges[:, None] + _WIDTH * (x + 1) / 2).ravel()
    weights = np.tile(_WIDTH * w / 2, len(edges)) * np.exp(-(g**2) / 2)
    return g, weights / weights.sum()


@lru_cache(maxsize=1)
def hermite() -> Array:
    """Orthonormal Hermite polynomials at the nodes, of shape ``[TERMS, M]``."""
    g, _ = nodes()
    table = np.empty((TERMS, len(g)))
    table[0], table[1] = 1.0, g
    for k in range(1, TERMS - 1):
        table[k + 1] = (g * table[k] - np.sqrt(k) * table[k - 1]) / np.sqrt(k + 1)
    return table


def derivative(table: Array) -> Array:
    """dT/dg, exact where T is a polynomial between multiples of half a standard deviation."""
    return np.asarray(
        (table.reshape(*table.shape[:-1], -1, _PER_PANEL) @ _differences()).reshape(table.shape)
    )


@lru_cache(maxsize=1)
def _differences() -> Array:
    """Differentiates the polynomial through the nodes of a panel, from the right."""
    x = nodes()[0][:_PER_PANEL]
    gaps = x[:, None] - x + np.eye(_PER_PANEL)
    products = gaps.prod(1)
    matrix = products[:, None] / products / gaps
    np.fill_diagonal(matrix, (1 / gaps).sum(1) - 1)
    return np.ascontiguousarray(matrix.T)


def mean(table: Array) -> Array:
    """E[T], over the last axis."""
    return np.asarray(table @ nodes()[1])


def linear_share(table: Array) -> float:
    r"""Share of the variance that is linear in the latent, :math:`E[gT]^2/\operatorname{Var} T`.

    Examples:
        >>> print(round(linear_share(np.maximum(nodes()[0], 0)[None]), 3))  # 1/4 of 1/2 - 1/2π
        0.733
    """
    slopes, variances = mean(table * nodes()[0]), mean(table**2) - mean(table) ** 2
    total = float(variances.sum())
    return float((slopes**2).sum()) / total if total > 0 else 1.0


def of_sum(first: Array, second: Array) -> Array:
    """Table of the quantile function of T₁(g₁) + T₂(g₂) with independent latents."""
    return _quantiles(np.add, first.tobytes(), second.tobytes())


def of_product(first: Array, second: Array) -> Array:
    """Table of the quantile function of T₁(g₁) T₂(g₂) with independent latents."""
    return _quantiles(np.multiply, first.tobytes(), second.tobytes())


def is_rising(table: Array) -> bool:
    """Whether no function falls anywhere."""
    return bool((np.diff(table, axis=-1) >= -1e-12 * np.abs(table).max()).all())


def rising(table: Array) -> Array:
    """The rising functions of the same laws, of shape ``[P, M]``."""
    from scipy.special import ndtri

    if is_rising(table):
        return table
    g, weights = nodes()
    found = []
    for row in table:
        order = np.argsort(row)
        chance = np.cumsum(weights[order]) - weights[order] / 2
        found.append(np.interp(g, ndtri(np.clip(chance, 1e-300, 1 - 1e-16)), row[order]))
    return np.array(found)


@lru_cache(maxsize=256)
def on_sphere(dimensions: float) -> Array:
    r"""Table of one coordinate of a random point on the sphere of radius :math:`\sqrt n`.

    Its square over n has the law :math:`\mathrm{Beta}(\frac12, \frac{n-1}2)`; Gaussian as n grows.

    Examples:
        >>> z = on_sphere(9)
        >>> print(np.round([mean(z**2), mean(z**4)], 3))  # 1 and 3n/(n + 2)
        [1.    2.455]
    """
    from scipy.special import betainccinv, erfc

    g, _ = nodes()
    square = betainccinv(0.5, (dimensions - 1) / 2, erfc(np.abs(g) / np.sqrt(2)))
    return np.asarray(np.sign(g) * np.sqrt(dimensions * square))


def of_mixture(tables: Sequence[Array], shares: Sequence[float]) -> Array:
    """Table of the quantile function of a draw from one of several laws."""
    from scipy.special import ndtr

    g, weights = nodes()
    flat = np.concatenate(tables)
    chance = np.concatenate([share * weights for share in shares])
    order = np.argsort(flat)
    below = np.cumsum(chance[order]) - chance[order] / 2
    return np.asarray(np.interp(ndtr(g), below, flat[order]))


# Kept, because a network is predicted many times, with more blocks or a remedy, and begins alike.
@lru_cache(maxsize=512)
def _quantiles(combine: np.ufunc, first: bytes, second: bytes) -> Array:
    """Table of the rising function of a latent with the same law as two functions combined."""
    from scipy.special import ndtr

    g, weights = nodes()
    flat = combine.outer(np.frombuffer(first), np.frombuffer(second)).ravel()
    order = np.argsort(flat, kind="stable")  # rows rise already
    chance = np.cumsum(np.outer(weights, weights).ravel()[order])
    table = np.asarray(np.interp(ndtr(g), chance, flat[order]))
    table.setflags(write=False)
    return table
