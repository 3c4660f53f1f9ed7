r"""Solve some settings of a sweep, and interpolate the others.

Along γ, β, B or ε alone, numbers are smooth in log γ, β, 1/B and log ε, except where a fixed point
appears or a kink meets the end of what samples span: intervals end there, and nodes crowd towards
such ends. Chebyshev points are solved, two or three times as many until the coefficients
:math:`c_k` of their polynomial have fallen below a goal; an interval on which they do not is
halved, and so on while it holds enough settings. Along B nodes are the settings nearest to those
points. The error of a number has two parts: what the errors of the solved settings make of it,
and the coefficients left out,

.. math:: |f - p_n| \le (1 + \Lambda_n)\sum_{k>n}|c_k|
          \approx (1 + \Lambda_n)\, n \max(|c_{n-3}|, \dots, |c_n|)

which is ample where they fall geometrically and right where they fall like :math:`k^{-2}`. The
Lebesgue constant :math:`\Lambda_n` of nodes that are not quite Chebyshev points is computed. All
this takes for granted that nodes see what lies between them; that is tried on settings that are
none.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.polynomial import chebyshev
from numpy.typing import NDArray

from equipoise.records.estimate import Estimate
from equipoise.theory.batch_norm.fixed_point.axes import GOAL, Axis, Interval
from equipoise.theory.batch_norm.fixed_point.solution import UNIT, Solution
from equipoise.theory.batch_norm.fixed_point.solve import (
    growth_of_differences,
    solve,
    solve_collapsed,
)
from equipoise.theory.batch_norm.setting import Setting

Array = NDArray[np.float64]

# Degrees of the coarsest polynomial and of the finest, and settings per degree at least.
_LOWEST, _HIGHEST, _PER_DEGREE = 8, 128, 1.5
# Which degree is high; from how many coefficients the error is told, and the largest Lebesgue
# constant.
_HIGH, _LAST, _LEBESGUE = 48, 4, 30.0
# Coefficients fall slower than geometrically: so many times the degrees that this would need, more
# at batches of so many or fewer, and up to so many times the last degree at once.
_SLOWER, _MUCH_SLOWER, _TINY_BATCH, _MOST_TIMES = 1.3, 2.2, 5, 4
# Fewer settings gain nothing: where nodes are none of them, those of a failed attempt are lost.
_FEWEST, _FEWEST_BETWEEN = 24, 40
# A node whose error is so many times the usual one would spoil its neighbours.
_UNUSUAL = 30
# Settings between nodes that are solved as well. Their places follow the golden ratio, which
# hardly any period of a sweep and its nodes agrees with.
_TRIED, _GOLDEN = 7, (math.sqrt(5) - 1) / 2
# Collapsed settings between two others that are worth a look at all of them.
_FEWEST_COLLAPSED = 4


def interpolate(axis: Axis, settings: Sequence[Setting]) -> dict[int, Solution]:
    """Solutions of settings on the way along an axis, by their place in the sequence.

    Those of short or refused intervals are left out.

    Args:
        axis: Along which alone they differ.
        settings: In any order.
    """
    places: dict[float, list[int]] = {}
    for i, setting in enumerate(settings):
        places.setdefault(axis.at(setting), []).append(i)
    points = np.array(sorted(places))
    sweep = _Sweep(axis, [settings[places[at][0]] for at in points.tolist()], points)
    parts = axis.intervals(sweep.settings[0], sweep.settings[-1])
    while parts:
        part = parts.pop()
        if sweep.count(part) >= (_FEWEST if axis.value is None else _FEWEST_BETWEEN):
            with suppress(ValueError):  # the caller meets it again, by itself
                parts += sweep.cover(part)
    return {i: solution for place, solution in sweep.found.items() for i in places[points[place]]}


class _Sweep:
    """Settings in the order of their coordinates, and the solutions found so far."""

    def __init__(self, axis: Axis, settings: Sequence[Setting], points: Array) -> None:
        self.found: dict[int, Solution] = {}
        self._axis, self.settings, self._points = axis, settings, points
        self._place = {at: place for place, at in enumerate(points.tolist())}
        self._between: dict[float, Solution] = {}
        self._growths: dict[int, float] = {}

    def _halves(self, part: Interval) -> list[Interval]:
        """Both halves; along B these end at settings."""
        middle = float(part.coordinates(np.zeros(1))[0])
        if self._axis.value is not None:
            return part.cut(middle, middle)
        place = int(np.searchsorted(self._points, middle))
        return part.cut(*self._points[[place - 1, place]].tolist())

    def _apart(self, part: Interval, nodes: Array, alive: Sequence[bool]) -> list[Interval]:
        """Both sides of a pair of settings, one of which has collapsed."""
        first = next(i for i, (one, two) in enumerate(pairwise(alive)) if one != two)
        low, high = np.searchsorted(self._points, nodes[first : first + 2])
        low = max(low - 1, 0) if self._points[low] > nodes[first] else low
        while high - low > 1:
            middle = (low + high) // 2
            lives = self._solved(float(self._points[middle])).kappa.value > 0
            low, high = (middle, high) if lives == alive[first] else (low, middle)
        end, start = self._points[[low, high]].tolist()
        return part.cut(end, start, breaks=self._axis.value is not None)

    def _slice(self, part: Interval) -> slice:
        start = np.searchsorted(self._points, part.low)
        return slice(int(start), int(np.searchsorted(self._points, part.high, side="right")))

    def count(self, part: Interval) -> int:
        """How many settings lie there."""
        return len(self._points[self._slice(part)])

    def cover(self, part: Interval) -> list[Interval]:
        """Interpolate on an interval, or give its parts on which to try.

        There are none if coefficients fall, and if all nodes collapse.

        Raises:
            ValueError: If a setting is refused.
        """
        inside = self._slice(part)
        points = self._points[inside]
        left: dict[int, float] = {}  # by how much the last coefficients of a degree miss the goal
        tiny = self.settings[inside.start].batch_size <= _TINY_BATCH
        slower = _MUCH_SLOWER if tiny else _SLOWER
        degree = _LOWEST
        while degree <= _HIGHEST and _PER_DEGREE * degree <= len(points):
            nodes = self._nodes(part, points, degree)
            solutions = [self._solved(at) for at in nodes.tolist()]
            alive = [solution.kappa.value > 0 for solution in solutions]
            if not any(alive):
                self._fill_collapsed(inside)
                return []
            if not all(alive):
                return self._apart(part, nodes, alive)
            values, errors = map(np.array, zip(*map(_row, solutions), strict=True))
            fit = _Fit.of(part.variables(nodes), values, errors)
            if fit is None or _uneven(values, errors):
                break
            left[degree] = fit.missing
            more = _next_degree(left, len(points), slower)
            if np.diff(nodes).max() <= min(map(self._width, nodes.tolist(), solutions)):
                enough = more is None or degree >= _HIGH
                found = fit.at(part.variables(points), self._axis.enough if enough else GOAL)
                if found:
                    method = f"interpolated between {len(nodes)} settings; {solutions[0].q.method}"
                    taken = self._take(inside.start, *found, method)
                    return [] if taken else self._halves(part)
            if more is None:
                break
            degree = more
        return self._halves(part)

    def _fill_collapsed(self, inside: slice) -> None:
        """Take settings between collapsed ones for collapsed where no fixed point is near.

        That is so where log F(κ)/κ, at its largest, lies farther below 0 at both ends and in the
        middle than it differs between them, and small κ shrink at every setting. Others are left
        to be solved by themselves.
        """
        left = [(inside.start, inside.stop - 1)]
        while left:
            low, high = left.pop()
            middle = (low + high) // 2
            if high - low < _FEWEST_COLLAPSED:
                continue
            growth = [self._growth(place) for place in (low, middle, high)]
            if 2 * max(growth) < min(growth):
                between = [solve_collapsed(one) for one in self.settings[low : high + 1]]
                if all(solution.forward[0].value < 1 for solution in between):
                    for place, solution in enumerate(between, low):
                        self.found.setdefault(place, solution)
                    continue
            left += [(low, middle), (middle, high)]

    def _growth(self, place: int) -> float:
        """The largest log F(κ)/κ of a setting."""
        if place not in self._growths:
            self._growths[place] = growth_of_differences(self.settings[place])
        return self._growths[place]

    def _nodes(self, part: Interval, points: Array, degree: int) -> Array:
        """Coordinates of nodes, ascending."""
        if self._axis.value is None:
            return np.asarray(points[_near_chebyshev_points(points, degree)])
        return part.coordinates(_chebyshev_points(degree))

    def _take(self, start: int, values: Array, bounds: Array, method: str) -> bool:
        """Keep interpolated numbers if they are right at settings that were no nodes."""
        places = np.array([p for p in range(len(values)) if start + p not in self.found])
        tried = np.arange(1, _TRIED + 1) * _GOLDEN % 1 * len(places)
        for place in places[np.unique(tried.astype(int))] if places.size else ():
            alone = self._solved(float(self._points[start + int(place)]))
            if alone.kappa.value == 0:
                return False
            exact, errors = map(np.array, _row(alone))
            if (np.abs(values[place] - exact) > bounds[place] + errors).any():
                return False
        for place, row in enumerate(zip(values, bounds, strict=True), start):
            self.found.setdefault(place, _solution(*row, method))
        return True

    def _width(self, at: float, solution: Solution) -> float:
        return self._axis.width(self._setting(at), solution)

    def _setting(self, at: float) -> Setting:
        place = self._place.get(at)
        if place is not None:
            return self.settings[place]
        assert self._axis.value is not None  # else nodes are settings
        changed: dict[str, Any] = {self._axis.name: self._axis.value(at)}
        return replace(self.settings[0], **changed)

    def _solved(self, at: float) -> Solution:
        """The solution at a coordinate."""
        place = self._place.get(at)
        if place is None:
            if at not in self._between:
                self._between[at] = solve(self._setting(at))
            return self._between[at]
        if place not in self.found:
            self.found[place] = solve(self.settings[place])
        return self.found[place]


def _next_degree(left: Mapping[int, float], count: int, slower: float) -> int | None:
    """The next degree, whose nodes contain those of the last; None if none would do.

    Args:
        left: By how much coefficients of every degree so far miss the goal.
        count: Settings.
        slower: How many times the degrees are needed that geometric coefficients would need.
    """
    degree, missing = list(left.items())[-1]
    highest = min(_HIGHEST, count / _PER_DEGREE)
    if 2 * degree > highest:
        return None
    if len(left) == 1 or missing <= 1:
        return 2 * degree
    before, larger = list(left.items())[-2]
    falls = math.log(larger / missing) / (degree - before)
    needed = math.log(missing) / max(falls, 1e-9)
    if degree + needed > highest:  # also if coefficients fell geometrically
        return None
    times = math.ceil((degree + slower * needed) / degree)
    return degree * max(2, min(times, _MOST_TIMES, int(highest // degree)))


def _chebyshev_points(degree: int) -> Array:
    """Ascending; those of a divisor of the degree are among them to the last digit."""
    return -np.cos(np.pi * (np.arange(degree + 1) / degree))


def _near_chebyshev_points(points: Array, degree: int) -> NDArray[np.intp]:
    """Places of different points, in ascending order, near the Chebyshev points between them."""
    middle, half = (points[-1] + points[0]) / 2, (points[-1] - points[0]) / 2
    wanted = middle + half * _chebyshev_points(degree)
    nearest = np.rint(np.interp(wanted, points, np.arange(len(points)))).astype(np.intp)
    order = np.arange(degree + 1)
    places = np.maximum.accumulate(nearest - order) + order
    return np.asarray(np.minimum(places, len(points) - 1 - order[::-1]))


@dataclass(frozen=True, slots=True, eq=False)
class _Fit:
    """A polynomial through nodes.

    Args:
        basis: Chebyshev polynomials at the nodes, of shape ``[nodes, degree + 1]``.
        values: Numbers there.
        errors: Theirs.
        last: The largest of the last coefficients of each number.
        scale: What the goal is relative to.
    """

    basis: Array
    values: Array
    errors: Array
    last: Array
    scale: Array

    @classmethod
    def of(cls, nodes: Array, values: Array, errors: Array) -> _Fit | None:
        """Fit; None where nodes differ by rounding."""
        basis = chebyshev.chebvander(nodes, len(nodes) - 1)
        try:
            last: Array = np.abs(np.linalg.solve(basis, values)[-_LAST:]).max(0)
        except np.linalg.LinAlgError:
            return None
        return cls(np.asarray(basis), values, errors, last, _scale(values).min(0))

    def _allowed(self, goal: float) -> Array:
        return np.asarray(np.maximum(goal * self.scale, self.errors.max(0)))

    @property
    def missing(self) -> float:
        """How many times too large the last coefficients are, were nodes Chebyshev points."""
        return float((4 * len(self.basis) * self.last / self._allowed(GOAL)).max())

    def at(self, points: Array, goal: float) -> tuple[Array, Array] | None:
        """Values and errors at points, or None if coefficients do not fall below a goal."""
        degree = len(self.basis) - 1
        weights = np.linalg.solve(self.basis.T, chebyshev.chebvander(points, degree).T).T
        lebesgue = float(np.abs(weights).sum(1).max())
        left_out = (1 + lebesgue) * degree * self.last
        if lebesgue > _LEBESGUE or (left_out > self._allowed(goal)).any():
            return None
        rounding = 8 * UNIT * lebesgue * np.abs(self.values).max(0)
        return weights @ self.values, np.abs(weights) @ self.errors + left_out + rounding


def _row(solution: Solution) -> tuple[list[float], list[float]]:
    """Smooth functions of a setting, and their errors: log q, log κ and the other numbers."""
    q, _, kappa, *rest = solution.numbers
    values = [math.log(q.value), math.log(kappa.value), *(part.value for part in rest)]
    errors = [q.relative_error, kappa.relative_error, *(part.error for part in rest)]
    return values, errors


def _scale(rows: Array) -> Array:
    """What changes and errors are relative to."""
    q, rate, one = np.exp(rows[:, 0]), rows[:, 2], np.ones(len(rows))
    return np.stack([one, one, rate, rate, rate, one, one, one, q, one], axis=1)


def _uneven(values: Array, errors: Array) -> bool:
    """Whether the error of one node would spoil the others."""
    relative = errors / _scale(values)
    usual = np.maximum(np.median(relative, axis=0), GOAL)
    return bool((relative > _UNUSUAL * usual).any())


def _solution(values: Array, errors: Array, method: str) -> Solution:
    q, kappa = np.exp(values[:2]).tolist()
    q_error, kappa_error = errors[:2].tolist()
    apart = kappa / q  # 1 − c
    rest = [
        Estimate(value, error, method)
        for value, error in zip(values[2:].tolist(), errors[2:].tolist(), strict=True)
    ]
    return Solution(
        q=Estimate(q, q * q_error, method),
        c=Estimate(1 - apart, apart * (q_error + kappa_error) + UNIT, method),
        kappa=Estimate(kappa, kappa * kappa_error, method),
        backward=(rest[0], rest[1], rest[2]),
        forward=(rest[3], rest[4], rest[5]),
        cross_covariance=rest[6],
        cross_rate=rest[7],
    )
