r"""The law of the radius R when batch norm's ε is not negligible.

The centred pre-activations of a batch have squared norm κx with :math:`x\sim\chi^2_{B-1}`
independent of their direction w, so batch norm outputs Rw with

.. math:: R^2 = \frac{\kappa x}{\kappa x + B\varepsilon}, \qquad
          s^2 = \frac{\kappa x}{B} + \varepsilon .

Symbols: n = B - 1, d = log(x/n), v = log(κx/(Bε)), so that R² = 1/(1 + e^-v).
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from equipoise.numerics.quadrature import panels
from equipoise.numerics.special import gamma_ratio

Array = NDArray[np.float64]

# Nodes below exp(-36) = 2e-16 of the largest weight are left out: they are below rounding.
_LEFT_OUT = 36.0


@dataclass(frozen=True, slots=True, eq=False)
class RadialLaw:
    """Weights for averages over x, at given radii, or numbers for one.

    Args:
        radius: R at each node, of shape ``[radii]``.
        weight: Probability of each node; sums to 1.
        per_variance: Weight times 1/s².
        per_energy: Weight times x/n.
        per_amplitude: Weight times √(x/n).
    """

    radius: Array
    weight: Array
    per_variance: Array
    per_energy: Array
    per_amplitude: Array

    def at_first(self) -> RadialLaw:
        """The same as numbers, where there is one radius."""
        return RadialLaw(
            self.radius[0],
            self.weight[0],
            self.per_variance[0],
            self.per_energy[0],
            self.per_amplitude[0],
        )


def without_eps(batch_size: int, kappa: float) -> RadialLaw:
    r"""At ε = 0, R = 1, :math:`E[s^{-2}] = B/(\kappa(B-3))` and E[√x] is a gamma ratio."""
    one = np.ones(1)
    amplitude = gamma_ratio((batch_size - 1) / 2, 0.5)
    per_variance = batch_size / (kappa * (batch_size - 3))
    return RadialLaw(one, one, one * per_variance, one, one * amplitude)


@dataclass(frozen=True, slots=True, eq=False)
class RadialGrid:
    """Nodes in v, placed once and weighted for any κ near the one they were placed for.

    Only the weights depend on κ, so the fixed point of κ is found without new averages.

    Args:
        batch_size: B.
        eps: ε > 0.
        kappa: The κ the grid was placed for.
        offset: d at that κ, of shape ``[radii]``.
        measure: Quadrature weights in d.
    """

    batch_size: int
    eps: float
    kappa: float
    offset: Array
    measure: Array

    @property
    def v(self) -> Array:
        """Log of κx/(Bε) at the nodes."""
        scale = self.kappa * (self.batch_size - 1) / self.batch_size / self.eps
        return np.asarray(self.offset + np.log(scale))

    @property
    def radius(self) -> Array:
        """R at the nodes, of shape ``[radii]``."""
        return np.asarray(1 / np.sqrt(1 + np.exp(-self.v)))

    def reaches(self, kappa: float) -> bool:
        """Whether the nodes still cover the law at another κ."""
        return bool(abs(np.log(kappa / self.kappa)) <= _room(self.batch_size))

    def law(self, kappa: float) -> RadialLaw:
        """Weight the nodes for the given κ."""
        d = self.offset - np.log(kappa / self.kappa)
        weight = self.measure * np.exp(_log_density(self.batch_size, d))
        weight /= weight.sum()
        s2 = kappa * (self.batch_size - 1) / self.batch_size * np.exp(d) + self.eps
        amplitude = weight * np.exp(d / 2)
        return RadialLaw(self.radius, weight, weight / s2, weight * np.exp(d), amplitude)


def radial_grid(
    batch_size: int, eps: float, kappa: float, breaks: Array, level: int
) -> RadialGrid:
    """Place nodes for κ and its neighbourhood, on panels if averages break at given radii.

    Args:
        batch_size: B.
        eps: ε > 0.
        kappa: The κ to place nodes for.
        breaks: Radii in (0, 1) at which averages over directions are not analytic.
        level: Refinement, from 0.
    """
    v_middle = np.log(kappa * (batch_size - 1) / batch_size / eps)
    low, high = _range(batch_size, v_middle)
    spread = np.sqrt(2 / (batch_size - 1))
    at = np.log(breaks**2 / (1 - breaks**2)) - v_middle
    at = np.sort(at[(at > low) & (at < high)])
    if at.size == 0:
        # The density is analytic for |Im d| < π/2 only: at level 1 exp(−2π·(π/2)/0.28) = 5e-16.
        step = min(0.4, 0.9 * spread) / np.sqrt(2) ** level
        offset = np.arange(np.floor(low / step), np.ceil(high / step) + 1) * step
        return RadialGrid(batch_size, eps, kappa, offset, np.full(offset.shape, step))
    longest = min(2.5, 6 * spread)
    edges = np.concatenate([[low], at, [high]])
    parts = []
    for a, b in pairwise(edges):
        cuts = np.linspace(a, b, max(3, int(np.ceil((b - a) / longest)) + 1))
        # Only the panels next to a break see half-integer powers; the others are analytic.
        parts += [panels.place(panels.half_powers(16 + 6 * level), cuts[:2]).on(cuts[:2])]
        parts += [panels.place(panels.analytic(12 + 6 * level), cuts[1:-1]).on(cuts[1:-1])]
        parts += [panels.place(panels.half_powers(16 + 6 * level), cuts[-2:]).on(cuts[-2:])]
    offset, measure = (np.concatenate(part) for part in zip(*parts, strict=True))
    return RadialGrid(batch_size, eps, kappa, offset, measure)


def _log_density(batch_size: int, d: Array) -> Array:
    """Log density of d up to a constant: (n/2)(d − (e^d − 1))."""
    return np.asarray((batch_size - 1) / 2 * (d - np.expm1(d)))


def _range(batch_size: int, v_middle: float) -> tuple[float, float]:
    """Range of d where the density, also divided by s², is above rounding, with room to move κ."""
    d = np.sqrt(2 / (batch_size - 1)) * np.linspace(-250, 14, 5281)
    density = _log_density(batch_size, d)
    per_variance = np.logaddexp(0, v_middle) - np.logaddexp(0, v_middle + d)
    kept = d[density + np.maximum(per_variance, 0) > -_LEFT_OUT]
    room = _room(batch_size)
    return float(kept[0]) - room, float(kept[-1]) + room


def _room(batch_size: int) -> float:
    """Distance that log κ may move before the nodes must be placed again."""
    return float(0.2 * np.sqrt(2 / (batch_size - 1)))
