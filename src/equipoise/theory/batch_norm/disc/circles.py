r"""Averages of two samples over circles, from which every number at ε > 0 is built.

Two outputs of a batch are :math:`y_{1,2} = \sqrt n\,\rho\cos(\varphi\pm\psi/2)` with
:math:`\cos\psi = -1/n` and a uniform φ. A smooth f is averaged by the trapezoidal rule, which
converges exponentially on circles. One with kinks or steep places is averaged on panels that end
wherever either sample meets a *cut*; between cuts a polynomial follows f.

Values are taken less f(β): where samples are almost equal, their differences keep their digits.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from equipoise.numerics.quadrature import panels
from equipoise.theory.batch_norm.averages.response import Response
from equipoise.theory.batch_norm.setting import ConvergenceError

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
POINTS = 25_000
_POWERS_OF_Y = _DEGREE_OF[1] + np.where(np.arange(COUNT) < SLOPE, 0, 2)

_DEGREE = 16
_NODES = np.cos(np.pi * (np.arange(_DEGREE + 1) + 0.5) / (_DEGREE + 1))
_CHECKS = np.sin(np.linspace(-1.5, 1.5, 21)) * 0.999 + 0.0007
_INTERPOLATION = np.polynomial.chebyshev.chebvander(_CHECKS, _DEGREE) @ np.linalg.inv(
    np.polynomial.chebyshev.chebvander(_NODES, _DEGREE)
)
# Largest part of f that a panel's polynomial may miss. At 1e-10 steep functions at γ = 10 had
# κ off by 1e-11, and both rules agreed on it.
_RESOLVED, _NOISE = 1e-13, 1e-4
_NARROWEST, _MOST_CUTS, _HALVES = 1e-10, 400, 30
# Panels beside which their parts are looked at in one call.
_MOST_AHEAD = 24
# Steeper functions of the catalogue would take minutes.
_STEEPEST = 1e-5
# Radii this near to touching a power, relatively, count as that far away: slopes squared over
# nearer ones add less than its root.
_TOUCHING = 1e-26
# Circles of the same nodes are used for radii down to this part of those they were chosen for.
_SPARE = 1.6
_SEEN = np.linspace(-1, 1, 120)
_ANYWHERE, _STEEP = np.linspace(-20, 20, 161), 1e3
# A function of a wider band is cut instead.
_WIDEST_BAND, _BAND_GOAL, _FREQUENCIES = 320, 1e-8, 512
# Rules between cuts, coarse and fine: of polynomials, beside powers, and beside infinite slopes.
_BETWEEN = panels.analytic(10), panels.analytic(14)
_POWERS = panels.positive_powers(28), panels.positive_powers(40)
INFINITE = panels.any_powers(100), panels.any_powers(140)


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
        if not (f.kinks.size or f.activation.turns):
            band = _band(f, np.sqrt(batch_size - 1) * reach)
            if band <= _WIDEST_BAND:
                return cls(f, batch_size, np.empty(0), band, reach=reach, c=c)
        missed = 0.0, 0.0
        if f.is_homogeneous:
            cuts = f.kinks
        else:
            wide = f.gamma * np.sqrt(batch_size - 1)
            cuts, missed = resolving_cuts(f, batch_size, wide * reach, c)
        rules = _BETWEEN
        if f.has_powers:
            rules = INFINITE if f.has_infinite_slopes else _POWERS
        return cls(f, batch_size, cuts, 0, rules, missed, reach, c)

    def serve(self, reach: float, c: float) -> bool:
        """Whether they were chosen for these radii and this least c, or for little more."""
        return c >= self.c and reach <= self.reach <= _SPARE * reach

    def points(self, fine: bool) -> int:
        """How many nodes every circle has."""
        if self.band:
            return self.band + self.band // 2 if fine else self.band
        return (2 * self.cuts.size + 1) * self.rules[fine].left.size

    @cached_property
    def at_beta(self) -> float:
        """f(β)."""
        return float(self.f.activation.values(np.array([self.f.beta]))[0])

    @property
    def met(self) -> Array:
        """Radii ρ at which circles come to touch each cut, of shape ``[cuts]``."""
        return np.asarray(abs(self.cuts - self.f.beta) / self._scale)

    @property
    def _scale(self) -> float:
        return self.f.gamma * float(np.sqrt(self.batch_size - 1))

    def averages(self, rho: Array, excess: Array | None = None, *, fine: bool) -> Array:
        """Averages over circles.

        Args:
            rho: Their radii.
            excess: ρ less the radii :attr:`met`, of shape ``[radii, cuts]``, where it is known
                better than by subtraction.
            fine: Which of the two rules.

        Returns:
            Every average, of shape ``[19, radii]``.
        """
        if self.f.activation.homogeneity is not None and self.f.is_homogeneous:
            return self._rescaled(rho, self.f.activation.homogeneity.alpha, fine)
        return self._averages(rho, fine, excess)

    def _rescaled(self, rho: Array, alpha: float, fine: bool) -> Array:
        """Scale one circle to others: f(ρy) = ρ^α f(y)."""
        return np.asarray(
            self._averages(np.ones(1), fine)
            * rho ** (alpha * _DEGREE_OF[0] + _DEGREE_OF[1])[:, None]
        )

    def _averages(self, rho: Array, fine: bool, excess: Array | None = None) -> Array:
        found = self._reduce(*self._nodes(rho, fine, excess))
        if self.band:  # y was of circles of radius 1
            found *= (np.sqrt(self.batch_size - 1) * rho) ** _POWERS_OF_Y[:, None]
        return found

    def gaps(self, rho: Array) -> Array:
        """The average of (f₁ − f₂)²/2 alone, over the coarser nodes, of shape ``[radii]``."""
        found = np.empty(rho.size)
        step = max(1, POINTS // self.points(False))
        for start in range(0, rho.size, step):
            some = slice(start, start + step)
            *_, x1, x2, weights = self._nodes(rho[some], False)
            gap = self.f.activation.values(x1) - self.f.activation.values(x2)
            weights = np.broadcast_to(weights, gap.shape)
            found[some] = np.einsum("rm,rm,rm->r", weights, gap, gap) / 2
        return found

    def _nodes(
        self, rho: Array, fine: bool, excess: Array | None = None
    ) -> tuple[Array, Array, Array, Array, Array]:
        """Both samples, φ's arguments at both, and weights.

        By the trapezoidal rule samples are the same on all circles but for their radius: they are
        those at radius 1, of shape ``[1, m]``.
        """
        if self.band:
            return self._by_trapezoid(rho, self.points(fine))
        if excess is None:
            excess = rho[:, None] - self.met
        return self._between_cuts(rho, excess, self.rules[fine])

    @property
    def _half(self) -> float:
        """ψ/2, half the angle between the samples."""
        return float(np.arccos(-1 / (self.batch_size - 1)) / 2)

    def _by_trapezoid(self, rho: Array, count: int) -> tuple[Array, Array, Array, Array, Array]:
        phi = np.pi * (np.arange(count) + 0.5) / count
        y1, y2 = np.cos(phi + self._half)[None], np.cos(phi - self._half)[None]
        scale = self._scale * rho[:, None]
        x1, x2 = (scale * part + self.f.beta for part in (y1, y2))
        return y1, y2, x1, x2, np.full((1, count), 1 / count)

    def _between_cuts(
        self, rho: Array, excess: Array, rule: panels.UnitRule
    ) -> tuple[Array, Array, Array, Array, Array]:
        half, f = self._half, self.f
        y = np.sqrt(self.batch_size - 1) * rho[:, None]
        scale = f.gamma * y
        if f.has_powers:  # nearer than angles can tell, both edges would be one
            least = _TOUCHING * rho[:, None]
            excess = np.where(abs(excess) < least, np.copysign(least, excess), excess)
        # cos α = ±1 − excess/ρ keeps the digits of circles that barely meet a cut.
        alpha = 2 * np.arcsin(np.sqrt(np.clip(excess / (2 * rho[:, None]), 0, 0.5)))
        above = self.cuts >= f.beta
        alpha = np.where(above, alpha, np.pi - alpha)  # [radii, cuts]
        # Where none meets it, the nearest point: tiny circles are exact beside distant cuts.
        nearest = np.where(above, *(self._end(rho, excess, sign)[:, None] for sign in (1.0, -1.0)))
        at = np.tile(np.where(excess < 0, nearest, self.cuts), 2)
        # On half a circle exactly one sample meets a cut at each of these two angles.
        phi = np.concatenate([abs(alpha - half), np.pi - abs(np.pi - alpha - half)], 1)
        first = np.concatenate([alpha > half, alpha + half > np.pi], 1)
        x1 = np.where(first, at, scale * np.cos(phi + half) + f.beta)
        x2 = np.where(first, scale * np.cos(phi - half) + f.beta, at)
        order = np.argsort(phi, axis=1)
        phi, x1, x2 = (np.take_along_axis(part, order, 1) for part in (phi, x1, x2))
        kept = (np.diff(phi, axis=1, prepend=0.0) > 0).any(0)
        ends = np.broadcast_to([0.0, np.pi], (len(rho), 2))
        phi, x1, x2 = (
            np.concatenate([left, part[:, kept], right], 1)
            for part, left, right in (
                (phi, ends[:, :1], ends[:, 1:]),
                (x1, scale * np.cos(half) + f.beta, f.beta - scale * np.cos(half)),
                (x2, scale * np.cos(half) + f.beta, f.beta - scale * np.cos(half)),
            )
        )
        nodes = panels.place(rule, phi)
        versine, sine = nodes.turn()

        def along(angle: Array, x: Array) -> tuple[Array, Array]:
            """One sample and φ's argument there, from those at edges."""
            cosine = nodes.of_edges(np.cos(angle))
            step = cosine * versine
            step += nodes.of_edges(np.sin(angle)) * sine
            cosine -= step
            cosine *= y
            step *= scale
            return cosine, np.subtract(nodes.of_edges(x), step, out=step)

        (y1, x1), (y2, x2) = along(phi + half, x1), along(phi - half, x2)
        return y1, y2, x1, x2, nodes.weights / np.pi

    def _end(self, rho: Array, excess: Array, sign: float) -> Array:
        """φ's argument farthest from β on one side of each circle.

        Near a cut it is known by how much the circle exceeds that: by its distance to β, slopes
        at barely touched powers would be those of rounding.
        """
        end = self.f.beta + sign * self._scale * rho
        side = np.flatnonzero((self.cuts >= self.f.beta) == (sign > 0))
        if side.size and self.f.has_powers:
            beyond = excess[:, side]
            nearest = np.abs(beyond).argmin(1)
            beyond = np.take_along_axis(beyond, nearest[:, None], 1)[:, 0]
            near_cut = self.cuts[side[nearest]] + sign * self._scale * beyond
            end = np.where(np.abs(beyond) < rho, near_cut, end)
        return end

    def _reduce(self, y1: Array, y2: Array, x1: Array, x2: Array, weights: Array) -> Array:
        """Average every product; symmetric in the two samples."""
        rows, count = x1.shape
        values, slopes = self.f(np.concatenate([x1, x2], 1))
        values = values - self.at_beta
        y = np.concatenate([y1, y2], 1)
        weights = np.broadcast_to(weights, x1.shape)
        # One sample: f, f², D² times 1, y, y², y⁴.
        left = np.empty((rows, 3, 2 * count))
        left[:, 0] = values
        left[:, 1] = values * values
        left[:, 2] = slopes * slopes
        left.reshape(rows, 3, 2, count)[:] *= weights[:, None, None] / 2
        right = np.empty((len(y), 4, 2 * count))
        right[:, 0], right[:, 1] = 1.0, y
        right[:, 2] = squares = y * y
        right[:, 3] = squares * squares
        one = _products(left, right)  # [rows, 3, 4]
        # Two samples: f₁f₂, D₁D₂ and (f₁ + f₂)/2 times 1, y₁y₂, (y₁² + y₂²)/2 and products.
        f1, f2 = values[:, :count], values[:, count:]
        left = np.empty((rows, 3, count))
        left[:, 0] = f1 * f2
        left[:, 1] = slopes[:, :count] * slopes[:, count:]
        left[:, 2] = (f1 + f2) / 2
        left *= weights[:, None]
        right = np.empty((len(y), 5, count))
        right[:, 0] = 1.0
        right[:, 1] = product = y1 * y2
        right[:, 2] = both = (squares[:, :count] + squares[:, count:]) / 2
        right[:, 3], right[:, 4] = product * both, product * product
        two = _products(left, right)  # [rows, 3, 5]
        found = np.empty((COUNT, rows))
        gap = f1 - f2
        found[GAP] = (weights * gap * gap).sum(1) / 2
        found[[MEAN, FIRST, MEAN_11]] = one[:, 0, :3].T
        found[[OWN, OWN_YY]] = one[:, 1, ::2].T
        found[[SLOPE, SLOPE_2, SLOPE_4]] = one[:, 2, [0, 2, 3]].T
        found[[PAIR, PAIR_12, PAIR_11]] = two[:, 0, :3].T
        found[[SLOPES, SLOPES_12, SLOPES_11, SLOPES_31, SLOPES_22]] = two[:, 1].T
        found[[MEAN_12, MEAN_BOTH]] = two[:, 2, 1:3].T
        return found


