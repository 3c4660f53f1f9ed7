r"""What pairs of functions of standard normal latents average to.

With orthonormal Hermite polynomials :math:`h_k` and :math:`a_k = E[T_1 h_k]`,
:math:`b_k = E[T_2 h_k]`, latents of correlation ρ give

.. math:: E[T_1(g_1)\,T_2(g_2)] = \sum_k a_k b_k \rho^k

(Mehler). The sum is cut at an even degree K. Its rest is known at ρ = ±1, and with it that of even
and of odd degrees; they are taken as falling with :math:`\rho^K` and :math:`\rho^{K+1}`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache, partial
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from equipoise.numerics.quadrature import gegenbauer
from equipoise.theory.propagation.latent import TERMS, hermite, nodes, on_sphere

Array = NDArray[np.float64]
Indices = NDArray[np.intp]
Series: TypeAlias = Callable[[Array, Array, Array, Array, Array], Array]

# Of correlations up to 0.3, twelve terms leave less than 1e-9.
_FAR, _FEW_TERMS, _MANY = 0.3, 12, 10_000
# Series of 48 terms and a rest are polynomials of at most 97 degrees: as many points and one more
# determine them.
# Terms below rounding are left out, and blocks of points stay in the cache.
_POINTS, _ROUNDING, _BLOCK, _NARROW = 2 * TERMS + 2, 1e-13, 1 << 13, 1e-12


def pairs(
    first: Array, second: Array, correlation: Array, dimensions: float | None = None
) -> Array:
    r"""Average :math:`E[T_1(g_1)T_2(g_2)]`.

    Args:
        first: Tables of shape ``[P, M]`` or ``[1, M]``.
        second: Tables of shape ``[P, M]`` or ``[1, M]``.
        correlation: Of the latents, of shape ``[P, P]``.
        dimensions: n, if the tables are functions of points on a sphere, see :func:`on_sphere`.

    Examples:
        >>> relu = np.maximum(nodes()[0], 0)[None]
        >>> rho = np.array([[0.0, 1.0]])
        >>> np.round(pairs(relu, relu, rho) * 2, 9)  # 1/π and 1
        array([[0.31830989, 1.        ]])
    """
    return averages(first, second, dimensions)(correlation)


def at_equal_positions(table: Array, correlation: Array, dimensions: float | None) -> Array:
    """E[T(g₁)T(g₂)] for each position's function, and not for those of two positions.

    Args:
        table: Of shape ``[P, M]`` or ``[1, M]``.
        correlation: Of two latents at each position, of shape ``[P]``.
        dimensions: As in :func:`pairs`.

    Examples:
        >>> relu = np.maximum(nodes()[0], 0)[None]
        >>> np.round(at_equal_positions(relu, np.array([0.0, 1.0]), None) * 2, 9)
        array([0.31830989, 1.        ])
    """
    one, scale = _shape_and_scale(table)
    if len(one) == 1:
        average = _of_one(one.tobytes(), one.tobytes(), dimensions)(correlation)
        return average if scale is None else average * scale**2
    basis, series = _series(dimensions)
    a = one @ basis.T
    even, odd = _halves(one)
    even, odd = (
        (even**2).sum(1) - (a[:, ::2] ** 2).sum(1),
        (odd**2).sum(1) - (a[:, 1::2] ** 2).sum(1),
    )
    once = np.ones((1, TERMS))
    return series(a**2, once, even[:, None], odd[:, None], correlation[:, None])[:, 0]


def averages(
    first: Array, second: Array, dimensions: float | None = None
) -> Callable[[Array], Array]:
    """The averages of :func:`pairs`, as a function of correlations ``[P, P]``."""
    one, left = _shape_and_scale(first)
    other, right = (one, left) if second is first else _shape_and_scale(second)

    average: Callable[[Array], Array]
    if len(one) == len(other) == 1:
        average = _of_one(one.tobytes(), other.tobytes(), dimensions)
    elif dimensions is None:
        average = partial(_of_several, one, other)
    else:
        average = partial(_on_sphere, one, other, dimensions=dimensions)
    if left is right is None:
        return average

    def scaled(correlation: Array) -> Array:
        found = average(correlation)
        if left is not None:
            found *= left[:, None]
        if right is not None:
            found *= right
        return found

    return scaled


# Layers after equal norms have equal tables, and so have other depths and changed parameters.
@lru_cache(maxsize=256)
def _of_one(first: bytes, second: bytes, dimensions: float | None) -> Callable[[Array], Array]:
    """The series, if all positions have one function; its tables as bytes."""
    one, other = (np.frombuffer(table)[None] for table in (first, second))
    if dimensions is None:
        return _polynomial(lambda rho: _pairs(one, other, rho, TERMS))
    return _polynomial(lambda rho: _on_sphere(one, other, rho, dimensions))


def _of_several(first: Array, second: Array, correlation: Array) -> Array:
    """The series, if every position has a function of its own."""
    close = _close(correlation)
    if close is None:
        return _pairs(first, second, correlation, TERMS)
    found = _pairs(first, second, np.where(close, 0.0, correlation), _FEW_TERMS)
    rows, columns = np.nonzero(close)
    found[close] = _elementwise(first, second, rows, columns, correlation[close])
    return found


def _polynomial(series: Callable[[Array], Array]) -> Callable[[Array], Array]:
    """A series in the correlation, as the polynomial through its values at few points."""
    values = series(_chebyshev_points()[None])[0]
    coefficients, negligible = _chebyshev_transform() @ values, _ROUNDING * np.abs(values).max()

    def average(correlation: Array) -> Array:
        close = _close(correlation)
        if close is None:
            return _on_range(coefficients, correlation, negligible)
        found = _on_range(coefficients, np.where(close, 0.0, correlation), negligible)
        found[close] = _on_range(coefficients, correlation[close], negligible)
        return found

    return average


def _close(correlation: Array) -> Any:
    """Which of many pairs are close together, if most are far apart: few terms do for those."""
    if correlation.size <= _MANY:
        return None
    close = np.abs(correlation) > _FAR
    return close if np.count_nonzero(close) < correlation.size / 4 else None


def _on_range(coefficients: Array, x: Array, negligible: float) -> Array:
    """Sum Chebyshev's polynomials at many points, in those of the range of the points."""
    low, high = float(x.min(initial=1)), float(x.max(initial=-1))
    if high - low < _NARROW:
        return np.full_like(x, np.polynomial.chebyshev.chebval(low, coefficients))
    middle, reach = (low + high) / 2, (high - low) / 2
    angles = np.arccos(np.clip(middle + reach * _chebyshev_points(), -1, 1))
    values = np.cos(angles[:, None] * np.arange(_POINTS)) @ coefficients
    here = _chebyshev_transform() @ values
    table = _by_steps(here[: int(np.nonzero(np.abs(here) > negligible)[0].max(initial=0)) + 1])
    flat = x.ravel()
    found = np.empty_like(flat)
    for at in range(0, len(flat), _BLOCK):
        block = (flat[at : at + _BLOCK] - middle) / reach
        found[at : at + _BLOCK] = _summed(table, block)
    return found.reshape(x.shape)


