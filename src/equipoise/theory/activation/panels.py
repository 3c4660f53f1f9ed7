"""Panels on which a polynomial follows a function, and those on which it does not.

A panel passes when the values and slopes at fresh points agree with the polynomial through its
nodes.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
ValuesAndSlopes = Callable[[Array], tuple[Array, Array]]
# Odd numbers, so that no panel ends at a round number, where kinks are likely.
FIRST_EDGE, WIDTH = -20.1373, 0.2459
_DEGREE, _TOLERANCE = 16, 1e-11
_DENSE = 151
# Values are seen at points this far apart: no wider feature stays between them.
SPACING = 1e-4
# Points looked at in one go, so that arrays stay in the cache.
_CHUNK = 25_000


@dataclass(frozen=True, slots=True, eq=False)
class _Grid:
    """Points of a panel, as parts of its width, at which the polynomial through its nodes is read.

    Args:
        places: The nodes, then the points.
        weights: Of the nodes in the polynomial, at every point: ``[points, 17]``.
    """

    places: Array
    weights: Array

    @classmethod
    def of(cls, points: Array) -> _Grid:
        """Read it at points on [-1, 1]."""
        return cls((np.concatenate([_NODES, points]) + 1) / 2, _weights(points))


_NODES = np.cos(np.pi * (np.arange(_DEGREE + 1) + 0.5) / (_DEGREE + 1))
_INVERSE = np.linalg.inv(np.polynomial.chebyshev.chebvander(_NODES, _DEGREE))


def _weights(points: Array) -> Array:
    """Weights of the nodes at points of any shape on [-1, 1], ``[..., 17]``."""
    angles = np.arccos(np.clip(points, -1, 1))[..., None]
    return np.asarray(np.cos(angles * np.arange(_DEGREE + 1)) @ _INVERSE)


# Irregular, and denser than the nodes: a second, independent grid.
_CHECKS = _Grid.of(np.sin(np.linspace(-1.5, 1.5, 41)) * 0.999 + 0.0007)
FIRST = _Grid.of(np.linspace(-0.9997, 0.9991, _DENSE))
# Multiples of the golden ratio.
SECOND = _Grid.of(2 * (0.6180339887498949 * np.arange(1.0, _DENSE + 1) % 1) - 1)


@lru_cache(maxsize=8)
def _even(count: int) -> _Grid:
    """Points at equal distances."""
    return _Grid.of((2 * np.arange(count) + 1) / count - 1)


@dataclass(frozen=True, slots=True, eq=False)
class Panels:
    """Panels, and two points at which each or the panel above failed."""

    left: Array
    width: Array
    extra: Array

    @property
    def middle(self) -> Array:
        """Of each."""
        return np.asarray(self.left + self.width / 2)

    def some(self, chosen: NDArray[np.bool_] | NDArray[np.intp]) -> Panels:
        """Those of a mask or of indices."""
        return Panels(self.left[chosen], self.width[chosen], self.extra[chosen])

    def beside(self, others: Panels) -> Panels:
        """These, then others."""
        return Panels(
            np.concatenate([self.left, others.left]),
            np.concatenate([self.width, others.width]),
            np.concatenate([self.extra, others.extra]),
        )

    def cut(self, parts: int) -> Panels:
        """Cut each into equal pieces, and as many that overlap two of them.

        A kink next to the end of one piece is well inside another. Of overlapping pieces two at
        most hold the same place.
        """
        width = np.tile(self.width / parts, 2 * parts - 1)
        starts = np.arange(2 * parts - 1) / (2 * parts)
        left = (self.left + starts[:, None] * self.width).ravel()
        extra = np.tile(self.extra, (2 * parts - 1, 1))
        inside = (extra >= left[:, None]) & (extra <= (left + width)[:, None])
        order = np.argsort(-inside.sum(1), kind="stable")
        where = np.round((left - FIRST_EDGE) / (width / 8)) + 1j * width
        order = order[np.unique(where[order], return_index=True)[1]]
        extra = np.where(inside, extra, (left + width / 2)[:, None])
        return Panels(left, width, extra).some(order)


def failing_parts(
    function: ValuesAndSlopes,
    values: Callable[[Array], Array],
    panels: Panels,
    scale: Array,
    parts: int,
) -> Panels:
    """Pieces of panels that fail."""
    if not panels.left.size:
        return panels
    cut = panels.cut(parts)
    grid = FIRST if cut.width.max() >= WIDTH / 16 else _CHECKS
    seen = look(function, cut.left, cut.width, scale, grid, cut.extra)
    failing, extra = seen.failing, seen.worst
    if (count := math.ceil(cut.width.max() / SPACING)) > _DENSE:
        closer = look_closely(values, cut.left, cut.width, scale, count)
        extra[~failing] = closer.worst[~failing]
        failing |= closer.failing
    return Panels(cut.left, cut.width, extra).some(failing)


@dataclass(frozen=True, slots=True, eq=False)
class Seen:
    """What was seen on panels.

    Args:
        failing: Where a polynomial does not follow, of shape ``[panels]``.
        worst: The point that it follows worst and the node next to it, ``[panels, 2]``; 0 where
            it follows.
    """

    failing: NDArray[np.bool_]
    worst: Array


def look(
    function: ValuesAndSlopes,
    left: Array,
    width: Array,
    scale: Array,
    grid: _Grid = _CHECKS,
    extra: Array | None = None,
) -> Seen:
    """Whether values and slopes at points follow the interpolating polynomial, per panel."""
    return _judged(function, left, width, scale, grid, extra)


def look_closely(
    values: Callable[[Array], Array], left: Array, width: Array, scale: Array, count: int
) -> Seen:
    """Whether values at many points follow it."""
    return _judged(lambda x: (values(x),), left, width, scale[:1], _even(count))


def _judged(
    function: Callable[[Array], tuple[Array, ...]],
    left: Array,
    width: Array,
    scale: Array,
    grid: _Grid,
    extra: Array | None = None,
) -> Seen:
    """Compare what a function returns at points with polynomials through its nodes."""
    found = Seen(np.zeros(left.size, dtype=bool), np.zeros((left.size, 2)))
    step = max(1, _CHUNK // grid.places.size)
    for start in range(0, left.size, step):
        some = slice(start, start + step)
        own = None if extra is None else extra[some]
        _judge(function, left[some], width[some], scale, grid, own, found, start)
    return found


@np.errstate(invalid="ignore")
def _judge(
    function: Callable[[Array], tuple[Array, ...]],
    left: Array,
    width: Array,
    scale: Array,
    grid: _Grid,
    extra: Array | None,
    found: Seen,
    start: int,
) -> None:
    """Judge some panels, and note what was found from a row on."""
    x = left[:, None] + width[:, None] * grid.places
    own = None
    if extra is not None:
        x = np.concatenate([x, extra], 1)
        own = _weights(2 * (extra - left[:, None]) / width[:, None] - 1)
    count = _NODES.size
    misses = []
    passing = np.ones(left.size, dtype=bool)
    for every, typical in zip(function(x), scale, strict=True):
        nodes, checks = every[:, :count], every[:, count:]
        miss = np.empty_like(checks)
        points = len(grid.weights)
        np.matmul(nodes, grid.weights.T, out=miss[:, :points])
        if own is not None:
            miss[:, points:] = (own @ nodes[..., None])[..., 0]
        miss -= checks
        np.abs(miss, out=miss)
        largest, least = checks.max(1), checks.min(1)
        # On narrow panels the rounding of x itself moves the values by this much.
        rounding = 1e-14 * np.maximum(1, np.abs(left)) / width * (largest - least)
        allowed = _TOLERANCE * np.maximum(typical, np.maximum(largest, -least)) + rounding
        most = miss.max(1)
        passing &= (most <= allowed) & (most < np.inf)
        misses.append((miss, allowed))
    failing = np.flatnonzero(~passing)
    if failing.size:
        relative = np.stack([miss[failing] / most[failing, None] for miss, most in misses])
        at = np.where(np.isnan(relative), np.inf, relative).max(0).argmax(1)
        rows = x[failing]
        worst = rows[np.arange(failing.size), count + at]
        node = np.abs(rows[:, :count] - worst[:, None]).argmin(1)
        found.failing[start + failing] = True
        found.worst[start + failing, 0] = worst
        found.worst[start + failing, 1] = rows[np.arange(failing.size), node]