def _products(left: Array, right: Array) -> Array:
    """Sums over m of ``[rows, a, m]`` times ``[rows, b, m]``, or ``[1, b, m]`` for all rows."""
    if len(right) > 1:
        return np.asarray(left @ right.swapaxes(1, 2))
    flat = left.reshape(-1, left.shape[2]) @ right[0].T  # one product instead of many small ones
    return np.asarray(flat.reshape(*left.shape[:2], -1))


def _band(f: Response, reach: float) -> int:
    """Nodes on half a circle that resolve products of values and slopes.

    Products of what decays like a power have the same decay, and m nodes see frequencies up to
    2m: the frequencies of f itself from m on need only be small.
    """
    phi = np.pi * (np.arange(_FREQUENCIES) + 0.5) / _FREQUENCIES
    radii = reach * np.array([1.0, 0.7])[:, None]
    both = np.stack(f(f.gamma * radii * np.cos(phi) + f.beta))
    # f is even in φ: [2, radii, frequencies], the last of them left out
    size = np.abs(np.fft.rfft(np.concatenate([both, both[..., ::-1]], -1)))[..., :-1]
    size = (size / np.maximum(size.max(-1, keepdims=True), np.finfo(float).tiny)).max((0, 1))
    return max(12, int(np.flatnonzero(size > _BAND_GOAL)[-1]) + 6)


