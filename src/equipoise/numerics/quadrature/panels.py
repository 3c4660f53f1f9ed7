r"""Quadrature on panels whose ends may be singular.

An integrand that is analytic inside a panel but behaves like a power of the distance to its
ends defeats plain Gauss–Legendre. Substitutions restore fast convergence:

* ``analytic``: none; Gauss–Legendre for integrands that are analytic up to the ends;
* ``half_powers``: :math:`s = \sin^2(\pi u/2)` turns half-integer powers into integer ones;
* ``positive_powers``: a polynomial that is flat to fifth order at both ends;
* ``any_powers``: the double exponential substitution handles every integrable power.

Nodes carry their distance to *both* ends, because a difference of nearby angles has lost the
digits that an integrand like :math:`x^{-0.4}` needs.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np
from numpy.typing import NDArray
from scipy.special import betainc

Array = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class UnitRule:
    """A rule on [0, 1]: distances to either end and weights, each of shape ``[m]``."""

    left: Array
    right: Array
    weights: Array

    @cached_property
    def nearer(self) -> tuple[NDArray[np.intp], Array]:
        """The end that each node is nearer to, 0 or 1, and its signed distance from there."""
        to_right = self.left > self.right
        return to_right.astype(np.intp), np.where(to_right, -self.right, self.left)


@lru_cache(maxsize=256)
def analytic(count: int) -> UnitRule:
    """Gauss–Legendre on [0, 1], exact up to degree 2·count - 1.

    Examples:
        >>> rule = analytic(2)
        >>> round(float(rule.weights @ rule.left**3), 12)
        0.25
    """
    nodes, weights = np.polynomial.legendre.leggauss(count)
    return UnitRule((1 + nodes) / 2, (1 - nodes) / 2, weights / 2)


@lru_cache(maxsize=256)
def half_powers(count: int) -> UnitRule:
    """Gauss–Legendre in u with s = sin²(πu/2); exact ends up to half-integer powers.

    Examples:
        >>> rule = half_powers(12)
        >>> round(float(rule.weights @ rule.left**0.5), 12)  # ∫ √s = 2/3
        0.666666666667
    """
    nodes, weights = np.polynomial.legendre.leggauss(count)
    quarter = np.pi / 4
    left, right = np.sin(quarter * (1 + nodes)) ** 2, np.sin(quarter * (1 - nodes)) ** 2
    return UnitRule(left, right, weights * quarter * np.cos(2 * quarter * nodes))


@lru_cache(maxsize=256)
def positive_powers(count: int) -> UnitRule:
    """Gauss–Legendre in u with ds ∝ u⁴(1 - u)⁴ du; any positive powers at the ends.

    Examples:
        >>> rule = positive_powers(32)
        >>> round(float(rule.weights @ rule.left**0.4), 12)  # ∫ s^0.4 = 1/1.4
        0.714285714286
    """
    nodes, weights = np.polynomial.legendre.leggauss(count)
    u, v = (1 + nodes) / 2, (1 - nodes) / 2
    return UnitRule(betainc(5, 5, u), betainc(5, 5, v), weights * 315 * (u * v) ** 4)


@lru_cache(maxsize=256)
def any_powers(count: int) -> UnitRule:
    """Trapezoid in τ with s = 1 / (1 + exp(-π sinh τ)); any integrable power at the ends.

    Examples:
        >>> rule = any_powers(80)
        >>> round(float(rule.weights @ rule.left**-0.6), 12)  # ∫ s^-0.6 = 2.5
        2.5
    """
    # Ends at 1e-130: s^0.1 is then below rounding, which covers powers above -0.9.
    tau, step = np.linspace(-5.25, 5.25, count, retstep=True)
    exponent = np.pi * np.sinh(tau)
    left, right = 1 / (1 + np.exp(-exponent)), 1 / (1 + np.exp(exponent))
    return UnitRule(left, right, step * np.pi * np.cosh(tau) * left * right)


@dataclass(frozen=True, slots=True, eq=False)
class Nodes:
    """Nodes placed on panels.

    Args:
        edge: Index of the nearer edge of each node's panel, of shape ``[m]``.
        offset: Signed distance from that edge, exact also where it is tiny, ``[..., m]``.
        weights: Quadrature weights, ``[..., m]``; zero on panels of zero width.
    """

    edge: NDArray[np.intp]
    offset: Array
    weights: Array

    def of_edges(self, values: Array) -> Array:
        """Give every node the value at its edge; ``values`` has shape ``[..., p + 1]``."""
        return np.asarray(values.take(self.edge, axis=-1))

    def turn(self) -> tuple[Array, Array]:
        """1 − cos and sin of offsets, angles within ±π: exact also where these are tiny."""
        half = np.sin(self.offset / 2)
        square = half * half
        sine = np.sqrt(1 - square)
        sine *= half
        sine += sine
        square += square
        return square, sine

    def on_circle(self, angles: Array, cosines: Array) -> tuple[Array, Array, Array]:
        """Place nodes on panels of angles.

        Args:
            angles: The edges, of shape ``[..., p + 1]``, within [0, π].
            cosines: Their cosines.

        Returns:
            For every node the cosine of its edge, what must be added to that for the node's own
            cosine, exact also where it is tiny, and the node's sine.
        """
        cos_edge, sin_edge = self.of_edges(cosines), self.of_edges(np.sin(angles))
        versine, sine = self.turn()
        step = -(cos_edge * versine + sin_edge * sine)  # cos(e + o) − cos e
        return cos_edge, step, sin_edge - sin_edge * versine + cos_edge * sine

    def on(self, edges: Array) -> tuple[Array, Array]:
        """Return plain positions and weights, for integrands that need no exact offsets."""
        return self.of_edges(edges) + self.offset, self.weights


def place(rule: UnitRule, edges: Array) -> Nodes:
    """Put the rule on every panel between consecutive edges.

    Args:
        rule: Rule on [0, 1] with m nodes.
        edges: Ascending edges, of shape ``[..., p + 1]``; repeated edges make empty panels.

    Returns:
        Nodes of shape ``[..., p·m]``.
    """
    width = (edges[..., 1:] - edges[..., :-1])[..., None]  # [..., p, 1]
    end, distance = rule.nearer
    index = np.arange(edges.shape[-1] - 1)[:, None] + end
    shape = (*edges.shape[:-1], -1)
    return Nodes(
        edge=index.ravel(),
        offset=(width * distance).reshape(shape),
        weights=(width * rule.weights).reshape(shape),
    )
