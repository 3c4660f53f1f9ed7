"""Cuts of a response's argument, between which polynomials follow values and slopes.

Panels are halved until a polynomial is right at points between its nodes, or what it misses is the
noise of the function itself. Polynomials of a high degree need fewer nodes in all where f bends
slowly or often, and more where it is steep in a few places.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.polynomial import chebyshev
from numpy.typing import NDArray

from equipoise.theory.batch_norm.averages.response import Response
from equipoise.theory.batch_norm.setting import ConvergenceError

Array = NDArray[np.float64]

# Largest part of f that a panel's polynomial may miss. At 1e-10 steep functions at γ = 10 had
# κ off by 1e-11, and both rules agreed on it.
_RESOLVED, _NOISE = 1e-13, 1e-4
_NARROWEST, _MOST_CUTS, _HALVES = 1e-10, 400, 30
# Panels beside which their parts are looked at in one call.
_MOST_AHEAD = 24
# Steeper functions of the catalogue would take minutes.
_STEEPEST = 1e-5
_SEEN = np.linspace(-1, 1, 120)
_ANYWHERE, _STEEP = np.linspace(-20, 20, 161), 1e3
_TINY, _UNIT = float(np.finfo(float).tiny), float(np.finfo(float).eps)


@dataclass(frozen=True, slots=True, eq=False)
class Polynomials:
    """Polynomials of one degree on [-1, 1].

    Args:
        nodes: How many nodes they go through.
        points: Those, and others where they are checked.
        interpolation: Values at the latter from those at the former.
        last: Coefficients from some degree on, from values at the nodes. Their products must be
            small too: rules with few nodes do not integrate what oscillates up to the very degree.
    """

    nodes: int
    points: Array
    interpolation: Array
    last: Array

    @classmethod
    def of(cls, degree: int, products: int) -> Polynomials:
        """Those of a degree, and from which on products of two terms are left to be small."""
        nodes = np.cos(np.pi * (np.arange(degree + 1) + 0.5) / (degree + 1))
        checks = np.sin(np.linspace(-1.5, 1.5, degree + 5)) * 0.999 + 0.0007
        basis = [chebyshev.chebvander(x, degree) for x in (nodes, checks)]
        inverse = np.asarray(np.linalg.inv(basis[0]), dtype=np.float64)
        points = np.concatenate([nodes, checks])
        return cls(nodes.size, points, basis[1] @ inverse, inverse[products:])


LOW, HIGH = Polynomials.of(16, 16), Polynomials.of(48, 28)


def resolving_cuts(
    f: Response,
    batch_size: int,
    reach: float,
    c: float = 0.0,
    polynomials: Polynomials = LOW,
) -> tuple[Array, tuple[float, float]]:
    """Kinks, and cuts between which polynomials follow values and slopes.

    Both count by the square root of the density: integrands are products of two.

    Args:
        f: The response.
        batch_size: B.
        reach: Arguments of φ are within this distance of β.
        c: Bε/κ.
        polynomials: Of which degree; beside fractional powers of the lower one.

    Returns:
        Arguments of φ, ascending, without the ends; and what polynomials may miss of values and
        slopes, in units of their own.
    """
    special = np.array(sorted({*f.kinks.tolist(), *f.activation.turns}))
    low, high = f.beta - reach, f.beta + reach
    inside = special[(special > low) & (special < high)]
    search = _Search.of(f, batch_size, reach, c, inside, polynomials)
    failing, lost = search.failing(inside)
    ends = np.unique(np.concatenate([inside, *failing]))
    cuts = ends[(ends > low) & (ends < high)]
    apart = np.append(np.inf, cuts[1:] - cuts[:-1]) > 1e-12 * reach
    cuts = cuts[apart[: cuts.size] | (cuts[:, None] == f.kinks).any(1)]
    if not special.size and (cuts[1:] - cuts[:-1] < _STEEPEST * reach).any():
        raise ConvergenceError(
            f"{f.activation.name} is too steep at gamma = {f.gamma:g}, beta = {f.beta:g}: it "
            "turns within a tiny part of what samples span. Use a smaller gamma, or its limit, a "
            "function with a jump, for which gradients have no finite rate."
        )
    missing = np.maximum(_RESOLVED * search.size[:, 0], lost)
    return cuts, (float(missing[0]), float(missing[1]))


@dataclass(frozen=True, slots=True, eq=False)
class _Search:
    """What panels are judged by.

    Args:
        f: The response.
        batch_size: B.
        reach: Of φ's argument around β.
        c: Bε/κ.
        size: Of values less f(0), and of slopes, times √density, of shape ``[2, 1]``.
        noisy: What their rounding may reach.
        polynomials: What is to follow them.
    """

    f: Response
    batch_size: int
    reach: float
    c: float
    size: Array
    noisy: Array
    polynomials: Polynomials

    @classmethod
    def of(
        cls,
        f: Response,
        batch_size: int,
        reach: float,
        c: float,
        inside: Array,
        polynomials: Polynomials,
    ) -> _Search:
        """Look at f at many places, and at those given, where it may be largest."""
        seen = np.concatenate([f.beta + reach * _SEEN, inside])
        seen = seen[(seen[:, None] != f.kinks).all(1)]
        with np.errstate(over="ignore", invalid="ignore"):
            values, slopes = f(np.concatenate([seen, _ANYWHERE, f.activation.turns]))
        elsewhere, slopes, values = slopes[seen.size :], slopes[: seen.size], values[: seen.size]
        both = np.abs([values - f.at_zero, slopes])
        both *= _root_density(f, batch_size, c, abs(seen - f.beta))
        size = np.maximum(both.max(1), _TINY)
        # Where f is nearly flat, slopes are differences of numbers as large as slopes elsewhere.
        largest = np.abs(values).max()
        steepest = np.abs(elsewhere[np.isfinite(elsewhere)]).max()
        floor = [largest, min(steepest, _STEEP * f.gamma * largest)]
        noisy = np.maximum(_NOISE * size, 8 * _UNIT * np.array(floor))
        return cls(f, batch_size, reach, c, size[:, None], noisy[:, None], polynomials)

    def failing(self, inside: Array) -> tuple[list[Array], Array]:
        """Ends and middles of all panels that polynomials do not follow.

        Args:
            inside: Ends of the first panels, but for the two outermost.

        Returns:
            Those, and what is missed of values and slopes where there are too many to go on:
            what oscillates so often looks like noise to rules that agree by chance.
        """
        edges = np.concatenate([[self.f.beta - self.reach], inside, [self.f.beta + self.reach]])
        left, right = edges[:-1], edges[1:]
        before = np.full((2, 2, left.size), np.inf)  # deviations of the two panels above
        found: list[Array] = []
        ahead: Array | None = None
        while True:
            below = _parts(left, right)
            if ahead is None:
                missed, ahead = self._and_ahead((left, right), below)
            else:
                missed, ahead = ahead, None
            bad, deviation = self._fails(left, right, missed, before)
            if not bad.any():
                return found, np.zeros(2)
            found += [left[bad], right[bad], below[1][0, bad]]
            left, right = (ends[:, bad].ravel() for ends in below)
            # Neighbours share quarters: look at each once.
            _, first = np.unique(
                np.round(left / self.reach, 14) + 1j * np.round(right / self.reach, 14),
                return_index=True,
            )
            left, right = left[first], right[first]
            before = np.tile(np.array([deviation, before[0]])[..., bad], 3)[..., first]
            if ahead is not None:
                ahead = ahead[..., bad].reshape(2, 2, -1)[..., first]
            if left.size > _MOST_CUTS:
                bad, deviation = self._fails(left, right, self._unresolved(left, right), before)
                return found, deviation[:, bad].max(1, initial=0.0)

    def _fails(
        self, left: Array, right: Array, missed: Array, before: Array
    ) -> tuple[NDArray[np.bool_], Array]:
        """Which panels fail, and how far polynomials are off there.

        Args:
            left: Their left ends.
            right: Their right ends.
            missed: What polynomials miss there, and what of that is rounding, ``[2, 2, panels]``.
            before: How far off they were on the two panels above each, ``[2, 2, panels]``.
        """
        nearest = np.maximum(np.maximum(left - self.f.beta, self.f.beta - right), 0)
        density = _root_density(self.f, self.batch_size, self.c, nearest)
        deviation, rounding = missed * density
        bad = deviation > _RESOLVED * self.size + rounding
        if bad.any():
            # Noise of the function itself does not fall with the width of a panel.
            with np.errstate(invalid="ignore"):
                steady = np.array([deviation, before[0]]) / np.maximum(before, _TINY)
            bad &= ~((deviation <= self.noisy) & ((steady > 0.25) & (steady < 4)).all(0))
        width = _NARROWEST * np.maximum(self.reach, np.abs(left + right) / 2)
        return bad.any(0) & (right - left > width), deviation

    def _and_ahead(
        self, panels: tuple[Array, Array], below: tuple[Array, Array]
    ) -> tuple[Array, Array | None]:
        """What is missed on panels, ``[2, 2, panels]``, and on their parts, ``[2, 2, 3, panels]``.

        A few panels take as long as four times as many, most of which will be asked for next.
        """
        count = panels[0].size
        if count > _MOST_AHEAD or self.f.has_powers:
            return self._unresolved(*panels), None
        ends = (
            np.concatenate([own, parts.ravel()]) for own, parts in zip(panels, below, strict=True)
        )
        both = self._unresolved(*ends)
        return both[..., :count], both[..., count:].reshape(2, 2, 3, count)

    def _unresolved(self, left: Array, right: Array) -> Array:
        """What polynomials miss of values and slopes, and rounding: ``[2, 2, panels]``.

        Next to a fractional power, panels are seen in halves that shrink towards it.
        """
        f = self.f
        ends = np.isin([left, right], f.powers) if f.has_powers else np.zeros((2, left.size), bool)
        whole = ~ends.any(0)
        if whole.all():
            return self._missed(left, right)[:2]
        found = np.zeros((2, 2, left.size))
        if whole.any():
            found[:, :, whole] = self._missed(left[whole], right[whole])[:2]
        halves = 2.0 ** -np.arange(_HALVES)
        for i in np.flatnonzero(~whole):
            a, b = left[i], right[i]
            if ends[:, i].all():
                found[0, :, i] = np.inf
                continue
            far = a + (b - a) * halves if ends[0, i] else b - (b - a) * halves
            near = np.minimum(far[:-1], far[1:]), np.maximum(far[:-1], far[1:])
            deviation, rounding, sizes = self._missed(*near)
            # Slopes may grow without bound: each half counts by its own size.
            relative = np.maximum(deviation - rounding, 0) / np.maximum(sizes, _TINY)
            found[0, :, i] = relative.max(1) * sizes[:, 0]
        return found

    def _missed(self, left: Array, right: Array) -> Array:
        """How far polynomials are off, what of that is rounding, and sizes: ``[3, 2, panels]``."""
        middle, half = (left + right) / 2, (right - left) / 2
        at = middle[:, None] + half[:, None] * self.polynomials.points
        both = np.array(self.f(at))  # [2, panels, points]
        nodes, checks = np.split(both, [self.polynomials.nodes], axis=-1)
        deviation = np.abs(nodes @ self.polynomials.interpolation.T - checks).max(-1)
        high, low = checks.max(-1), checks.min(-1)
        sizes = np.maximum(high, -low)
        products = np.abs(nodes @ self.polynomials.last.T).max(-1) ** 2
        with np.errstate(over="ignore"):  # infinite where a peak lies between the checks
            deviation = np.maximum(deviation, products / np.maximum(sizes, _TINY))
        rounding = 1e-14 * np.maximum(1, np.abs(middle)) / half
        return np.array([deviation, rounding * (high - low) + 2e-15 * sizes, sizes])


def _root_density(f: Response, batch_size: int, c: float, distance: Array) -> Array:
    """√density at a distance of φ's argument from β, at most 1."""
    rho2 = np.minimum((distance / f.gamma) ** 2 / (batch_size - 1), 1 - 1e-15)
    exponent = (batch_size - 3) / 2 * np.log1p(-rho2) - c / 2 * rho2 / (1 - rho2)
    return np.asarray(np.exp(exponent / 2))


def _parts(left: Array, right: Array) -> tuple[Array, Array]:
    """Ends of both halves of panels and of their middle half, each ``[3, panels]``.

    A step at a cut is flat on either side of it: the middle half must be seen too.
    """
    cut, quarter = (left + right) / 2, (right - left) / 4
    return np.array([left, cut, cut - quarter]), np.array([cut, right, cut + quarter])
