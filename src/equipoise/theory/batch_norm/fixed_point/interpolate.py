r"""Solve some settings of a sweep, and interpolate the others.

Along γ, β or B alone, numbers are smooth in log γ, β and 1/B, except where a fixed point appears
or a kink meets the end of what samples span. The settings nearest to Chebyshev points are solved,
twice as many until the polynomial's coefficients :math:`c_k` have fallen below a goal; an interval
on which they do not is halved, and so on while it holds enough settings. The error of a number
has two parts: what the errors of the solved settings make of it, and the coefficients left out,

.. math:: |f - p_n| \le (1 + \Lambda_n)\sum_{k>n}|c_k|
          \approx (1 + \Lambda_n)\, n \max(|c_{n-3}|, \dots, |c_n|)

which is ample where they fall geometrically and right where they fall like :math:`k^{-2}`. The
Lebesgue constant :math:`\Lambda_n` of nodes that are not quite Chebyshev points is computed. All
this takes for granted that nodes see what lies between them; that is tried on settings that are
none.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from numpy.polynomial import chebyshev
from numpy.typing import NDArray

from equipoise.records.estimate import Estimate
from equipoise.theory.batch_norm.fixed_point.solution import UNIT, Solution
from equipoise.theory.batch_norm.fixed_point.solve import solve
from equipoise.theory.batch_norm.setting import Setting

Array = NDArray[np.float64]

# Degrees of the coarsest polynomial and of the finest, and settings per degree at least, so that
# some lie near Chebyshev points.
_LOWEST, _HIGHEST, _PER_DEGREE = 8, 64, 1.5
# Relative error at which a polynomial is accepted, from how many coefficients it is told, and the
# largest Lebesgue constant.
_GOAL, _LAST, _LEBESGUE = 1e-10, 4, 30.0
# A node whose error is so many times the usual one would spoil its neighbours.
_UNUSUAL = 30
# Settings between nodes that are solved as well. Their places follow the golden ratio, which
# hardly any period of a sweep and its nodes agrees with.
_TRIED, _GOLDEN = 7, (math.sqrt(5) - 1) / 2


@dataclass(frozen=True, slots=True)
class Axis:
    """A field of settings along which numbers are smooth.

    Args:
        name: The field.
        coordinate: In which they are smooth, from the field's value.
        width: The largest distance of two nodes: along β one standard deviation of what the
            activation sees, which numbers are averages over; at small batches, whose samples
            have sharp ends, they may still change within it.
    """

    name: str
    coordinate: Callable[[float], float]
    width: Callable[[Setting, Solution], float]

    def at(self, setting: Setting) -> float:
        """The coordinate of a setting."""
        return self.coordinate(getattr(setting, self.name))

    def others(self, setting: Setting) -> tuple[Any, ...]:
        """The other fields, which all settings of a sweep along it share."""
        names = (field.name for field in fields(setting))
        return tuple(getattr(setting, name) for name in names if name != self.name)


def _deviation(setting: Setting, solution: Solution) -> float:
    """About γR, the standard deviation of γRw + β."""
    kappa = solution.kappa.value
    return setting.gamma * math.sqrt(kappa / (kappa + setting.eps))


AXES = (
    Axis("gamma", math.log, lambda setting, solution: 1.0),
    Axis("beta", float, _deviation),
    Axis("batch_size", lambda B: 1 / B, lambda setting, solution: 1.0),
)


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
    parts = [(0, len(points))]
    while parts:
        start, end = parts.pop()
        try:
            done = end - start < _PER_DEGREE * 2 * _LOWEST or sweep.cover(start, end)
        except ValueError:  # the caller meets it again, by itself
            done = True
        if not done:
            middle = int(np.searchsorted(points, (points[start] + points[end - 1]) / 2))
            parts += [(start, middle), (middle, end)]
    return {i: solution for place, solution in sweep.found.items() for i in places[points[place]]}


class _Sweep:
    """Settings in the order of their coordinates, and the solutions found so far."""

    def __init__(self, axis: Axis, settings: Sequence[Setting], points: Array) -> None:
        self.found: dict[int, Solution] = {}
        self._axis, self._settings, self._points = axis, settings, points

    def cover(self, start: int, end: int) -> bool:
        """Interpolate on one interval; whether nothing is gained by halving it.

        That is so if coefficients fall, and if all samples collapse.

        Raises:
            ValueError: If a setting is refused.
        """
        points = self._points[start:end]
        degree = _LOWEST
        while degree <= _HIGHEST and _PER_DEGREE * degree <= len(points):
            chosen = _near_chebyshev_points(points, degree)
            nodes = (start + chosen).tolist()
            solutions = [self._solved(node) for node in nodes]
            alive = [solution.kappa.value > 0 for solution in solutions]
            if not all(alive):
                return not any(alive)
            values, errors = map(np.array, zip(*map(_row, solutions), strict=True))
            if _uneven(values, errors):
                return False
            if np.diff(points[chosen]).max() <= min(map(self._width, nodes)):
                fit = _fit(points, chosen, values, errors)
                if fit:
                    method = f"interpolated between {len(nodes)} settings; {solutions[0].q.method}"
                    return self._take(start, *fit, method)
            degree *= 2
        return False

    def _take(self, start: int, values: Array, bounds: Array, method: str) -> bool:
        """Keep interpolated numbers if they are right at settings that were no nodes."""
        places = np.array([p for p in range(len(values)) if start + p not in self.found])
        tried = np.arange(1, _TRIED + 1) * _GOLDEN % 1 * len(places)
        for place in places[np.unique(tried.astype(int))] if places.size else ():
            alone = self._solved(start + int(place))
            if alone.kappa.value == 0:
                return False
            exact, errors = map(np.array, _row(alone))
            if (np.abs(values[place] - exact) > bounds[place] + errors).any():
                return False
        for place, row in enumerate(zip(values, bounds, strict=True), start):
            self.found.setdefault(place, _solution(*row, method))
        return True

    def _width(self, place: int) -> float:
        return self._axis.width(self._settings[place], self.found[place])

    def _solved(self, place: int) -> Solution:
        if place not in self.found:
            self.found[place] = solve(self._settings[place])
        return self.found[place]


def _near_chebyshev_points(points: Array, degree: int) -> NDArray[np.intp]:
    """Places of different points, in ascending order, near the Chebyshev points between them."""
    middle, half = (points[-1] + points[0]) / 2, (points[-1] - points[0]) / 2
    wanted = middle + half * chebyshev.chebpts2(degree + 1)
    nearest = np.rint(np.interp(wanted, points, np.arange(len(points)))).astype(np.intp)
    order = np.arange(degree + 1)
    places = np.maximum.accumulate(nearest - order) + order
    return np.asarray(np.minimum(places, len(points) - 1 - order[::-1]))


def _fit(
    points: Array, chosen: NDArray[np.intp], values: Array, errors: Array
) -> tuple[Array, Array] | None:
    """Values and errors at all points from those at some, or None if coefficients do not fall."""
    degree = len(chosen) - 1
    scaled = (2 * points - points[0] - points[-1]) / (points[-1] - points[0])
    basis = chebyshev.chebvander(scaled, degree)
    try:
        weights = np.linalg.solve(basis[chosen].T, basis.T).T
    except np.linalg.LinAlgError:  # points that differ by rounding
        return None
    lebesgue = float(np.abs(weights).sum(1).max())
    last = np.linalg.solve(basis[chosen], values)[-_LAST:]
    left_out = (1 + lebesgue) * degree * np.abs(last).max(0)
    allowed = np.maximum(_GOAL * _scale(values).min(0), errors.max(0))
    if lebesgue > _LEBESGUE or (left_out > allowed).any():
        return None
    rounding = 8 * UNIT * lebesgue * np.abs(values).max(0)
    return weights @ values, np.abs(weights) @ errors + left_out + rounding


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
    usual = np.maximum(np.median(relative, axis=0), _GOAL)
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
