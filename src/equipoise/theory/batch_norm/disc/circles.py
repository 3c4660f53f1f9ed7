r"""Averages of two samples over circles, from which every number at ε > 0 is built.

Two outputs of a batch are :math:`y_{1,2} = \sqrt n\,\rho\cos(\varphi\pm\psi/2)` with
:math:`\cos\psi = -1/n` and a uniform φ. A smooth f is averaged by the trapezoidal rule, which
converges exponentially on circles. One with kinks or steep places is averaged on panels that end
wherever either sample meets a *cut*; between cuts a polynomial follows f.

Values are taken less f(β): where samples are almost equal, their differences keep their digits.
"""

from __future__ import annotations

import math
import sys
import threading
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray
from scipy.fft import dct

from equipoise.numerics.quadrature import panels
from equipoise.theory.batch_norm.averages.response import Response
from equipoise.theory.batch_norm.disc.cuts import HIGH, resolving_cuts

Array = NDArray[np.float64]

# Averages at each radius; f: values less f(β), D: slopes, both in the argument y.
MEAN, OWN, PAIR, GAP, OWN_YY, PAIR_12, PAIR_11, FIRST, MEAN_11, MEAN_12, MEAN_BOTH = range(11)
SLOPE, SLOPE_2, SLOPE_4, SLOPES, SLOPES_12, SLOPES_11, SLOPES_31, SLOPES_22 = range(11, 19)
COUNT = 19
# How often each multiplies values or slopes, and powers of y, slopes counting as −1.
_DEGREE_OF = np.array(
    [
        [1, 2, 2, 2, 2, 2, 2, 1, 1, 1, 1, *[2] * 8],
        [0, 0, 0, 0, 2, 2, 2, 1, 2, 2, 2, -2, 0, 2, -2, 0, 0, 2, 2],
    ]
)
# Points to look at in one go, so that arrays stay in the cache.
POINTS = 50_000
# Which of 1, y, y² and y⁴ each multiplies.
_POWER_OF_Y = np.array([0, 0, 0, 0, 2, 2, 2, 1, 2, 2, 2, 0, 2, 3, 0, 2, 2, 3, 3])
# Which of the products each is: of one sample, ``[3, 4]``, and of two, ``[4, 5]``.
_PRODUCTS = np.array(
    [0, 4, 12, 27, 6, 13, 14, 1, 2, 23, 24, 8, 10, 11, 17, 18, 19, 20, 21],
)

# Radii this near to touching a power, relatively, count as that far away: slopes squared over
# nearer ones add less than its root.
_TOUCHING = 1e-26
# Circles of the same nodes are used for radii down to this part of those they were chosen for.
_SPARE = 1.6
# A function of a wider band is cut, unless it oscillates so often that cuts need more nodes.
_WIDEST_BAND, _BAND_GOAL, _FREQUENCIES = 320, 1e-8, (128, 512, 2048, 8192)
# Nodes that see the narrowest panel between cuts.
_NODES_PER_PANEL = 4
# Rules between cuts, coarse and fine: of polynomials, where few cuts leave wide angles, beside
# powers, and beside infinite slopes.
_BETWEEN = panels.analytic(10), panels.analytic(14)
_BETWEEN_FEW, _FEW = (panels.analytic(12), panels.analytic(16)), 4
# Between so many cuts or more, polynomials of a high degree may need fewer nodes, unless f is
# known to be steep in some places.
_BETWEEN_HIGH, _MANY = (panels.analytic(30), panels.analytic(42)), 5
_POWERS = panels.positive_powers(28), panels.positive_powers(40)
INFINITE = panels.any_powers(100), panels.any_powers(140)


class _Scratch(threading.local):
    """Memory for products, kept between calls: the system clears what is allocated anew."""

    def __init__(self) -> None:
        self._kept = np.empty(0)

    def arrays(self, *shapes: tuple[int, ...]) -> list[Array]:
        """Arrays of these shapes, with any content, until the next call."""
        ends = np.cumsum([math.prod(shape) for shape in shapes])
        if self._kept.size < ends[-1]:
            self._kept = np.empty(ends[-1])
        parts = np.split(self._kept[: ends[-1]], ends[:-1])
        return [part.reshape(shape) for part, shape in zip(parts, shapes, strict=True)]