def resolving_cuts(
    f: Response, batch_size: int, reach: float, c: float = 0.0
) -> tuple[Array, tuple[float, float]]:
    """Kinks, and cuts between which polynomials follow values and slopes.

    Both count by the square root of the density: integrands are products of two.

    Args:
        f: The response.
        batch_size: B.
        reach: Arguments of φ are within this distance of β.
        c: Bε/κ.

    Returns:
        Arguments of φ, ascending, without the ends; and what polynomials may miss of values and
        slopes, in units of their own.
    """
    low, high = f.beta - reach, f.beta + reach

    def matter(distance: Array) -> Array:
        """√density at a distance from β, at most 1."""
        rho2 = (distance / f.gamma) ** 2 / (batch_size - 1)
        rho2 = np.minimum(rho2, 1 - 1e-15)
        exponent = (batch_size - 3) / 2 * np.log1p(-rho2) - c / 2 * rho2 / (1 - rho2)
        return np.asarray(np.exp(exponent / 2))

    inside = np.union1d(f.kinks, f.activation.turns)
    inside = inside[(inside > low) & (inside < high)]
    seen = np.union1d(f.beta + reach * _SEEN, inside)
    seen = seen[~np.isin(seen, f.kinks)]
    with np.errstate(over="ignore", invalid="ignore"):
        values, slopes = f(np.concatenate([seen, _ANYWHERE, f.activation.turns, [f.beta]]))
    at_beta, elsewhere = values[-1], slopes[seen.size : -1]
    values, slopes = values[: seen.size], slopes[: seen.size]
    size = np.abs([values - at_beta, slopes]) * matter(abs(seen - f.beta))
    size = np.maximum(size.max(1), np.finfo(float).tiny)[:, None]
    # Where f is nearly flat, slopes are differences of numbers as large as slopes elsewhere.
    largest = float(np.abs(values).max())
    steepest = min(np.abs(elsewhere[np.isfinite(elsewhere)]).max(), _STEEP * f.gamma * largest)
    floor = 8 * np.finfo(float).eps * np.array([[largest], [steepest]])
    noisy = np.maximum(_NOISE * size, floor)
    edges = np.concatenate([[low], inside, [high]])
    left, right = edges[:-1], edges[1:]
    before = np.full((2, 2, left.size), np.inf)  # deviations of the two panels above
    found = [inside]
    ahead: Array | None = None
    while left.size:
        nearest = np.maximum(np.maximum(left - f.beta, f.beta - right), 0)
        below = _parts(left, right)
        if ahead is None:
            missed, ahead = _and_ahead(f, (left, right), below)
        else:
            missed, ahead = ahead, None
        deviation, rounding = missed * matter(nearest)
        # Noise of the function itself does not fall with the width of a panel.
        with np.errstate(invalid="ignore"):
            steady = np.stack([deviation, before[0]]) / np.maximum(before, np.finfo(float).tiny)
        noise = (deviation <= noisy) & ((steady > 0.25) & (steady < 4)).all(0)
        failing = ((deviation > _RESOLVED * size + rounding) & ~noise).any(0)
        failing &= (right - left) > _NARROWEST * np.maximum(reach, np.abs(left + right) / 2)
        found += [left[failing], right[failing], below[1][0, failing]]
        before = np.tile(np.stack([deviation, before[0]])[..., failing], 3)
        left, right = (ends[:, failing].ravel() for ends in below)
        _, first = np.unique(
            np.round(np.stack([left, right]) / reach, 14), axis=1, return_index=True
        )
        left, right, before = left[first], right[first], before[..., first]
        if ahead is not None:
            ahead = ahead[..., failing].reshape(2, 2, -1)[..., first]
        if left.size > _MOST_CUTS:
            break
    cuts = np.sort(np.concatenate(found))
    cuts = cuts[(cuts > low) & (cuts < high)]
    apart = np.diff(cuts, prepend=-np.inf) > 1e-12 * reach
    cuts = np.unique(cuts[apart | np.isin(cuts, f.kinks)])
    if not (f.activation.turns or f.kinks.size) and np.any(np.diff(cuts) < _STEEPEST * reach):
        raise ConvergenceError(
            f"{f.activation.name} is too steep at gamma = {f.gamma:g}, beta = {f.beta:g}: it "
            "turns within a tiny part of what samples span. Use a smaller gamma, or its limit, a "
            "function with a jump, for which gradients have no finite rate."
        )
    missing = _RESOLVED * size[:, 0]
    return cuts, (float(missing[0]), float(missing[1]))


