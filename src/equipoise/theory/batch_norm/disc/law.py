r"""Where two outputs of one batch lie at ε > 0: an integral over the radius of their disc.

The centred pre-activations of a batch are a normal vector of n coordinates with squared norm x,
and two outputs are its projection p onto a plane, divided by :math:`\sqrt{x + c}` with
:math:`c = B\varepsilon/\kappa`. With :math:`\rho = |p|/\sqrt{x + c} = \tanh u`,
:math:`b = c\cosh^2 u` and :math:`z\sim\chi^2_{B-3}`,

.. math:: E[h] = \frac1{2\pi}\iint \tanh u\,\operatorname{sech}^{B-3}u\;
          e^{-\frac c2\sinh^2u}\,E_z[(z + b)\,h]\,du\,d\varphi, \qquad x + c = z + b,

so whatever depends on x alone is averaged over z in closed form, and averages over circles
(:mod:`~equipoise.theory.batch_norm.disc.circles`) do not depend on κ at all.

Symbols: n = B - 1, ν = B - 3, c, b: as above, s: c sinh² u, so that x = z + s.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from equipoise.theory.batch_norm.averages.reach import exponent
from equipoise.theory.batch_norm.disc import circles as of
from equipoise.theory.batch_norm.disc.over_z import averages_over_z

Array = NDArray[np.float64]

# Points up to which numbers are combined one by one.
_FEW = 6


@dataclass(frozen=True, eq=False)
class DiscLaw:
    """Nodes in u, weighted for any c near the one that they were placed for.

    Methods take c of many fixed points at once, of shape ``[points]``.

    Args:
        batch_size: B.
        c: Bε/κ that they were placed for.
        missed: What nodes may miss of values and slopes.
        u: Nodes, of shape ``[radii]``.
        measure: Their quadrature weights in u.
        averages: Averages over the circles, of shape ``[19, radii]``.
    """

    batch_size: int
    c: float
    missed: tuple[float, float]
    u: Array
    measure: Array
    averages: Array

    def serves(self, c: Array, room: float) -> NDArray[np.bool_]:
        """Whether log c is within room of what nodes were placed for, or c moves no weight."""
        free = np.maximum(c, self.c) * self._density.farthest <= 1
        return np.asarray((np.abs(np.log(c / self.c)) <= room) | free)

    @cached_property
    def _density(self) -> Density:
        return Density(self.batch_size, self.u)

    def base(self, c: Array) -> tuple[Array, Array, Array]:
        """Weights of z + b = 1, normalised; b; and s: each of shape ``[points, radii]``."""
        weight, b, s = self._density(c[:, None])
        weight *= self.measure
        total = (weight * (self.batch_size - 3 + b)).sum(1, keepdims=True)
        return weight / total, b, s

    def map(self, c: Array) -> tuple[Array, Array]:
        r"""F(κ)/σ_w², and its logarithmic slope :math:`d\log F/d\log\kappa`."""
        return self._map(*self.base(c))

    def _map(self, base: Array, b: Array, s: Array) -> tuple[Array, Array]:
        total = b + (self.batch_size - 3)
        part = base * total
        part *= self.averages[of.GAP]
        value = part.sum(1)
        moved = (part * (s / 2 - b / total)).sum(1)
        # The nodes' own normalisation moves by rounding and truncation alone.
        return value, moved / np.where(value == 0, 1, value)

    def mean_slope(self, c: Array) -> Array:
        """E[D²] over one sample."""
        base, b, _ = self.base(c)
        return np.asarray((base * (self.batch_size - 3 + b)) @ self.averages[of.SLOPE])

    def gradients(self, kappa: Array, c: Array) -> tuple[Array, Array]:
        """λ_G/σ_w², split into averages over one sample and over two.

        Args:
            kappa: κ, of shape ``[points]``.
            c: Bε/κ.
        """
        base, b, s = self.base(c)
        inverse, _ = averages_over_z(self.batch_size - 3, b, s)
        M = self.averages[of.SLOPE :] / kappa[:, None, None]
        weights = np.stack([base, base * inverse], 1)  # [points, 2, radii]
        s2, s2R2 = np.moveaxis(M @ weights.swapaxes(1, 2), -1, 0).swapaxes(1, 2)
        return _along_g(self.batch_size, s2, s2R2, of.SLOPE)

    def left_out(self, gap: Array, slope: Array) -> tuple[Array, Array]:
        """Relative errors of averages of (f₁ − f₂)²/2 and of D², for what nodes may miss.

        A tenth of what misses would do that all add up: rules with that many nodes integrate
        most of what a polynomial of degree 16 leaves out.
        """
        slope = np.maximum(slope, np.finfo(float).tiny)
        return 0.8 * self.missed[0] / np.sqrt(gap), 0.6 * self.missed[1] / np.sqrt(slope)

    def sums(self, c: Array) -> Array:
        """The averages that :func:`numbers` combines, at every c, of shape ``[99, points]``.

        First averages over all circles, 19 each: as they are; with weight 1/s² and with R²/s², up
        to a factor B/κ; with weight x and with xR². Then E[x], E[xR²ρ²], E[√(x + c) y f], and the
        logarithmic slope of F.
        """
        nu = self.batch_size - 3
        base, b, s = self.base(c)
        inverse, amplitude = averages_over_z(nu, b, s)
        x = base * (nu * (nu + 2) + nu * (b + s) + b * s)
        xR = base * (nu * (nu + 2) + 2 * nu * b + b * b)
        weights = np.concatenate([base * (nu + b), base, base * inverse, x, xR])
        averaged = (self.averages @ weights.T).reshape(of.COUNT, 5, -1).swapaxes(0, 1)
        cross = (base * amplitude) @ self.averages[of.FIRST]
        rest = x.sum(1), xR @ np.tanh(self.u) ** 2, cross, self._map(base, b, s)[1]
        return np.concatenate([averaged.reshape(5 * of.COUNT, -1), np.array(rest)])


def numbers(
    batch_size: int, sums: Array, kappa: Array, variance: Array, shared: Array, at_zero: float
) -> Array:
    """All numbers in the order of :class:`~.fixed_point.solution.Numbers`.

    Args:
        batch_size: B.
        sums: Of :meth:`DiscLaw.sums`.
        kappa: κ, of shape ``[points]`` as all others.
        variance: σ_w².
        shared: σ_b².
        at_zero: f(0), which the averages' values are less.

    Returns:
        The numbers, of shape ``[11, points]``.
    """
    if kappa.size > _FEW or not kappa.all():
        return np.array(_numbers(batch_size, list(sums), kappa, variance, shared, at_zero))
    # Numbers of Python take a third of the time of short arrays.
    points = zip(*(part.T.tolist() for part in (sums, kappa, variance, shared)), strict=True)
    return np.array([_numbers(batch_size, some, k, w, b, at_zero) for some, k, w, b in points]).T


def _numbers(
    batch_size: int, sums: list[Any], kappa: Any, variance: Any, shared: Any, at_zero: float
) -> list[Any]:
    """The same where points are arrays or numbers; squares are products, which raise nothing."""
    B, n = batch_size, batch_size - 1
    prob, s2, s2R2, x, xR = (sums[k * of.COUNT : (k + 1) * of.COUNT] for k in range(5))
    total, along, cross, slope = sums[5 * of.COUNT :]
    scale = B / kappa
    s2, s2R2 = [scale * part for part in s2], [scale * part for part in s2R2]
    squares, product = n / 2 * along, -along / 2
    shift = prob[of.MEAN]  # values less their mean
    mean = at_zero + shift
    q = variance * (prob[of.OWN] + 2 * at_zero * shift + at_zero**2) + shared
    along_g = sum(_along_g(B, s2, s2R2))

    both, ab, aa = s2[of.SLOPES], s2[of.SLOPES_12] / B, s2[of.SLOPES_11] / B
    a3b, a2b2 = s2[of.SLOPES_31] / B**2, s2[of.SLOPES_22] / B**2
    one, a2, a4 = s2[of.SLOPE], s2[of.SLOPE_2] / B, s2[of.SLOPE_4] / B**2
    a2R, abR = s2R2[of.SLOPE_2] / B, s2R2[of.SLOPES_12] / B
    own = (n / B) ** 2 * one - 2 * n / B * a2 + a4
    own -= one / B**2 - 2 * a2 / (B * n) - a4 / n + a2R / n
    others = -n / B**2 * both + (aa - n * ab) / B + a3b
    others -= both / B**2 - 2 * (aa + ab) / (B * (B - 2)) - 2 * a3b / (B - 2) + abR / (B - 2)
    along_l = own - 2 * others
    along_m = both - 2 * (aa + (aa + ab) / (B - 2))
    third = 2 * (a3b + a2b2)
    along_m += 2 * (a2b2 + third / (B - 2) + (third + 2 * a3b - abR) / ((B - 2) * (B - 3)))

    moved = shift * shift
    own_x = x[of.OWN] - 2 * shift * x[of.MEAN] + moved * total
    own_yy = xR[of.OWN_YY] - 2 * shift * xR[of.MEAN_11] + moved * squares
    pair_x = x[of.PAIR] - 2 * shift * x[of.MEAN] + moved * total
    pair_11 = xR[of.PAIR_11] - 2 * shift * xR[of.MEAN_BOTH] + moved * squares
    pair_12 = xR[of.PAIR_12] - 2 * shift * xR[of.MEAN_12] + moved * product
    up_l = own_yy - own_x - 2 * n / (B - 2) * (pair_11 - pair_x)
    summed = 2 * pair_11 + 2 * pair_12
    up_m = pair_12 + summed / (B - 2) + (summed + 2 * pair_11) / ((B - 2) * (B - 3))
    up_m -= B / ((B - 2) * (B - 3)) * pair_x
    gap = prob[of.GAP]
    return [
        q,
        q - variance * gap,
        kappa,
        variance / B * along_g,
        variance * along_l,
        variance * along_m,
        variance * gap / kappa * slope,
        variance / (2 * kappa * n) * up_l,
        variance / (B * kappa) * up_m,
        variance * mean * mean + shared,
        variance * B / (kappa * n * n) * (cross * cross),
    ]


class Density:
    """The density of u where z + b = 1, up to a constant, for any c.

    Args:
        batch_size: B.
        u: Nodes.
    """

    def __init__(self, batch_size: int, u: Array) -> None:
        self.sinh2, self._tanh = np.sinh(u) ** 2, np.tanh(u)
        self.farthest = self.sinh2.max()
        self._decay = exponent(batch_size, self.sinh2)

    def __call__(self, c: float | Array) -> tuple[Array, Array, Array]:
        """The density; b; and s."""
        s = c * self.sinh2
        return self._tanh * np.exp(-self._decay - s / 2), c + s, s


def _along_g(batch_size: int, s2: Any, s2R2: Any, first: int = 0) -> tuple[Any, Any]:
    """Bλ_G/σ_w² of one sample and of two, from averages with 1/s² and R²/s² from one on."""
    one, square, both, product = (
        at - first for at in (of.SLOPE, of.SLOPE_2, of.SLOPES, of.SLOPES_12)
    )
    own = (batch_size - 1) * s2[one] - 2 * s2[square] + s2R2[square]
    return own, s2[both] + 2 * s2[product] - s2R2[product]
