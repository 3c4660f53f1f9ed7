r"""Activations that are powers on either side of 0, at β = 0 and ε > 0.

Averages over directions are closed forms, and a radius R multiplies them by a power of itself:
f(Rw) = R^α f(w). One integral over the radius is left,

.. math:: F(\kappa) = \sigma_w^2\,\kappa_f\,E_x[R^{2\alpha}], \qquad
          R^2 = \frac{\kappa x}{\kappa x + B\varepsilon}, \quad x \sim \chi^2_{B-1},

by the trapezoidal rule in d = log(x/n), n = B - 1, whose nodes and density depend on B alone.
The slope of log F over log κ is α E[R^2α(1 − R²)]/E[R^2α], which falls as κ grows: log F is
concave, and Newton's method from above stops at the largest solution.
"""

from __future__ import annotations

import math
from dataclasses import replace
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import brentq

from equipoise.theory.activation.catalogue import Homogeneity
from equipoise.theory.batch_norm.averages.homogeneous import at_radii, homogeneous_averages
from equipoise.theory.batch_norm.averages.response import VALUES, Averages, Response
from equipoise.theory.batch_norm.fixed_point.collapsed import collapsed
from equipoise.theory.batch_norm.fixed_point.critical_eps import critical_variance
from equipoise.theory.batch_norm.fixed_point.radius import RadialLaw
from equipoise.theory.batch_norm.fixed_point.solution import UNIT, Numbers, Solution
from equipoise.theory.batch_norm.setting import Setting

Array = NDArray[np.float64]

# Steps of the rule, in standard deviations of d, and at most. At the distance y from the real axis
# the density is larger by (cos y)^(-n/2), so a step h leaves out exp(−2πy/h) (cos y)^(-n/2): for
# the longer ones at most 4e-15, at the best y.
_STEPS = ((0.5, 0.2), (0.4, 0.16))
# Below exp(-38) of the largest weight a node is left out.
_LEFT_OUT = 38.0
# Where the slope of log F is closer to 1, rounding decides whether there is a solution.
_NEARLY_ONE = 1e-9
_MOST_STEPS = 80
_SMALLEST = 1e-200
# Kernels of larger powers lose digits.
_LARGEST_POWER = 8.0
# Among all numbers.
_FORWARD_G = 6
_SHIFT = 1e-5
_METHOD = "closed form over directions, quadrature over the radius"


def serves(setting: Setting) -> bool:
    """Whether the activation is of that kind; a straight line may have any β."""
    shape = setting.activation.homogeneity
    if shape is None or setting.eps == 0 or not 1 <= shape.alpha <= _LARGEST_POWER:
        return False
    return setting.beta == 0 or _is_linear(shape)


@lru_cache(maxsize=512)
def solve_homogeneous(setting: Setting) -> Solution | None:
    """Every number; None where rounding decides whether samples collapse, or κ underflows.

    Args:
        setting: One that is served.
    """
    f, shape = Response.of(setting), setting.activation.homogeneity
    if shape is None:
        return None
    if shape.alpha == 1:
        # F(κ)/κ falls from the critical ε over ε.
        slope = setting.weight_variance * critical_variance(f, setting.batch_size) / setting.eps
        if slope <= 1:
            return collapsed(setting, f)
    at_one = homogeneous_averages(shape, setting.gamma, setting.batch_size)
    if not 0 < setting.weight_variance * float(at_one.kappa[0]) < math.inf:
        return None
    problems = [
        _Problem(setting, shape.alpha, at_one, *_radial_rule(setting.batch_size, *step))
        for step in _STEPS
    ]
    rough, good = (problem.fall() for problem in problems)
    if rough is None or good is None or math.isinf(rough) != math.isinf(good):
        return None
    if math.isinf(good):
        return collapsed(setting, f)
    coarse, fine = problems[0].numbers(rough), problems[1].numbers(good)
    moved = problems[1].numbers(good - math.log1p(_SHIFT))
    found = Numbers(fine.values, moved.distance(fine) / _SHIFT)
    errors = fine.distance(coarse) + 32 * UNIT * problems[1].lost * fine.scale
    rounding = 16 * UNIT * max(1.0, good)
    errors += rounding * found.amplification(setting) * found.sensitivity
    return found.with_errors(errors, setting, _METHOD)


