r"""Averages of two samples over circles, from which every number at ε > 0 is built.

Two outputs of a batch are :math:`y_{1,2} = \sqrt n\,\rho\cos(\varphi\pm\psi/2)` with
:math:`\cos\psi = -1/n` and a uniform φ. A smooth f is averaged by the trapezoidal rule, which
converges exponentially on circles. One with kinks or steep places is averaged on panels that end
wherever either sample meets a *cut*; between cuts a polynomial follows f.

Values are taken less f(β): where samples are almost equal, their differences keep their digits.
"""

from __future__ import annotations

from dataclasses import dataclass

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

_DEGREE = 16
_NODES = np.cos(np.pi * (np.arange(_DEGREE + 1) + 0.5) / (_DEGREE + 1))
_CHECKS = np.sin(np.linspace(-1.5, 1.5, 21)) * 0.999 + 0.0007
_INTERPOLATION = np.polynomial.chebyshev.chebvander(_CHECKS, _DEGREE) @ np.linalg.inv(
    np.polynomial.chebyshev.chebvander(_NODES, _DEGREE)
)
# Largest part of f that a panel's polynomial may miss. At 1e-10 steep functions at γ = 10 had
# κ off by 1e-11, and both rules agreed on it.
_RESOLVED = 1e-12
_NARROWEST, _MOST_CUTS = 1e-10, 400
# Steeper functions of the catalogue would take minutes.
_STEEPEST = 1e-5
# A function of a wider band is cut instead.
_WIDEST_BAND, _BAND_GOAL, _FREQUENCIES = 160, 1e-15, 256
_COSINES = np.cos(
    np.pi * np.outer(np.arange(_FREQUENCIES) + 0.5, np.arange(_FREQUENCIES)) / _FREQUENCIES
)


@dataclass(frozen=True, slots=True, eq=False)
class Circles:
    """How circles up to a largest radius are averaged.

    Args:
        f: The response.
        batch_size: B.
        cuts: Arguments of φ between which f is resolved, ascending.
        band: Nodes that resolve f on half a circle without cuts, or 0 where cuts are used.
    """

    f: Response
    batch_size: int
    cuts: Array
    band: int

    @classmethod
    def of(cls, f: Response, batch_size: int, reach: float) -> Circles:
        """Choose nodes or cuts for radii up to ``reach``."""
        if not (f.kinks.size or f.activation.turns):
            band = _band(f, np.sqrt(batch_size - 1) * reach)
            if band <= _WIDEST_BAND:
                return cls(f, batch_size, np.empty(0), band)
        cuts = _resolving_cuts(f, f.gamma * np.sqrt(batch_size - 1) * reach)
        return cls(f, batch_size, cuts, 0)

    def points(self, fine: bool) -> int:
        """How many nodes every circle has."""
        if self.band:
            return self.band + self.band // 2 if fine else self.band
        return (2 * self.cuts.size + 1) * (20 if fine else 14)

    def averages(self, rho: Array, *, fine: bool) -> Array:
        """Averages over circles of the given radii, of shape ``[19, radii]``."""
        return self._reduce(*self._nodes(rho, fine))

    def gaps(self, rho: Array) -> Array:
        """The average of (f₁ − f₂)²/2 alone, over the coarser nodes, of shape ``[radii]``."""
        *_, x1, x2, weights = self._nodes(rho, False)
        gap = self.f.activation.values(x1) - self.f.activation.values(x2)
        weights = np.broadcast_to(weights, gap.shape)
        return np.asarray(np.einsum("rm,rm,rm->r", weights, gap, gap) / 2)

    def _nodes(self, rho: Array, fine: bool) -> tuple[Array, Array, Array, Array, Array]:
        """Both samples, φ's arguments at both, and weights."""
        if self.band:
            return self._by_trapezoid(rho, self.points(fine))
        return self._between_cuts(rho, panels.analytic(20 if fine else 14))

    @property
    def _half(self) -> float:
        """ψ/2, half the angle between the samples."""
        return float(np.arccos(-1 / (self.batch_size - 1)) / 2)

    def _by_trapezoid(self, rho: Array, count: int) -> tuple[Array, Array, Array, Array, Array]:
        phi = np.pi * (np.arange(count) + 0.5) / count
        y = np.sqrt(self.batch_size - 1) * rho[:, None]
        y1, y2 = y * np.cos(phi + self._half), y * np.cos(phi - self._half)
        x1, x2 = (self.f.gamma * part + self.f.beta for part in (y1, y2))
        return y1, y2, x1, x2, np.full((1, count), 1 / count)

    def _between_cuts(
        self, rho: Array, rule: panels.UnitRule
    ) -> tuple[Array, Array, Array, Array, Array]:
        half, f = self._half, self.f
        y = np.sqrt(self.batch_size - 1) * rho[:, None]
        scale = f.gamma * y
        alpha = np.arccos(np.clip((self.cuts - f.beta) / scale, -1, 1))  # [radii, cuts]
        met = (alpha > 0) & (alpha < np.pi)
        # On half a circle exactly one sample meets a cut at each of these two angles.
        phi = np.concatenate([abs(alpha - half), np.pi - abs(np.pi - alpha - half)], 1)
        first = np.concatenate([alpha > half, alpha + half > np.pi], 1)
        at = np.tile(self.cuts, (len(rho), 2))
        met = np.tile(met, 2)
        x1 = np.where(met & first, at, scale * np.cos(phi + half) + f.beta)
        x2 = np.where(met & ~first, at, scale * np.cos(phi - half) + f.beta)
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
        edge = np.take_along_axis(phi, nodes.edge, 1)
        middle, sine = edge + nodes.offset / 2, -2 * np.sin(nodes.offset / 2)
        step1, step2 = sine * np.sin(middle + half), sine * np.sin(middle - half)
        return (
            y * (np.cos(edge + half) + step1),
            y * (np.cos(edge - half) + step2),
            np.take_along_axis(x1, nodes.edge, 1) + scale * step1,
            np.take_along_axis(x2, nodes.edge, 1) + scale * step2,
            nodes.weights / np.pi,
        )

    def _reduce(self, y1: Array, y2: Array, x1: Array, x2: Array, weights: Array) -> Array:
        """Average every product; symmetric in the two samples."""
        values, slopes = self.f(np.stack([x1, x2]))
        (f1, f2), (D1, D2) = values - self.f(np.array([self.f.beta]))[0], slopes
        found = np.empty((COUNT, len(y1)))

        def mean(part: Array) -> Array:
            return np.asarray(np.einsum("rm,rm->r", weights, part))

        weights = np.broadcast_to(weights, y1.shape)
        s1, s2, product = y1 * y1, y2 * y2, y1 * y2
        squares, both, pair = (s1 + s2) / 2, (f1 + f2) / 2, f1 * f2
        own1, own2, gap = f1 * f1, f2 * f2, f1 - f2
        found[MEAN], found[OWN], found[PAIR] = mean(both), mean((own1 + own2) / 2), mean(pair)
        found[GAP] = mean(gap * gap) / 2
        found[OWN_YY] = mean((own1 * s1 + own2 * s2) / 2)
        found[PAIR_12], found[PAIR_11] = mean(pair * product), mean(pair * squares)
        found[FIRST] = mean((f1 * y1 + f2 * y2) / 2)
        found[MEAN_11] = mean((f1 * s1 + f2 * s2) / 2)
        found[MEAN_12], found[MEAN_BOTH] = mean(both * product), mean(both * squares)
        own1, own2, pair = D1 * D1, D2 * D2, D1 * D2
        found[SLOPE] = mean((own1 + own2) / 2)
        own1, own2 = own1 * s1, own2 * s2
        found[SLOPE_2] = mean((own1 + own2) / 2)
        found[SLOPE_4] = mean((own1 * s1 + own2 * s2) / 2)
        crossed = pair * product
        found[SLOPES], found[SLOPES_12], found[SLOPES_11] = (
            mean(pair),
            mean(crossed),
            mean(pair * squares),
        )
        found[SLOPES_31], found[SLOPES_22] = mean(crossed * squares), mean(crossed * product)
        return found