_SCRATCH = _Scratch()


@dataclass(frozen=True, slots=True, eq=False)
class Radii:
    """Circles, and by which rule to average over them.

    Args:
        rho: Their radii.
        fine: Which of the two rules.
        excess: ρ less the radii at which circles touch cuts, of shape ``[radii, cuts]``, where
            it is known better than by subtraction.
    """

    rho: Array
    fine: bool
    excess: Array | None = None

    def some(self, part: slice) -> Radii:
        """A part of them."""
        return Radii(self.rho[part], self.fine, None if self.excess is None else self.excess[part])


@dataclass(frozen=True, eq=False)
class Circles:
    """How circles up to a largest radius are averaged.

    Args:
        f: The response.
        batch_size: B.
        cuts: Arguments of φ between which f is resolved, ascending.
        band: Nodes that resolve f on half a circle without cuts, or 0 where cuts are used.
        rules: The coarser and the finer rule between cuts.
        missed: What cuts may leave unresolved of values and slopes.
        reach: The largest radius.
        c: The least Bε/κ.
    """

    f: Response
    batch_size: int
    cuts: Array
    band: int
    rules: tuple[panels.UnitRule, panels.UnitRule] = _BETWEEN
    missed: tuple[float, float] = (0.0, 0.0)
    reach: float = 1.0
    c: float = 0.0

    @classmethod
    def of(cls, f: Response, batch_size: int, reach: float, c: float) -> Circles:
        """Choose nodes or cuts for radii up to ``reach``, where Bε/κ is at least c."""
        root = math.sqrt(batch_size - 1)
        smooth = cls(f, batch_size, np.empty(0), 0, reach=reach, c=c)
        if not (f.kinks.size or f.activation.turns):
            band = _band(f, root * reach)
            if band <= _WIDEST_BAND:
                return replace(smooth, band=band)
        missed, rules = (0.0, 0.0), None
        wide = f.gamma * root * reach
        if f.is_homogeneous:
            cuts = f.kinks
        elif f.is_polynomial:
            cuts = f.kinks[abs(f.kinks - f.beta) < wide]
        else:
            cuts, missed = resolving_cuts(f, batch_size, wide, c)
            if cuts.size >= _MANY and not (f.has_powers or f.activation.turns):
                fewer, lost = resolving_cuts(f, batch_size, wide, c, HIGH)
                if _nodes(fewer, _BETWEEN_HIGH) < _nodes(cuts, _BETWEEN):
                    cuts, missed, rules = fewer, lost, _BETWEEN_HIGH
        if not (cuts.size or f.has_powers):  # all angles at once are too wide for those rules
            band = _band(f, root * reach)
            if band <= _WIDEST_BAND:
                return replace(smooth, band=band)
        if cuts.size > 1 and not f.kinks.size:
            nodes = _nodes(cuts, rules or _BETWEEN)
            least = _NODES_PER_PANEL * np.pi * wide / np.diff(cuts).min()
            # The finer of both trapezoidal rules has a quarter of the nodes more.
            if least < nodes and 2.25 * (band := _band(f, root * reach, least)) < nodes:
                return replace(smooth, band=band)
        if f.has_powers:
            rules = INFINITE if f.has_infinite_slopes else _POWERS
        elif rules is None:
            rules = _BETWEEN if cuts.size > _FEW else _BETWEEN_FEW
        return cls(f, batch_size, cuts, 0, rules, missed, reach, c)

    def serve(self, reach: float, c: float) -> bool:
        """Whether they were chosen for these radii and this least c, or for little more."""
        return c >= self.c and reach <= self.reach <= _SPARE * reach

    def points(self, fine: bool) -> int:
        """How many nodes every circle has."""
        if self.band:
            return self.band + max(4, self.band // 4) if fine else self.band
        return (2 * self.cuts.size + 1) * self.rules[fine].left.size

    @cached_property
    def met(self) -> Array:
        """Radii ρ at which circles come to touch each cut, of shape ``[cuts]``."""
        return np.asarray(abs(self.cuts - self.f.beta) / self._scale)

    @cached_property
    def _scale(self) -> float:
        return self.f.gamma * math.sqrt(self.batch_size - 1)

    def averages(self, *rules: Radii) -> list[Array]:
        """Averages over circles, every one of shape ``[19, radii]``."""
        if self.f.activation.homogeneity is not None and self.f.is_homogeneous:
            alpha = self.f.activation.homogeneity.alpha
            return [self._rescaled(radii, alpha) for radii in rules]
        if sum(radii.rho.size * self.points(radii.fine) for radii in rules) <= POINTS:
            return self._averages(*rules)
        return [self._in_pieces(radii) for radii in rules]

    def _rescaled(self, radii: Radii, alpha: float) -> Array:
        """Scale one circle to others: f(ρy) = ρ^α f(y)."""
        (one,) = self._averages(Radii(np.ones(1), radii.fine))
        return np.asarray(one * radii.rho ** (alpha * _DEGREE_OF[0] + _DEGREE_OF[1])[:, None])

    def _in_pieces(self, radii: Radii) -> Array:
        """A few circles at a time."""
        step = max(1, POINTS // self.points(radii.fine))
        found = [
            self._averages(radii.some(slice(start, start + step)))[0]
            for start in range(0, radii.rho.size, step)
        ]
        return np.concatenate(found, 1)

    def _averages(self, *rules: Radii) -> list[Array]:
        """Averages by every rule; φ is called once."""
        nodes = self._nodes(*rules)
        shapes = [x.shape for _, x, _ in nodes]
        ends = np.cumsum([math.prod(shape) for shape in shapes])[:-1]
        both = self.f(np.concatenate([x.ravel() for _, x, _ in nodes]))
        found = []
        for radii, (y, _, weights), shape, values, slopes in zip(
            rules, nodes, shapes, *(np.split(part, ends) for part in both), strict=True
        ):
            part = self._reduce(y, values.reshape(shape), slopes.reshape(shape), weights)
            if self.band:  # y was of circles of radius 1
                y2 = (self.batch_size - 1) * radii.rho**2
                powers = np.array([np.ones_like(y2), np.sqrt(y2), y2, y2 * y2])
                part *= powers[_POWER_OF_Y]
            found.append(part)
        return found

    def gaps(self, rho: Array) -> Array:
        """The average of (f₁ − f₂)²/2 alone, over the coarser nodes, of shape ``[radii]``."""
        found = np.empty(rho.size)
        step = max(1, POINTS // self.points(False))
        for start in range(0, rho.size, step):
            some = slice(start, start + step)
            ((_, x, weights),) = self._nodes(Radii(rho[some], False))
            values = self.f.activation.values(x)
            gap = values[:, 0] - values[:, 1]
            gap *= gap
            found[some] = (gap * weights).sum(1) / 2
        return found

    def _nodes(self, *rules: Radii) -> list[tuple[Array, Array, Array]]:
        """Both samples, ``[radii, 2, m]``, φ's arguments there, and weights, ``[radii, m]``.

        By the trapezoidal rule samples are the same on all circles but for their radius: they are
        those at radius 1, of shape ``[1, 2, m]``.
        """
        if self.band:
            return [self._by_trapezoid(radii.rho, self.points(radii.fine)) for radii in rules]
        return self._between_cuts(*rules)

    @cached_property
    def _half(self) -> float:
        """ψ/2, half the angle between the samples."""
        return math.acos(-1 / (self.batch_size - 1)) / 2

    def _by_trapezoid(self, rho: Array, count: int) -> tuple[Array, Array, Array]:
        phi = np.pi / count * (np.arange(count) + 0.5)
        y = np.cos(phi + np.array([[[self._half], [-self._half]]]))
        x = (self._scale * rho)[:, None, None] * y
        x += self.f.beta
        return y, x, np.full((1, count), 1 / count)

    def _between_cuts(self, *rules: Radii) -> list[tuple[Array, Array, Array]]:
        rho = np.concatenate([radii.rho for radii in rules])
        excess = np.concatenate(
            [
                radii.rho[:, None] - self.met if radii.excess is None else radii.excess
                for radii in rules
            ]
        )
        edges, cosine, sine, x = self._edges(rho, excess)
        scale = (math.sqrt(self.batch_size - 1) * rho)[:, None, None]
        found, start = [], 0
        for radii in rules:
            rows = slice(start, start + radii.rho.size)
            start = rows.stop
            # Both samples from those at edges
            nodes = panels.place(self.rules[radii.fine], edges[rows])
            versine, turned = nodes.turn()
            y = nodes.of_edges(cosine[rows])
            step = y * versine[:, None]
            step += nodes.of_edges(sine[rows]) * turned[:, None]
            y -= step
            y *= scale[rows]
            step *= self.f.gamma * scale[rows]
            at = np.subtract(nodes.of_edges(x[rows]), step, out=step)
            found.append((y, at, nodes.weights / np.pi))
        return found

    def _edges(self, rho: Array, excess: Array) -> tuple[Array, Array, Array, Array]:
        """Angles at which either sample meets a cut, ascending, and the ends: ``[radii, edges]``.

        Then cosines and sines of both samples' angles there, and φ's arguments, each
        ``[radii, 2, edges]``.
        """
        half, f, rows = self._half, self.f, rho.size
        if f.has_powers:  # nearer than angles can tell, both edges would be one
            least = _TOUCHING * rho[:, None]
            excess = np.where(abs(excess) < least, np.copysign(least, excess), excess)
        # cos α = ±1 − excess/ρ keeps the digits of circles that barely meet a cut.
        part = np.minimum(np.maximum(excess / (2 * rho[:, None]), 0), 0.5)
        alpha = 2 * np.arcsin(np.sqrt(part))
        alpha = np.where(self._above, alpha, np.pi - alpha)  # [radii, cuts]
        # Where none meets it, the nearest point: tiny circles are exact beside distant cuts.
        at = np.where(excess < 0, self._nearest(rho, excess), self.cuts)
        # On half a circle exactly one sample meets a cut at each of these two angles.
        phi = np.concatenate([abs(alpha - half), np.pi - abs(np.pi - alpha - half)], 1)
        first = np.concatenate([alpha > half, alpha + half > np.pi], 1)
        order = np.argsort(phi, axis=1) + phi.shape[1] * np.arange(rows)[:, None]
        edges = np.zeros((rows, phi.shape[1] + 2))
        edges[:, 1:-1], edges[:, -1] = phi.take(order), np.pi
        first, at = first.take(order), np.concatenate([at, at], 1).take(order)
        used = (edges[:, 1:-1] > edges[:, :-2]).any(0)
        if not used.all():  # panels that are empty on every circle cost as much as others
            edges = edges[:, np.concatenate([[True], used, [True]])]
            first, at = first[:, used], at[:, used]
        angles = edges[:, None] + np.array([[half], [-half]])  # [radii, 2, edges]
        cosine, sine = np.cos(angles), np.sin(angles)
        scale = (self._scale * rho)[:, None, None]
        x = scale * cosine
        x += f.beta
        np.copyto(x[:, 0, 1:-1], at, where=first)
        np.copyto(x[:, 1, 1:-1], at, where=~first)
        return edges, cosine, sine, x

    @cached_property
    def _above(self) -> NDArray[np.bool_]:
        """Which cuts are not below β."""
        return np.asarray(self.cuts >= self.f.beta)

    def _nearest(self, rho: Array, excess: Array) -> Array:
        """φ's argument farthest from β on each cut's side of each circle, ``[radii, cuts]``.

        Near the nearest cut it is known by how much the circle exceeds that: by its distance to
        β, slopes at barely touched powers would be those of rounding.
        """
        sides = np.where(self._above, self._scale, -self._scale)
        ends = self.f.beta + sides * rho[:, None]
        if not self.f.has_powers:
            return np.asarray(ends)
        for side in (self._above, ~self._above):
            if side.any():
                beyond, cuts = excess[:, side], self.cuts[side]
                nearest = np.abs(beyond).argmin(1)
                beyond = np.take_along_axis(beyond, nearest[:, None], 1)
                near_cut = cuts[nearest, None] + sides[side][0] * beyond
                ends[:, side] = np.where(np.abs(beyond) < rho[:, None], near_cut, ends[:, side])
        return np.asarray(ends)

    def _reduce(self, y: Array, values: Array, slopes: Array, weights: Array) -> Array:
        """Average every product; symmetric in the two samples."""
        rows, _, count = values.shape
        own, others, pairs, weighted = _SCRATCH.arrays(
            (rows, 3, 2, count), (len(y), 4, 2, count), (rows, 4, count), (len(y), 5, count)
        )
        # One sample: f, f², D² times 1, y, y², y⁴.
        left, right = own, others
        values = np.subtract(values, self.f.at_zero, out=left[:, 0])
        np.multiply(values, values, out=left[:, 1])
        np.multiply(slopes, slopes, out=left[:, 2])
        right[:, 0] = weights[:, None] / 2
        squares = y * y
        np.multiply(right[:, 0], y, out=right[:, 1])
        np.multiply(right[:, 0], squares, out=right[:, 2])
        np.multiply(right[:, 2], squares, out=right[:, 3])
        one = _products(left.reshape(rows, 3, -1), right.reshape(len(y), 4, -1))
        # Two samples: f₁f₂, D₁D₂, (f₁ + f₂)/2 and (f₁ − f₂)² times 1, y₁y₂, (y₁² + y₂²)/2 and
        # products.
        left, right = pairs, weighted
        np.multiply(values[:, 0], values[:, 1], out=left[:, 0])
        np.multiply(slopes[:, 0], slopes[:, 1], out=left[:, 1])
        np.add(values[:, 0], values[:, 1], out=left[:, 2])
        gap = np.subtract(values[:, 0], values[:, 1], out=left[:, 3])
        gap *= gap
        product, both = y[:, 0] * y[:, 1], (squares[:, 0] + squares[:, 1]) / 2
        right[:, 0] = weights
        np.multiply(weights, product, out=right[:, 1])
        np.multiply(weights, both, out=right[:, 2])
        np.multiply(right[:, 2], product, out=right[:, 3])
        np.multiply(right[:, 1], product, out=right[:, 4])
        two = _products(left, right)
        found = np.concatenate([one.reshape(rows, -1), two.reshape(rows, -1)], 1).T[_PRODUCTS]
        found[[GAP, MEAN_12, MEAN_BOTH]] /= 2
        return np.asarray(found)


def _nodes(cuts: Array, rules: tuple[panels.UnitRule, panels.UnitRule]) -> int:
    """How many nodes a circle has by both rules between cuts."""
    return (2 * cuts.size + 1) * sum(rule.left.size for rule in rules)


def _products(left: Array, right: Array) -> Array:
    """Sums over m of ``[rows, a, m]`` times ``[rows, b, m]``, or ``[1, b, m]`` for all rows."""
    if len(right) > 1:
        return np.asarray(left @ right.swapaxes(1, 2))
    flat = left.reshape(-1, left.shape[2]) @ right[0].T  # one product instead of many small ones
    return np.asarray(flat.reshape(*left.shape[:2], -1))


def _band(f: Response, reach: float, least: float = 0.0) -> int:
    """Nodes on half a circle that resolve products of values and slopes.

    Products of what decays like a power have the same decay, and m nodes see frequencies up to
    2m: the frequencies of f itself from m on need only be small.

    Args:
        f: The response.
        reach: The largest y.
        least: Nodes among which no place is too narrow to be seen.
    """
    for count in (count for count in _FREQUENCIES if count >= least):
        phi = np.pi / count * (np.arange(count) + 0.5)
        both = np.array(f(f.gamma * reach * np.multiply.outer([1.0, 0.7], np.cos(phi)) + f.beta))
        size = np.abs(dct(both))  # [2, radii, frequencies]: f is even in φ
        size = (size / np.maximum(size.max(-1, keepdims=True), np.finfo(float).tiny)).max((0, 1))
        seen = np.flatnonzero(size > _BAND_GOAL)  # none where f is 0
        band = int(seen[-1]) + 6 if seen.size else 0
        if band < 0.7 * count:  # frequencies that are not seen would look like those above
            return max(12, band)
    return sys.maxsize