def _parts(left: Array, right: Array) -> tuple[Array, Array]:
    """Ends of both halves of panels and of their middle half, each ``[3, panels]``.

    A step at a cut is flat on either side of it: the middle half must be seen too.
    """
    cut, quarter = (left + right) / 2, (right - left) / 4
    return np.stack([left, cut, cut - quarter]), np.stack([cut, right, cut + quarter])


def _and_ahead(
    f: Response, panels: tuple[Array, Array], below: tuple[Array, Array]
) -> tuple[Array, Array | None]:
    """What is missed on panels, ``[2, 2, panels]``, and on their parts, ``[2, 2, 3, panels]``.

    A few panels take as long as four times as many, most of which will be asked for next.
    """
    count = panels[0].size
    if count > _MOST_AHEAD or f.kinks[f.powers].size:
        return np.stack(_unresolved(f, *panels)), None
    ends = (np.concatenate([own, parts.ravel()]) for own, parts in zip(panels, below, strict=True))
    both = np.stack(_unresolved(f, *ends))
    return both[..., :count], both[..., count:].reshape(2, 2, 3, count)


def _unresolved(f: Response, left: Array, right: Array) -> tuple[Array, Array]:
    """What polynomials miss of values and slopes, and rounding: each ``[2, panels]``.

    Next to a fractional power, panels are seen in halves that shrink towards it.
    """
    powers = f.kinks[f.powers]
    if not powers.size:
        return _missed(f, left, right)[:2]
    ends = np.isin(left, powers), np.isin(right, powers)
    whole = ~(ends[0] | ends[1])
    if whole.all():
        return _missed(f, left, right)[:2]
    found = np.zeros((2, 2, left.size))
    if whole.any():
        found[:, :, whole] = _missed(f, left[whole], right[whole])[:2]
    halves = 2.0 ** -np.arange(_HALVES)
    for i in np.flatnonzero(~whole):
        a, b = left[i], right[i]
        if ends[0][i] and ends[1][i]:
            found[0, :, i] = np.inf
            continue
        far = a + (b - a) * halves if ends[0][i] else b - (b - a) * halves
        near = np.minimum(far[:-1], far[1:]), np.maximum(far[:-1], far[1:])
        deviation, rounding, sizes = _missed(f, *near)
        # Slopes may grow without bound: each half counts by its own size.
        relative = np.maximum(deviation - rounding, 0) / np.maximum(sizes, np.finfo(float).tiny)
        found[0, :, i] = relative.max(1) * sizes[:, 0]
    return found[0], found[1]


def _missed(f: Response, left: Array, right: Array) -> tuple[Array, Array, Array]:
    middle, half = ((left + right) / 2)[:, None], ((right - left) / 2)[:, None]
    points = np.concatenate([_NODES, _CHECKS])
    both = np.stack(f(middle + half * points))  # [2, panels, points]
    nodes, checks = both[..., : _NODES.size], both[..., _NODES.size :]
    deviation = np.abs(nodes @ _INTERPOLATION.T - checks).max(-1)
    sizes = np.abs(checks).max(-1)
    rounding = 1e-14 * np.maximum(1, np.abs(middle))[:, 0] / half[:, 0]
    return deviation, rounding * np.ptp(checks, axis=-1) + 2e-15 * sizes, sizes