def _band(f: Response, reach: float) -> int:
    """Nodes on half a circle beyond which values and slopes have nothing left, at most 256."""
    phi = np.pi * (np.arange(_FREQUENCIES) + 0.5) / _FREQUENCIES
    radii = reach * np.array([1.0, 0.7])[:, None]
    both = np.stack(f(f.gamma * radii * np.cos(phi) + f.beta))
    size = np.abs(both @ _COSINES)  # f is even in φ: [2, radii, frequencies]
    size = (size / np.maximum(size.max(-1, keepdims=True), np.finfo(float).tiny)).max((0, 1))
    # Rounding leaves about 1e-15 everywhere; what counts is the square of what is left out.
    above = np.flatnonzero(size > 32 * _BAND_GOAL)
    if above[-1] < _WIDEST_BAND:
        return max(12, int(above[-1]) + 6)
    return int(above[-1]) + 1


def _resolving_cuts(f: Response, reach: float) -> Array:
    """Kinks, and cuts between which polynomials follow values and slopes."""
    low, high = f.beta - reach, f.beta + reach
    inside = np.union1d(f.kinks, f.activation.turns)
    inside = inside[(inside > low) & (inside < high)]
    edges = np.concatenate([[low], inside, [high]])
    left, right = edges[:-1], edges[1:]
    found = [inside]
    size: Array | None = None
    while left.size:
        middle, half = ((left + right) / 2)[:, None], ((right - left) / 2)[:, None]
        nodes, checks = (
            np.stack(f(middle + half * points)) for points in (_NODES, _CHECKS)
        )  # [2, panels, points]
        deviation = np.abs(nodes @ _INTERPOLATION.T - checks).max(-1)
        if size is None:
            size = np.abs(checks).max((1, 2))[:, None]
        rounding = 1e-14 * np.maximum(1, np.abs(middle))[:, 0] / half[:, 0]
        rounding = rounding * np.ptp(checks, axis=-1)
        failing = (deviation > _RESOLVED * size + rounding).any(0)
        failing &= (right - left) > _NARROWEST * np.maximum(reach, np.abs(middle[:, 0]))
        a, b, cut = left[failing], right[failing], middle[failing, 0]
        # A step at a cut is flat on either side of it: the middle half must be seen too.
        quarter = (b - a) / 4
        found.append(cut)
        straddling = np.concatenate([cut - quarter, cut + quarter])
        found.append(straddling)
        left = np.concatenate([a, cut, cut - quarter])
        right = np.concatenate([cut, b, cut + quarter])
        _, first = np.unique(
            np.round(np.stack([left, right]) / reach, 14), axis=1, return_index=True
        )
        left, right = left[first], right[first]
        if left.size > _MOST_CUTS:
            break
    cuts = np.sort(np.concatenate(found))
    apart = np.diff(cuts, prepend=-np.inf) > 1e-12 * reach
    cuts = cuts[apart | np.isin(cuts, f.kinks)]
    if not (f.activation.turns or f.kinks.size) and np.any(np.diff(cuts) < _STEEPEST * reach):
        raise ConvergenceError(
            f"{f.activation.name} is too steep at gamma = {f.gamma:g}, beta = {f.beta:g}: it "
            "turns within a tiny part of what samples span. Use a smaller gamma, or its limit, a "
            "function with a jump, for which gradients have no finite rate."
        )
    return cuts
