r"""Averages over one and two normalised samples, from which the BSB1 theory is built.

Deep in a network :math:`x^l = \phi(\gamma\,\mathrm{BN}(W^l x^{l-1}) + \beta)` a batch of
pre-activations is, up to a radius R, a uniform random direction w (see
:mod:`equipoise.numerics.quadrature.gegenbauer`), so every quantity is a combination of

.. math:: E[w_1 f_1], \quad E[w_1^p\,(f_1^{(o)})^2] \quad\text{and}\quad
          E[w_1^i f^{(o)}_1\; w_2^j f^{(o)}_2], \qquad f^{(o)}_m = f^{(o)}(R w_m),

with f(x) = φ(γx + β), o = 0 (values, less their mean) or 1 (slopes, with respect to the argument
of f). Two modules compute them; both vectorise over R:

* :mod:`polynomials <equipoise.theory.batch_norm.averages.polynomials>` expands in ψ_k; a
  two-sample average is a sum over :math:`\rho_k`, so integrals are one-dimensional. For smooth f,
  and for kinks at larger B.
* :mod:`angles <equipoise.theory.batch_norm.averages.angles>` integrates over two angles, split at
  every kink. For kinks at small B, where :math:`\rho_k` decays too slowly.

:mod:`compute <equipoise.theory.batch_norm.averages.compute>` chooses between them.

Symbols: B: batch size, n = B - 1, w: normalised sample, R: radius, 1 at ε = 0.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from equipoise.theory.activation.catalogue import Activation
from equipoise.theory.activation.unseen import unseen
from equipoise.theory.batch_norm.setting import Setting

Array = NDArray[np.float64]

VALUES, SLOPES = 0, 1
# Density of one sample at its centre, at most.
_PEAK, _UNIT = 0.4, float(np.finfo(float).eps)
SQUARE_POWERS, PAIR_POWERS = 5, 4
# A kink just out of reach still slows convergence; one this far out does not.
_NEARBY = 1.25


@dataclass(frozen=True, eq=False)
class Response:
    """What follows the normalisation: f(x) = φ(γx + β), with γ > 0.

    The law of w is symmetric, so a negative γ is the same problem as its magnitude.
    """

    activation: Activation
    gamma: float
    beta: float

    @classmethod
    def of(cls, setting: Setting) -> Response:
        """What follows the normalisation in a setting."""
        return cls(setting.activation, setting.gamma, setting.beta)

    def within(self, batch_size: int) -> Response:
        """Drop kinks and turns that no normalised sample comes near: f is smooth for the rest."""
        reach = _NEARBY * math.sqrt(batch_size - 1) * self.gamma
        phi = self.activation
        kinks = tuple(k for k in phi.kinks if abs(k.at - self.beta) < reach)
        turns = tuple(t for t in phi.turns if abs(t - self.beta) < reach)
        if (len(kinks), len(turns)) == (len(phi.kinks), len(phi.turns)):
            return self
        return replace(self, activation=replace(phi, kinks=kinks, turns=turns))

    @cached_property
    def kinks(self) -> Array:
        """Kinks of φ, ascending, in its own argument."""
        return np.array(sorted(kink.at for kink in self.activation.kinks))

    @cached_property
    def powers(self) -> Array:
        """Those kinks that are fractional powers, ascending."""
        return np.array(sorted(kink.at for kink in self.activation.kinks if kink.power))

    @cached_property
    def has_infinite_slopes(self) -> bool:
        """Whether slopes grow without bound at some fractional power."""
        for kink in self.activation.kinks:
            if kink.power:
                far = max(1e-4, 1e-4 * abs(kink.at))
                for side in (-1.0, 1.0):
                    _, slopes = self.activation(kink.at + side * far * np.array([1e-6, 1.0]))
                    if abs(slopes[0]) > 1.001 * abs(slopes[1]):
                        return True
        return False

    @cached_property
    def has_powers(self) -> bool:
        """Whether some kink is a fractional power."""
        return bool(self.powers.size)

    @cached_property
    def is_homogeneous(self) -> bool:
        """Whether f(Rx) is a power of R times f(x)."""
        return self.activation.homogeneity is not None and self.beta == 0

    @property
    def is_polynomial(self) -> bool:
        """Whether f is known to be a polynomial of low degree between its kinks."""
        form = self.activation.on_arrays
        return form is not None and form.is_polynomial

    @cached_property
    def at_zero(self) -> float:
        """f(0) = φ(β)."""
        return float(self.activation.values(np.array([self.beta]))[0])

    def __call__(self, argument: Array) -> tuple[Array, Array]:
        """Return f and f′ where φ's argument γx + β has the given values."""
        values, slopes = self.activation(argument)
        if self.has_powers:
            # The slope may be infinite on a kink, where a node falls only by underflow.
            slopes = np.where(np.isin(argument, self.kinks), 0.0, slopes)
        return values, self.gamma * slopes


