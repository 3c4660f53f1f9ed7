r"""The source's integrals over normalised samples, in its own coordinates and densities.

Slow and literal: Theorem 7's double integral over the ellipse Z > 0, and for ε > 0 one more
integral over x ~ χ². Double exponential panels end wherever an integrand may be singular; they
carry distances to both ends, so that Z is a product and never a difference. Everything runs in
``np.longdouble``.

Symbols: B: batch size, n = B - 1, z1, z2: two normalised samples, R: radius, x = ‖Gh‖²/κ, and

.. math:: p(z_1, z_2) = \frac{B-3}{2\pi\sqrt{B(B-2)}}
          \Big(\frac{Z}{B(B-2)}\Big)^{(B-5)/2}, \quad
          Z = B(B-2) - B(z_1^2+z_2^2) + (z_1-z_2)^2 .
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr

Real = np.longdouble
Array = NDArray[np.longdouble]
PI = 4 * np.arctan(Real(1))


@dataclass(frozen=True)
class Function:
    """An activation as the reference sees it: values, slopes and where they are not analytic."""

    value: Callable[[Array], Array]
    slope: Callable[[Array], Array]
    kinks: tuple[float, ...] = ()

    def after(self, gamma: float, beta: float) -> Function:
        """f(x) = φ(γx + β)."""
        g, b = Real(gamma), Real(beta)
        return Function(
            lambda x: self.value(g * x + b),
            lambda x: g * self.slope(g * x + b),
            tuple((Real(k) - b) / g for k in self.kinks),
        )


def _normal_density(x: Array) -> Array:
    return np.exp(-x * x / 2) / np.sqrt(2 * PI)


def _normal_cdf(x: Array) -> Array:
    return Real(1) * ndtr(np.asarray(x, dtype=np.float64))


RELU_3_2 = Function(  # max(x, 0)^1.5, by square roots, which are faster than powers
    lambda x: np.maximum(x, 0) * np.sqrt(np.maximum(x, 0)),
    lambda x: Real(3) / 2 * np.sqrt(np.maximum(x, 0)),
    (0.0,),
)

FUNCTIONS = {
    "identity": Function(lambda x: x, np.ones_like),
    "square": Function(lambda x: x * x, lambda x: 2 * x),
    "tanh": Function(np.tanh, lambda x: 1 / np.cosh(x) ** 2),
    "sin": Function(np.sin, np.cos),
    "gelu": Function(
        lambda x: x * _normal_cdf(x), lambda x: _normal_cdf(x) + x * _normal_density(x)
    ),
    "silu": Function(
        lambda x: x / (1 + np.exp(-x)),
        lambda x: (1 + np.exp(-x) + x * np.exp(-x)) / (1 + np.exp(-x)) ** 2,
    ),
    "relu": Function(lambda x: np.maximum(x, 0), lambda x: Real(1) * (x > 0), (0.0,)),
    "hardtanh": Function(
        lambda x: np.clip(x, -1, 1), lambda x: Real(1) * (np.abs(x) < 1), (-1.0, 1.0)
    ),
    "elu(1)": Function(
        lambda x: np.where(x > 0, x, np.expm1(np.minimum(x, 0))),
        lambda x: np.where(x > 0, 1, np.exp(np.minimum(x, 0))),
        (0.0,),
    ),
    "alpha_relu(1.5)": RELU_3_2,
}


Rule = tuple[Array, Array, Array]


@lru_cache(maxsize=16)
def tanh_sinh(count: int) -> Rule:
    """Distances to either end of [0, 1] and weights of the double exponential rule.

    It ends at distances of 1e-42, where a square root is below rounding.
    """
    tau = np.linspace(Real(-4.12), Real(4.12), count)
    decay = np.exp(-PI * np.sinh(np.abs(tau)))
    near, far = decay / (1 + decay), 1 / (1 + decay)
    weights = (tau[1] - tau[0]) * PI * np.cosh(tau) * near * far
    return np.where(tau < 0, near, far), np.where(tau < 0, far, near), weights


@lru_cache(maxsize=16)
def gauss_legendre(count: int) -> Rule:
    x = np.polynomial.legendre.leggauss(count)[0].astype(Real)
    for _ in range(2):  # Newton's method on P_count lifts float64 nodes to longdouble
        before, now = np.ones_like(x), x
        for k in range(2, count + 1):
            before, now = now, ((2 * k - 1) * x * now - (k - 1) * before) / k
        slope = count * (before - x * now) / (1 - x * x)
        x = x - now / slope
    return (1 + x) / 2, (1 - x) / 2, 1 / ((1 - x * x) * slope**2)


@dataclass(frozen=True)
class Panels:
    """Nodes between ascending edges, with distances to the first and the last edge."""

    position: Array
    above_first: Array
    below_last: Array
    weights: Array


def place(edges: Array, rule: Rule) -> Panels:
    """Put the rule between consecutive edges, of shape ``[..., p + 1]``."""
    left, right, weights = rule
    a, b = edges[..., :-1, None], edges[..., 1:, None]
    first, last = edges[..., :1, None], edges[..., -1:, None]
    shape = (*edges.shape[:-1], -1)
    position = np.where(left < right, a + (b - a) * left, b - (b - a) * right)
    return Panels(
        position.reshape(shape),
        ((a - first) + (b - a) * left).reshape(shape),
        ((last - b) + (b - a) * right).reshape(shape),
        ((b - a) * weights).reshape(shape),
    )


@dataclass(frozen=True)
class PairLaw:
    """The joint density p(z1, z2) on nodes; both of shape ``[outer, inner]``."""

    z1: Array
    z2: Array
    weights: Array

    def expect(self, g: Callable[[Array, Array], Array]) -> Array:
        """E[g(z1, z2)]."""
        return (self.weights * g(self.z1, self.z2)).sum()


def half_power(x: Array, k: int) -> Array:
    """x^(k/2) by one root and products, where a long double's power takes 17 times as long."""
    if k < 0:
        return 1 / half_power(x, -k)
    result = np.sqrt(x) if k % 2 else np.ones_like(x)
    for _ in range(k // 2):
        result = result * x
    return result


def pair_law(B: int, cuts: Iterable[float] = (), count: int = 80) -> PairLaw:
    """Place nodes on the ellipse Z > 0, cut along z1 = c and z2 = c for every cut c.

    At a given z1, Z vanishes at z2 = (-z1 ± √(B(B - 2)(n - z1²))) / n.
    """
    n, N = Real(B - 1), Real(B) * (B - 2)
    end = np.sqrt(n)
    cuts = np.sort(np.array([c for c in cuts if abs(c) < end], dtype=Real))
    swing = np.sqrt(N * (n - cuts**2))
    tangent = np.concatenate([(-cuts + swing) / n, (-cuts - swing) / n])
    outer = place(np.unique(np.concatenate([[-end], cuts, tangent, [end]])), tanh_sinh(count))

    z1 = outer.position[:, None]
    swing = np.sqrt(N * outer.above_first * outer.below_last)[:, None]
    low, high = (-z1 - swing) / n, (-z1 + swing) / n
    inner = place(np.concatenate([low, np.clip(cuts, low, high), high], 1), tanh_sinh(count))
    Z = n * inner.above_first * inner.below_last
    weights = outer.weights[:, None] * inner.weights
    Z = np.where(weights > 0, Z, N)  # panels of zero width lie on Z = 0
    density = Real(B - 3) / (2 * PI * np.sqrt(N)) * half_power(Z / N, B - 5)
    return PairLaw(z1, inner.position, weights * density)


@lru_cache(maxsize=16)
def angle_law(B: int, count: int = 150) -> PairLaw:
    """The same law on nodes in the two angles, for functions without kinks.

    z1 = √n cos θ and z2 = √n(-cos θ/n + √(1 - 1/n²) sin θ cos η) have the density
    (B - 3)/(2π) sin^(B-3) θ sin^(B-4) η.
    """
    n = Real(B - 1)
    panels = place(np.array([Real(0), PI]), gauss_legendre(count))
    theta, eta = panels.position[:, None], panels.position
    density = (B - 3) / (2 * PI) * np.sin(theta) ** (B - 3) * np.sin(eta) ** (B - 4)
    z1 = np.sqrt(n) * np.cos(theta)
    z2 = -z1 / n + np.sqrt(n - 1 / n) * np.sin(theta) * np.cos(eta)
    return PairLaw(z1, z2, panels.weights[:, None] * panels.weights * density)


def law_of(f: Function, B: int, fine: bool = True) -> PairLaw:
    """Suit the nodes to the function; two finenesses tell how exact the reference is."""
    if f.kinks:
        return pair_law(B, f.kinks, 100 if fine else 80)
    return angle_law(B, 180 if fine else 130)


def kappa(f: Function, law: PairLaw) -> Array:
    """κ = E[φ(z1)² − φ(z1)φ(z2)], as half the mean square of a difference."""
    return (law.weights * (f.value(law.z1) - f.value(law.z2)) ** 2).sum() / 2


def theorem_7(f: Function, B: int, law: PairLaw) -> Array:
    """λ_G = E[(B − 1 − z1²)φ′(z1)² + (1 + z1z2)φ′(z1)φ′(z2)] / (κ(B − 3))."""
    z1, z2, one, two = law.z1, law.z2, f.slope(law.z1), f.slope(law.z2)
    inner = (B - 1 - z1**2) * one**2 + (1 + z1 * z2) * one * two
    return (law.weights * inner).sum() / (kappa(f, law) * (B - 3))


def _centred(f: Function, law: PairLaw) -> tuple[Array, Array]:
    """Values less their mean, which leaves every eigenvalue as it is."""
    one, two = f.value(law.z1), f.value(law.z2)
    mean = (law.weights * one).sum()
    return one - mean, two - mean


def forward_l(f: Function, B: int, law: PairLaw) -> Array:
    """Forward eigenvalue along L at ε = 0."""
    z1, (one, two) = law.z1, _centred(f, law)
    inner = one**2 * (z1**2 - 1) - Real(2 * (B - 1)) / (B - 2) * one * two * (z1**2 - 1)
    return (law.weights * inner).sum() / (2 * kappa(f, law))


def forward_m(f: Function, B: int, law: PairLaw) -> Array:
    """Forward eigenvalue along M at ε = 0."""
    z1, z2, (one, two) = law.z1, law.z2, _centred(f, law)
    total = (z1 + z2) ** 2
    inner = z1 * z2 + total / Real(B - 2)
    inner = inner + (total + z1**2 + z2**2 - B) / Real((B - 2) * (B - 3))
    average = (law.weights * one * two * inner).sum()
    return Real(B - 1) / B * average / kappa(f, law)


@dataclass(frozen=True)
class RadialSolution:
    """The fixed point and the rate at ε > 0."""

    q: Array
    c: Array
    kappa: Array
    rate: Array


class Radial:
    """The nested integral at ε > 0, over u = log x and the two samples.

    κ is found by Newton's method on F(κ) = κ, with F′ from its own integral.
    """

    def __init__(self, f: Function, B: int, eps: float, count: int = 60) -> None:
        self.f, self.B, self.eps, self.count = f, B, Real(eps), count
        self.moving = any(k != 0 for k in f.kinks)  # kinks of f(R·) then depend on R
        self.still_law = pair_law(B, f.kinks, count) if f.kinks else angle_law(B, count)

    def near(self, kappa: float) -> RadialSolution:
        """The solution, from a guess so good that one step of Newton's method reaches it."""
        F, slope, q, qc, rate = self.integrals(Real(kappa))
        step = (F - kappa) / (1 - slope)
        return RadialSolution(q, qc / q, kappa + step, rate)

    def integrals(self, kappa: Array) -> tuple[Array, ...]:
        """F(κ), F′(κ), q, qc and λ_G at a given κ."""
        B, n, eps = self.B, self.B - 1, self.eps
        u, weights = self.log_x(kappa)
        x = np.exp(u)
        weights = weights * np.exp(n * u / 2 - x / 2)
        weights = weights / weights.sum()
        R2 = kappa * x / (kappa * x + B * eps)
        s2, tau = kappa * x / B + eps, 1 - (1 - R2) ** 2
        rows = [self.averages(np.sqrt(r2), t) for r2, t in zip(R2, tau, strict=True)]
        square, kappa_f, inner = np.array(rows).T
        F = weights @ kappa_f
        slope = weights @ ((x - n) * kappa_f) / (2 * kappa)
        return F, slope, weights @ square, weights @ (square - kappa_f), weights @ (inner / s2) / B

    def averages(self, R: Array, tau: Array) -> tuple[Array, ...]:
        """E[f(Rz1)²], κ_f(R) and what s⁻² multiplies in λ_G."""
        f, B = self.f, self.B
        kinks = [k / R for k in f.kinks]
        law = pair_law(B, kinks, self.count) if self.moving else self.still_law
        z1, z2, w = law.z1, law.z2, law.weights
        a, b, D1, D2 = f.value(R * z1), f.value(R * z2), f.slope(R * z1), f.slope(R * z2)
        inner = (B - 1 - tau * z1**2) * D1**2 + (1 + tau * z1 * z2) * D1 * D2
        return (w * a * a).sum(), (w * (a - b) ** 2).sum() / 2, (w * inner).sum()

    def log_x(self, kappa: Array) -> tuple[Array, Array]:
        """Nodes and weights in u, cut where a kink or a pair of kinks leaves the ellipse."""
        B, n = self.B, self.B - 1
        low = 2 / Real(n) * (min(np.log(self.eps), 0) - 44)
        high = np.log(n + 16 * np.sqrt(2 * Real(n)) + 60)
        pairs = [(a, b) for a in self.f.kinks for b in self.f.kinks]
        squares = [k * k / Real(n) for k in self.f.kinks]
        squares += [(B * (a * a + b * b) - (a - b) ** 2) / Real(B * (B - 2)) for a, b in pairs]
        breaks = [np.log(B * self.eps / kappa * r2 / (1 - r2)) for r2 in squares if 0 < r2 < 1]
        edges = np.unique(np.array([low, *(c for c in breaks if low < c < high), high]))
        parts = []
        # The density is narrower in larger batches.
        longest = 1.5 if breaks or B > 8 else 2.5
        for a, b in pairwise(edges):
            fine = np.linspace(a, b, max(4, int(np.ceil(float(b - a) / longest)) + 1))
            rules = [gauss_legendre(20)] * (len(fine) - 1)
            if breaks:  # half-integer powers, next to the breaks only
                rules[0] = rules[-1] = tanh_sinh(self.count)
            parts += [place(np.array(ab), r) for ab, r in zip(pairwise(fine), rules, strict=True)]
        return (
            np.concatenate([part.position for part in parts]),
            np.concatenate([part.weights for part in parts]),
        )