class _Problem:
    """One setting on one radial rule."""

    def __init__(
        self, setting: Setting, alpha: float, at_one: Averages, offset: Array, weight: Array
    ) -> None:
        self._setting, self._alpha, self._at_one = setting, alpha, at_one
        self._offset, self._weight, self._shift = offset, weight, setting.beta
        B = setting.batch_size
        # κ at R = 1, and what it is of Bε/n.
        self._largest = setting.weight_variance * float(self._at_one.kappa[0])
        self._log_v = math.log(self._largest / setting.eps) + math.log1p(-1 / B)
        own = float(self._at_one.squares[VALUES, 0, 0]) + float(self._at_one.mean[0]) ** 2
        # Digits that κ loses where values of two samples are almost equal.
        self.lost = max(1.0, own * setting.weight_variance / self._largest)

    def fall(self) -> float | None:
        """How far the logarithm of the largest κ with F(κ) = κ lies below that at R = 1.

        Returns:
            Infinity where F(κ) < κ everywhere, None where rounding decides.
        """
        fall = 0.0
        for _ in range(_MOST_STEPS):
            value, slope = self._map(fall)
            if not value > _SMALLEST:
                return math.inf if self._alpha > 1 else None
            if slope > 1 - _NEARLY_ONE:
                return self._beyond_the_fold(fall) if self._alpha > 1 else None
            ratio = math.log(value) + fall
            if ratio > -4 * UNIT * max(1.0, fall):
                return fall
            fall -= ratio / (1 - slope)
        return None

    def _beyond_the_fold(self, fall: float) -> float | None:
        """Infinity if F(κ)/κ is below 1 where it is largest; at that place log F has slope 1."""
        if self._map(0.0)[1] >= 1:
            return math.inf
        low, high = 0.0, fall
        while self._map(high)[1] < 1:
            high += 1.0
        top = float(brentq(lambda at: self._map(at)[1] - 1, low, high, xtol=1e-12))
        return math.inf if math.log(self._map(top)[0]) + top < -1e-12 else None

    def _map(self, fall: float) -> tuple[float, float]:
        """E[R^2α], and how its logarithm rises with log κ."""
        with np.errstate(over="ignore", invalid="ignore"):
            far = np.exp(fall - self._log_v - self._offset)  # Bε/(κx)
            part = self._weight * (1 + far) ** -self._alpha
            value = float(part.sum())
            slope = self._alpha * float(part @ (far / (1 + far)))
        return value, slope / value if value else 0.0

    def numbers(self, fall: float) -> Numbers:
        """Every number at a κ."""
        kappa = self._largest * math.exp(-fall)
        radius = (1 + np.exp(fall - self._log_v - self._offset)) ** -0.5
        energy = np.exp(self._offset)
        s2 = kappa * (1 - 1 / self._setting.batch_size) * energy + self._setting.eps
        law = RadialLaw(
            radius=radius,
            weight=self._weight,
            per_variance=self._weight / s2,
            per_energy=self._weight * energy,
            per_amplitude=self._weight * np.sqrt(energy),
        )
        found = Numbers.of(self._setting, kappa, self._averages(radius), law)
        # F′(κ); as an average of (x − n) κ_f(R) it would lose log B digits.
        value, slope = self._map(fall)
        found.values[_FORWARD_G] = self._largest * value / kappa * slope
        return found

    def _averages(self, radius: Array) -> Averages:
        averages = at_radii(self._at_one, self._alpha, radius)
        return replace(averages, mean=averages.mean + self._shift)


def _is_linear(shape: Homogeneity) -> bool:
    return shape.alpha == 1 and shape.a == shape.b


@lru_cache(maxsize=64)
def _radial_rule(batch_size: int, deviations: float, longest: float) -> tuple[Array, Array]:
    """Nodes d and probabilities of d = log(x/n), also for averages of 1/x."""
    n = batch_size - 1
    spread = math.sqrt(2 / n)
    step = min(longest, deviations * spread)
    low, high = -_LEFT_OUT / (n / 2 - 1) - 9 * spread, 10 * spread
    d = np.arange(math.floor(low / step), math.ceil(high / step) + 1) * step
    density = n / 2 * (d - np.expm1(d))
    kept = density + np.maximum(-d, 0) > -_LEFT_OUT
    weight = np.exp(density[kept])
    return d[kept], weight / weight.sum()