def unseen_slopes(f: Response, batch_size: int, radii: Array) -> Array:
    """What averages E[f′²] over one sample may leave out within rounding of fractional powers.

    Args:
        f: The response.
        batch_size: B.
        radii: R, of any shape.
    """
    found, scale = np.zeros_like(radii), f.gamma * radii * math.sqrt(batch_size - 1)
    farthest = scale.max(initial=0.0)
    if all(abs(kink.at - f.beta) > farthest for kink in f.activation.kinks):
        return found
    for part in unseen(f.activation):
        # Next to the farthest sample the density at B = 4 to 6 has no more than this.
        part2 = ((part.at - f.beta) / scale) ** 2
        density = np.exp((batch_size - 4) / 2 * np.log1p(-np.minimum(part2, 1 - _UNIT)))
        found += np.where(part2 <= 1, part.squares * density, 0)
    return np.asarray(_PEAK * f.gamma / radii * found)


@dataclass(frozen=True, slots=True, eq=False)
class Averages:
    """Averages over one and two samples, at each radius.

    Args:
        mean: E[f], of shape ``[radii]``.
        first: E[w f], of shape ``[radii]``.
        squares: :math:`E[w^p (f^{(o)})^2]`, of shape ``[2, 5, radii]``, indexed o, p.
        pairs: :math:`E[w_1^i f_1^{(o)} w_2^j f_2^{(o)}]`, of shape ``[2, 4, 4, radii]``.
        truncation: Bound on the relative error of ``pairs`` from cutting the series.
        method: How they were computed.
    """

    mean: Array
    first: Array
    squares: Array
    pairs: Array
    truncation: float
    method: str

    def square(self, order: int, power: int) -> Array:
        """Return E[w^power · f²] of the values (order 0) or slopes (order 1)."""
        found: Array = self.squares[order, power]
        return found

    def pair(self, order: int, i: int, j: int) -> Array:
        """Return E[w₁^i f₁ w₂^j f₂] of the values (order 0) or slopes (order 1)."""
        found: Array = self.pairs[order, i, j]
        return found

    def at_first(self) -> Averages:
        """The same as numbers, where there is one radius."""
        return replace(
            self,
            mean=self.mean[0],
            first=self.first[0],
            squares=self.squares[..., 0],
            pairs=self.pairs[..., 0],
        )

    @property
    def kappa(self) -> Array:
        """κ_f = E[f₁² − f₁f₂], how far two samples stay apart."""
        return np.asarray(self.square(VALUES, 0) - self.pair(VALUES, 0, 0))


@dataclass(frozen=True, slots=True, eq=False)
class Plan:
    """Averages that wait for the response at their nodes.

    Args:
        arguments: φ's arguments there, of shape ``[m]``.
        averages: Makes averages of f and f′ at these, each of shape ``[m]``.
    """

    arguments: Array
    averages: Callable[[Array, Array], Averages]


def carried_out(f: Response, plans: Sequence[Plan]) -> list[Averages]:
    """Averages of every plan; φ is called once, which a user's function takes long for."""
    if len(plans) == 1:
        return [plans[0].averages(*f(plans[0].arguments))]
    values, slopes = f(np.concatenate([plan.arguments for plan in plans]))
    ends = np.cumsum([plan.arguments.size for plan in plans])[:-1]
    parts = zip(plans, np.split(values, ends), np.split(slopes, ends), strict=True)
    return [plan.averages(*both) for plan, *both in parts]


def powers(w: Array, count: int) -> Array:
    """Stack 1, w, …, w^(count-1) along a new first axis."""
    found = np.ones((count, *w.shape))
    for p in range(1, count):
        np.multiply(found[p - 1], w, out=found[p])
    return found
