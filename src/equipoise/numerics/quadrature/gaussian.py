r"""Averages over one normal number, or two correlated ones, of functions with kinks.

The line is cut at the function's kinks and then bisected until a polynomial follows the function
on every panel, so that a Gauss–Legendre rule per panel integrates products with the density. Of
two numbers the inner is integrated first, given the outer, on panels of its own. That average is
smooth on the scale of the inner spread, which a correlation near ±1 makes small: the outer panels
shrink geometrically towards the images of the kinks.

Symbols: σ: standard deviation, g = 1 - c: gap, with c the correlation, so that

.. math:: x_2 = (1 - g)\,x_1 + s z, \qquad s = \sigma\sqrt{g(2 - g)}.

The gap and not c is the argument, because near c = 1 the latter has lost its digits.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from equipoise.numerics.quadrature import panels

Array = NDArray[np.float64]
Mask = NDArray[np.bool_]
Combination = Callable[[Array, Array], Array]

# The density beyond ten standard deviations is below 1e-22: farther out only where the function
# grows, or is flat for all others, down to densities that float64 can follow.
_REACH, _WIDTH, _FARTHEST = 10.0, 2.0, 36.0
# Squares times densities this far below the largest, in logarithms, are left out.
_LEFT_OUT = 40.0
_SEEN = np.linspace(-_FARTHEST, _FARTHEST, 144)  # not 0, where slopes may be infinite
_RULES = tuple(panels.analytic(count) for count in (20, 28, 40, 56))
_POWER_RULES = tuple(panels.any_powers(count) for count in (72, 100, 140, 200))
LEVELS = len(_RULES)

_CHEBYSHEV = np.cos(np.pi * (np.arange(16) + 0.5) / 16)
_CHECKS = np.linspace(-0.98, 0.98, 9)
_INTERPOLATION = np.polynomial.chebyshev.chebvander(_CHECKS, 15) @ np.linalg.inv(
    np.polynomial.chebyshev.chebvander(_CHEBYSHEV, 15)
)
# Beside a kink that nobody declared, panels end up too narrow to matter. Of two numbers, panels
# of both multiply: what is left beside such a kink is in the errors.
_RESOLVED, _MOST_BISECTIONS, _OF_TWO = 1e-13, 48, 14
_SCALE = 16.0
# More panels failing at once mean rounding noise, or a function too steep for its reach. What
# they miss then shows as a difference between levels.
_MOST_FAILURES = 128
# Nodes held at once, in numbers; a few arrays of this size stay below 100 MB.
_CHUNK = 1_000_000


@dataclass(frozen=True, slots=True, eq=False)
class Piecewise:
    """Some functions of one number that are analytic between common kinks.

    Args:
        function: Maps points of any shape to values of shape ``[rows, ...]``.
        kinks: Where the functions are not analytic, ascending.
        powers: Which kinks are fractional powers on some side.
    """

    function: Callable[[Array], Array]
    kinks: Array
    powers: Mask


@dataclass(frozen=True, slots=True, eq=False)
class Partition:
    """Edges of panels on which the functions are polynomials to rounding error.

    Args:
        edges: Ascending, of shape ``[p + 1]``.
        powers: Which edges are fractional powers.
        reach: How many standard deviations from the mean they end.
        deviation: By how much of the functions' size polynomials miss them where there would have
            to be too many panels, or the first of them where panels cannot be narrower: 0 where
            all are fine enough.
        left_out: What averages of each function's square may miss on panels that are too wide.
        whole: Whether nothing that matters lies beyond.
    """

    edges: Array
    powers: Mask
    reach: float
    deviation: float
    left_out: Array
    whole: bool = True


def partition(
    f: Piecewise, std: float, mean: float = 0.0, bisections: int = _MOST_BISECTIONS
) -> Partition:
    """Cut the reach of a normal number N(mean, std²) into panels."""
    reach, whole = _reach(f, std, mean)
    low, high = mean - reach * std, mean + reach * std
    inside = (f.kinks > low) & (f.kinks < high)
    kinks = f.kinks[inside]
    # Functions turn on a scale of their own near 0, which a window of a wide density would miss.
    graded = _SCALE ** np.arange(1.0, math.log(max(2 * std, 1.0)) / math.log(_SCALE))
    window = mean + _window(reach) * std
    edges = np.unique(np.concatenate([window, -graded, graded, kinks]))
    edges = edges[(edges >= window[0]) & (edges <= window[-1])]
    left, right = edges[:-1], edges[1:]
    singular = kinks[f.powers[inside]]
    found = [edges]
    missed: float = 0.0
    left_out: Array = np.zeros(1)
    for turn in range(bisections + 1):
        middle = (left + right) / 2
        deviation, size = _deviation(f.function, left, right, std, mean)
        failing = (deviation > _RESOLVED).any(0)
        failing &= ~np.isin(left, singular) & ~np.isin(right, singular)
        coarse = failing & (left < middle) & (middle < right) & (turn < bisections)
        if (stuck := failing & ~coarse).any():
            missed = max(missed, float(deviation[0, stuck].max()))
            width = (right - left)[stuck] / std
            left_out = left_out + 0.8 * size**2 * (np.minimum(deviation[:, stuck], 1) @ width)
        if (count := np.count_nonzero(coarse)) == 0:
            break
        if count > _MOST_FAILURES:
            missed = max(missed, float(deviation[:, coarse].max()))
            break
        found.append(middle[coarse])
        left, right = (
            np.concatenate([left[coarse], middle[coarse]]),
            np.concatenate([middle[coarse], right[coarse]]),
        )
    edges = np.unique(np.concatenate(found))
    return Partition(edges, np.isin(edges, singular), reach, missed, left_out, whole)


def pair_partition(f: Piecewise, std: float) -> Partition:
    """The panels of both numbers in averages over two."""
    return partition(f, std, bisections=_OF_TWO)


@np.errstate(over="ignore", invalid="ignore", divide="ignore")
def _reach(f: Piecewise, std: float, mean: float) -> tuple[float, bool]:
    """Standard deviations beyond which squares times the density are below rounding."""
    size = 2 * np.log(np.abs(f.function(mean + std * _SEEN))) - _SEEN**2 / 2  # [rows, m]
    if np.isposinf(size).any():
        return _REACH, False
    size = np.where(np.isnan(size), -np.inf, size)
    kept = (size > size.max(1, keepdims=True) - _LEFT_OUT).any(0)
    farthest = np.abs(_SEEN[kept]).max(initial=0.0)
    if farthest == _FARTHEST:
        return _FARTHEST, False
    return max(_REACH, float(np.ceil((farthest + 0.5) / _WIDTH) * _WIDTH)), True


def _window(reach: float) -> Array:
    return np.arange(-reach, reach + _WIDTH / 2, _WIDTH)


def average(
    f: Piecewise,
    std: float,
    combine: Callable[[Array, Array], Array],
    level: int,
    mean: float = 0.0,
    cut: Partition | None = None,
) -> Array:
    r"""Average :math:`E[h(f(x), z)]` over :math:`x = \mu + \sigma z`, z standard normal.

    Args:
        f: The functions.
        std: σ, positive.
        combine: Maps values ``[rows, m]`` and z ``[m]`` to integrands ``[out, m]``.
        level: Fineness, from 0 to ``LEVELS - 1``.
        mean: μ.
        cut: Their partition, if it is known.

    Returns:
        The averages, of shape ``[out]``.

    Examples:
        >>> relu = Piecewise(lambda x: np.maximum(x, 0)[None], np.zeros(1), np.zeros(1, bool))
        >>> average(relu, 2.0, lambda f, z: f**2, 0)  # σ²/2
        array([2.])
    """
    x, weights = _normal_nodes(cut or partition(f, std, mean), std, level, mean)
    values = np.where(weights > 0, f.function(x), 0.0)
    return np.asarray(combine(values, (x - mean) / std) @ weights)


def pair_average(f: Piecewise, std: float, gap: float, combine: Combination, level: int) -> Array:
    r"""Average :math:`E[h(f(x_1), f(x_2))]` over two normal numbers of correlation 1 - gap.

    Args:
        f: The functions.
        std: σ of either number, positive.
        gap: One minus the correlation, strictly between 0 and 2.
        combine: Maps two values ``[rows, m]`` to integrands ``[out, m]``.
        level: Fineness, from 0 to ``LEVELS - 1``.

    Returns:
        The averages, of shape ``[out]``.

    Examples:
        >>> line = Piecewise(lambda x: x[None], np.empty(0), np.empty(0, bool))
        >>> average = pair_average(line, 1.0, 0.75, lambda a, b: a * b, 0)
        >>> round(float(average[0]), 12)  # the correlation
        0.25
    """
    cut = pair_partition(f, std)
    spread = std * np.sqrt(gap * (2 - gap))
    outer = _refined_towards(cut, f.kinks / (1 - gap) if gap != 1 else f.kinks, spread, std)
    x1, weights1 = _normal_nodes(outer, std, level)
    values = np.where(weights1 > 0, f.function(x1), 0.0)
    per_outer = (len(cut.edges) + len(_window(cut.reach))) * _RULES[level].left.size
    chunks = range(0, len(x1), max(1, _CHUNK // per_outer))
    total = np.zeros(1)
    for start in chunks:
        part = slice(start, start + chunks.step)
        owner, x2, weights2 = _inner_nodes(cut, (1 - gap) * x1[part], spread, level)
        both = weights1[part][owner] * weights2
        second = np.where(both > 0, f.function(x2), 0.0)
        total = total + combine(values[:, part][:, owner], second) @ both
    return total


def _deviation(
    function: Callable[[Array], Array], left: Array, right: Array, std: float, mean: float
) -> tuple[Array, Array]:
    """By how much of their size polynomials miss the functions, ``[rows, panels]``; the sizes."""
    centre, half = ((left + right) / 2)[:, None], ((right - left) / 2)[:, None]
    nodes, checks = function(centre + half * _CHEBYSHEV), function(centre + half * _CHECKS)
    # Values count by the square root of the density: integrands are products of two.
    nearest = np.maximum(np.maximum(left - mean, mean - right), 0.0)
    matter = np.exp(-((nearest / std) ** 2) / 4)
    with np.errstate(invalid="ignore", divide="ignore"):
        deviation = np.abs(nodes @ _INTERPOLATION.T - checks).max(-1) * matter  # [rows, panels]
        size = (np.abs(checks).max(-1) * matter).max(-1)
        counted = np.isfinite(deviation) & (deviation > 0)
        relative = np.where(counted, deviation / size[:, None], 0.0)
    return np.asarray(np.nan_to_num(relative, nan=np.inf, posinf=np.inf)), size


def _refined_towards(cut: Partition, centres: Array, spread: float, std: float) -> Partition:
    """Add edges at geometrically growing distances from the centres."""
    reach = cut.reach * std
    steps = spread * 2.0 ** np.arange(-1, np.ceil(np.log2(4 * std / spread)))
    around = centres[:, None] + np.concatenate([-steps, [0.0], steps])
    added = around[np.abs(around) < reach]
    # A panel that ends close to a fractional power, but not on it, would need its rule too.
    singular = cut.edges[cut.powers]
    added = added[(np.abs(added[:, None] - singular) >= spread / 4).all(1)]
    edges = np.unique(np.concatenate([cut.edges, added]))
    return replace(cut, edges=edges, powers=np.isin(edges, singular))


def _normal_nodes(
    cut: Partition, std: float, level: int, mean: float = 0.0
) -> tuple[Array, Array]:
    """Nodes for N(μ, σ²) and their weights, each flat."""
    ends = np.stack([cut.edges[:-1], cut.edges[1:]], 1)  # [panels, 2]
    points, weights = [], []
    for rule, chosen in _rules(cut.powers[:-1] | cut.powers[1:], level):
        nodes = panels.place(rule, ends[chosen])
        x = nodes.of_edges(ends[chosen]) + nodes.offset
        points.append(x.ravel())
        weights.append((nodes.weights * _density((x - mean) / std) / std).ravel())
    return np.concatenate(points), np.concatenate(weights)


def _rules(singular: Mask, level: int) -> Iterator[tuple[panels.UnitRule, Mask]]:
    """Yield each rule with the panels that it is for, if any."""
    for rule, chosen in ((_RULES[level], ~singular), (_POWER_RULES[level], singular)):
        if chosen.any():
            yield rule, chosen


@dataclass(frozen=True, slots=True, eq=False)
class _Edges:
    """Edges of inner panels: in units of the spread, in x, and whether a fractional power."""

    z: Array
    x: Array
    singular: Mask


def _inner_nodes(
    cut: Partition, centres: Array, spread: float, level: int
) -> tuple[NDArray[np.intp], Array, Array]:
    """Nodes for N(centre, s²) for every centre: which centre, where, and weight; all flat."""
    edges = _inner_edges(cut, centres, spread)
    owner, panel = np.nonzero(np.diff(edges.z, axis=1) > 0)
    either = np.stack([panel, panel + 1], 1)
    z_ends, x_ends = edges.z[owner[:, None], either], edges.x[owner[:, None], either]
    singular = edges.singular[owner[:, None], either].any(1)
    owners, points, weights = [], [], []
    for rule, chosen in _rules(np.asarray(singular), level):
        nodes = panels.place(rule, z_ends[chosen])
        z = nodes.of_edges(z_ends[chosen]) + nodes.offset
        x = nodes.of_edges(x_ends[chosen]) + spread * nodes.offset
        owners.append(np.repeat(owner[chosen], z.shape[1]))
        points.append(x.ravel())
        weights.append((nodes.weights * _density(z)).ravel())
    return np.concatenate(owners), np.concatenate(points), np.concatenate(weights)


def _inner_edges(cut: Partition, centres: Array, spread: float) -> _Edges:
    """The partition's edges and a window around each centre, ascending in every row."""
    images = (cut.edges - centres[:, None]) / spread  # [centres, edges]
    inside = np.abs(images) < cut.reach
    images = np.clip(images, -cut.reach, cut.reach)
    # At the partition's edges the point is known exactly, elsewhere by its image.
    x_images = np.where(inside, cut.edges, centres[:, None] + spread * images)
    window = np.tile(_window(cut.reach), (len(centres), 1))
    x_window = centres[:, None] + spread * window
    on_power = np.zeros(window.shape, dtype=bool)
    for edge in np.flatnonzero(cut.powers):
        # A panel that ends close to a fractional power, but not on it, would need its rule too.
        image = images[:, [edge]]
        near = inside[:, [edge]] & (np.abs(window - image) < _WIDTH / 2)
        window, x_window = np.where(near, image, window), np.where(near, cut.edges[edge], x_window)
        on_power |= near
    z = np.concatenate([images, window], 1)
    x = np.concatenate([x_images, x_window], 1)
    singular = np.concatenate([inside & cut.powers, on_power], 1)
    order = np.argsort(z, axis=1, kind="stable")
    return _Edges(*(np.take_along_axis(part, order, 1) for part in (z, x, singular)))


def _density(z: Array) -> Array:
    return np.asarray(np.exp(-(z**2) / 2) / np.sqrt(2 * np.pi))