@lru_cache(maxsize=1)
def _chebyshev_points() -> Array:
    """As many as determine a series, between -1 and 1."""
    return np.cos(np.pi * (np.arange(_POINTS) + 0.5) / _POINTS)


@lru_cache(maxsize=1)
def _chebyshev_transform() -> Array:
    """Coefficients of Chebyshev's polynomials from values at the points."""
    k = np.arange(_POINTS)[:, None]
    return np.cos(k * np.arccos(_chebyshev_points())) * np.where(k > 0, 2, 1) / _POINTS


def _by_steps(coefficients: Array) -> Array:
    r"""Coefficients of the products of Chebyshev's polynomials :math:`T_j(T_m)\,T_i`, i < m.

    They follow from :math:`T_{mj+i} = 2\,T_j(T_m)\,T_i - T_{mj-i}`; m is about the root of their
    number.
    """
    m = math.isqrt(len(coefficients) - 1) + 1
    table = np.zeros((-(-len(coefficients) // m), m))
    table.flat[: len(coefficients)] = coefficients
    for j in range(len(table) - 1, 0, -1):
        table[j - 1, 1:] -= table[j, :0:-1]
        table[j, 1:] *= 2
    return table


def _summed(coefficients: Array, x: Array) -> Array:
    """Sum the products of :func:`_by_steps`, over i as a product of matrices."""
    m = coefficients.shape[1]
    twice = 2 * x
    powers = np.empty((m + 1, len(x)))
    powers[0], powers[1] = 1.0, x
    for i in range(2, m + 1):
        np.multiply(twice, powers[i - 1], out=powers[i])
        powers[i] -= powers[i - 2]
    sums, y = coefficients @ powers[:m], powers[m]
    for j in range(len(sums) - 2, -1, -1):  # Clenshaw's recursion
        sums[j] += (2 * y if j else y) * sums[j + 1]
        if j + 2 < len(sums):
            sums[j] -= sums[j + 2]
    return np.asarray(sums[0])


def _shape_and_scale(table: Array) -> tuple[Array, Array | None]:
    """One function and its sizes, if all are multiples of one, as a rectifier's are."""
    if len(table) == 1:
        return table, None
    place = int(np.argmax(np.abs(table[0])))
    scale = table[:, place]
    if table[0, place] == 0:
        return table, None
    multiples = scale[:, None] * (table[0] / table[0, place])
    if not (np.abs(table - multiples) <= 1e-13 * np.abs(multiples)).all():
        return table, None
    return table[:1] / table[0, place], scale


def _pairs(first: Array, second: Array, correlation: Array, terms: int) -> Array:
    """Sum the given number of terms for all pairs."""
    basis = hermite()[:terms] * nodes()[1]
    return _of_all(_horner, first, second, basis, correlation)


def _horner(a: Array, b: Array, even: Array, odd: Array, rho: Array) -> Array:
    """Sum the terms of a block of pairs."""
    value: Array = odd * rho
    value += even
    for k in reversed(range(a.shape[1])):
        value *= rho
        value += a[:, k, None] * b[:, k]
    return value


def _of_all(
    series: Series,
    first: Array,
    second: Array,
    basis: Array,
    correlation: Array,
) -> Array:
    """Sum a series for all pairs, by blocks of rows that stay in the cache.

    Args:
        series: Takes the coefficients of both functions, what even and odd degrees beyond them
            add at ρ = 1, and correlations.
        first: Tables.
        second: Tables.
        basis: Polynomials at the nodes, times the nodes' weights.
        correlation: Of all pairs.
    """
    a, b = first @ basis.T, second @ basis.T
    even, odd = _rest(first, second, a, b)
    mirrored = first is second and np.array_equal(correlation, correlation.T)
    found = np.empty_like(correlation)
    size = max(1, _BLOCK // correlation.shape[1])
    for start in range(0, len(correlation), size):
        rows, columns = slice(start, start + size), slice(start if mirrored else 0, None)
        found[rows, columns] = series(
            _part(a, rows),
            _part(b, columns),
            _part(_part(even, rows).T, columns).T,
            _part(_part(odd, rows).T, columns).T,
            correlation[rows, columns],
        )
        if mirrored:
            found[start + size :, rows] = found[rows, start + size :].T
    return found


def _part(values: Array, rows: slice) -> Array:
    """Some rows, unless one holds for all."""
    return values[rows] if len(values) > 1 else values


def _rest(first: Array, second: Array, a: Array, b: Array) -> tuple[Array, Array]:
    """What even and odd degrees beyond those of a and b add at ρ = 1, each ``[P, P]``."""
    one = _halves(first)
    other = one if second is first else _halves(second)
    return one[0] @ other[0].T - a[:, ::2] @ b[:, ::2].T, one[1] @ other[1].T - a[:, 1::2] @ b[
        :, 1::2
    ].T


def _halves(table: Array) -> tuple[Array, Array]:
    """The even and the odd part, whose products summed are their averages, each ``[P, M/2]``."""
    half = len(nodes()[0]) // 2  # nodes are symmetric
    left, right = table[:, :half], table[:, : half - 1 : -1]
    weights = np.sqrt(nodes()[1][:half] / 2)
    return (left + right) * weights, (left - right) * weights


def _on_sphere(first: Array, second: Array, correlation: Array, dimensions: float) -> Array:
    """The same for two points of a sphere, see :func:`_recurrence`."""
    basis, series = _series(dimensions)
    return _of_all(series, first, second, basis, correlation)


def _series(dimensions: float | None) -> tuple[Array, Series]:
    """Polynomials at the nodes, times the nodes' weights, and what sums their products."""
    if dimensions is None:
        return hermite() * nodes()[1], _horner
    return _gegenbauer(dimensions) * nodes()[1], partial(_recurrence, dimensions)


def _recurrence(
    dimensions: float, a: Array, b: Array, even: Array, odd: Array, rho: Array
) -> Array:
    r"""Sum :math:`\sum_k a_k b_k P_k(\rho)` for points of a sphere, of inner product ρ.

    :math:`P_k` are Gegenbauer's polynomials, 1 at ρ = 1 (Funk and Hecke); the rest falls with
    those of the first two degrees that are left out, times :math:`\rho^K`.
    """
    leading, falls = _monic(dimensions)
    a = a * leading[:TERMS]
    before, now, product = np.ones_like(rho), rho.copy(), np.empty_like(rho)
    total = np.zeros_like(rho)
    total += a[:, 0, None] * b[:, 0]
    for k in range(1, TERMS + 1):
        if k < TERMS:
            total += np.multiply(a[:, k, None] * b[:, k], now, out=product)
        before *= -falls[k]
        before += np.multiply(rho, now, out=product)
        before, now = now, before
    # The terms that are left out oscillate, and nearly cancel but where all of them are ±1.
    before *= leading[TERMS] * even
    before += np.multiply(leading[TERMS + 1] * odd, now, out=product)
    total += np.multiply(before, rho**TERMS, out=product)
    return total


@lru_cache(maxsize=256)
def _monic(dimensions: float) -> tuple[Array, Array]:
    r"""Leading coefficients c of Gegenbauer's polynomials, and what recurs without them.

    :math:`P_k = c_k Q_k`, and :math:`Q_{k+1} = \rho Q_k - f_k Q_{k-1}`: one multiplication less.
    """
    k, n = np.arange(1, TERMS + 1), dimensions
    leading = np.cumprod(np.concatenate([[1.0, 1.0], (2 * k + n - 2) / (k + n - 2)]))
    return leading, np.append(math.nan, k / (k + n - 2) * leading[:-2] / leading[2:])


@lru_cache(maxsize=256)
def _gegenbauer(dimensions: float) -> Array:
    """Orthonormal polynomials of one coordinate, at the nodes."""
    z = on_sphere(dimensions)
    return np.stack(list(gegenbauer.polynomials(dimensions + 1, TERMS, z)))


def _elementwise(
    first: Array, second: Array, rows: Indices, columns: Indices, correlation: Array
) -> Array:
    """The whole series for a list of pairs."""
    weighted = (hermite() * nodes()[1]).T
    a, b = first @ weighted, second @ weighted
    even, odd = _rest(first, second, a, b)
    i = rows if len(first) > 1 else np.zeros_like(rows)
    j = columns if len(second) > 1 else np.zeros_like(columns)
    products = a[i] * b[j]
    value = even[i, j] + odd[i, j] * correlation
    for k in reversed(range(TERMS)):
        value = value * correlation + products[:, k]
    return np.asarray(value)


def correlation_of(table: Array, product: Array) -> Array:
    """The correlation of latents at which E[T(g₁)T(g₂)] has a given value; T of shape ``[M]``.

    Values that no correlation reaches are clipped.
    """
    grid = np.sin(np.linspace(-np.pi / 2, np.pi / 2, 401))
    values = pairs(table[None], table[None], grid[None])[0]
    rising = np.minimum.accumulate(values[::-1])[::-1]  # if T is even, negative ones are as 0
    start = int(np.searchsorted(rising, rising[0] + 1e-12, side="right")) - 1
    return np.asarray(np.interp(product, rising[start:], grid[start:]))
