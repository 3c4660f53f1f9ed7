r"""All numbers of one BSB1 problem, and how large their errors are."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from equipoise.records.estimate import Estimate
from equipoise.theory.batch_norm.averages.response import (
    VALUES,
    Averages,
    Response,
    unseen_slopes,
)
from equipoise.theory.batch_norm.fixed_point.radius import RadialLaw
from equipoise.theory.batch_norm.setting import Setting
from equipoise.theory.batch_norm.spectra import formulas

Array = NDArray[np.float64]
Triple = tuple[Estimate, Estimate, Estimate]

UNIT = float(np.finfo(float).eps)
_COUNT = 11


@dataclass(frozen=True, slots=True)
class Solution:
    """Every number of a BSB1 problem that callers need; triples run along G, L, M."""

    q: Estimate
    c: Estimate
    kappa: Estimate
    backward: Triple
    forward: Triple
    cross_covariance: Estimate
    cross_rate: Estimate

    @property
    def numbers(self) -> tuple[Estimate, ...]:
        """All of them: q, c, κ, three and three eigenvalues, and those between batches."""
        first = (self.q, self.c, self.kappa)
        return (*first, *self.backward, *self.forward, self.cross_covariance, self.cross_rate)

    @property
    def rate(self) -> Estimate:
        """The explosion rate."""
        return self.backward[0]

    @property
    def finite(self) -> bool:
        """Whether all numbers are."""
        return all(math.isfinite(part.value) for part in self.numbers)

    @property
    def stable(self) -> bool:
        """Whether all forward eigenvalues are below 1."""
        return all(part.value < 1 for part in self.forward)

    def widened(self, other: Solution, note: str) -> Solution:
        """Add the distance to another solution to every error, and a note to every method."""

        def wider(one: Estimate, two: Estimate) -> Estimate:
            error = one.error + abs(one.value - two.value)
            return replace(one, error=error, method=f"{one.method}; {note}")

        def all_wider(mine: Triple, others: Triple) -> Triple:
            G, L, M = map(wider, mine, others)
            return G, L, M

        return Solution(
            q=wider(self.q, other.q),
            c=wider(self.c, other.c),
            kappa=wider(self.kappa, other.kappa),
            backward=all_wider(self.backward, other.backward),
            forward=all_wider(self.forward, other.forward),
            cross_covariance=wider(self.cross_covariance, other.cross_covariance),
            cross_rate=wider(self.cross_rate, other.cross_rate),
        )

    def flagged(self, triple: Triple) -> Triple:
        """Return the eigenvalues, each marked with the stability of the fixed point."""
        G, L, M = (replace(part, stable=self.stable) for part in triple)
        return G, L, M


@dataclass(frozen=True, slots=True, eq=False)
class Numbers:
    """One level's values of everything, before errors are known.

    Args:
        values: q, qc, κ, then backward G, L, M, forward G, L, M, cross-batch covariance and rate.
        sensitivity: Change of each per relative change of κ; 0 at ε = 0, where κ is explicit.
    """

    values: Array
    sensitivity: Array = field(default_factory=lambda: np.zeros(_COUNT))

    @classmethod
    def of(cls, setting: Setting, kappa: float, averages: Averages, law: RadialLaw) -> Numbers:
        """Combine averages into numbers."""
        B, variance, shared = setting.batch_size, setting.weight_variance, setting.bias_variance
        if law.radius.size == 1:  # numbers take a third of the time of arrays of one
            averages, law = averages.at_first(), law.at_first()
        mean_squared = averages.mean**2
        moments = (averages.square(VALUES, 0), averages.pair(VALUES, 0, 0))
        q, qc = (variance * float(np.dot(law.weight, m + mean_squared)) + shared for m in moments)
        backward = (formulas.backward_g, formulas.backward_l, formulas.backward_m)
        forward = (formulas.forward_g, formulas.forward_l, formulas.forward_m)
        return cls(
            np.array(
                [
                    q,
                    qc,
                    kappa,
                    *(formula(B, variance, averages, law) for formula in backward),
                    *(formula(B, variance, kappa, averages, law) for formula in forward),
                    formulas.cross_batch_covariance(variance, averages, law) + shared,
                    formulas.cross_batch_rate(B, variance, kappa, averages, law),
                ]
            )
        )

    @property
    def rate(self) -> float:
        """The explosion rate."""
        return float(self.values[3])

    @property
    def scale(self) -> Array:
        """Scales that errors are relative to."""
        q, _, kappa, rate = self.values[:4]
        return np.array([q, q, kappa, rate, rate, rate, 1, 1, 1, q, 1])

    def distance(self, other: Numbers) -> Array:
        """Absolute differences."""
        return np.abs(self.values - other.values)

    def amplification(self, setting: Setting) -> float:
        """F(κ) = κ is solved where F′ = λ↑_G: errors of F grow by 1/(1 − λ↑_G)."""
        return 1 / max(UNIT, 1 - float(self.values[6])) if setting.eps > 0 else 1.0

    def with_errors(
        self,
        errors: Array,
        setting: Setting,
        method: str,
        *,
        truncation: float = 0.0,
        slopes: float = np.inf,
    ) -> Solution:
        """Attach errors: what refinement changed, and a floor for rounding.

        Args:
            errors: What refinement changed.
            setting: The problem.
            method: How the numbers were computed.
            truncation: Relative error of averages from cutting a series.
            slopes: E[f′²], needed beside fractional powers.
        """
        # Values of size √q leave κ an error of ε_mach·√(qκ), and angles at large B add
        # ε_mach·√B. With the factor 16 the errors cover every reference of the test suite.
        floor = 16 * UNIT * (1 + np.sqrt(setting.batch_size) / 16)
        floor *= max(1.0, float(np.sqrt(self.values[0] / self.values[2])))
        floor += 4 * truncation + _error_beside_a_power(setting)
        errors = errors + floor * self.scale
        errors[3:6] += self.rate * _rounding_at_kinks(setting, slopes)
        errors += floor * self.amplification(setting) * self.sensitivity
        q, qc, kappa, *rest = (
            Estimate(float(value), float(error), method)
            for value, error in zip(self.values, errors, strict=True)
        )
        correlation = qc.value / q.value
        c_error = (qc.error + abs(correlation) * q.error) / q.value
        c = Estimate(correlation, c_error, method)
        backward, forward = (rest[0], rest[1], rest[2]), (rest[3], rest[4], rest[5])
        return Solution(q, c, kappa, backward, forward, rest[6], rest[7])


def _error_beside_a_power(setting: Setting) -> float:
    """Relative part of E[φ′²] that quadrature leaves out beside a kink of power α near 1/2.

    The double exponential rule ends at distances of 1e-130, and slopes squared are like
    x^(2α - 2) there.
    """
    shape = setting.activation.homogeneity
    if shape is None or shape.alpha >= 1 or setting.beta == 0:
        return 0.0
    return float(4 * 10 ** (-130 * (2 * shape.alpha - 1)))


def _rounding_at_kinks(setting: Setting, slopes: float) -> float:
    """Part of E[f′²] that lies within rounding of kinks."""
    return float(unseen_slopes(Response.of(setting), setting.batch_size, np.ones(1))[0]) / slopes
