r"""Batch norm of Gaussian rows, exact for any number of them.

A centred feature x over M rows is Gaussian with covariance :math:`K_c`, eigenvalues
:math:`\lambda_i`. With :math:`S = x^\top x + M\epsilon` and
:math:`S^{-k} = \int_0^\infty t^{k-1} e^{-tS} dt / \Gamma(k)`, all averages follow from

.. math:: E[e^{-tx^\top x}] = \prod_i (1 + 2t\lambda_i)^{-1/2}, \qquad
          v_i(t) = \frac{\lambda_i}{1 + 2t\lambda_i} .

Forward, :math:`E[M x_i^2/S] = M \int E[e^{-tS}]\,v_i\,dt` on the eigenvectors of K_c. Backward,
the Jacobian is :math:`J = \sqrt{M/S}\,(I - xx^\top/S)` and, for a gradient that does not depend
on x,

.. math:: E[J\Pi J] = M\,(c\,\Pi - A\Pi - \Pi A + R)

with :math:`c = E[S^{-1}]`, :math:`A = E[xx^\top S^{-2}]`,
:math:`R = E[xx^\top\Pi xx^\top S^{-3}]`, the last by Wick's theorem. Samples are exchangeable, so
there are two blocks: K_s - K_d, N - 1 times, and K_s + (N - 1)K_d once.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from equipoise.theory.propagation.exchangeable import Exchangeable

Array = NDArray[np.float64]

# The integrands are analytic in log t: the trapezoidal rule is exact to rounding.
_STEP, _LOW, _HIGH = 0.25, -36.0, 60.0
# Eigenvalues below this part of the largest are rounding.
_NEGLIGIBLE = 1e-13
# Up to this many positions eigenvectors are cheap.
_FEW_POSITIONS = 256
# The law of many rows leaves out what is of order τ², so that gradients' terms of order τ need no
# more digits than this: on maps of 32 × 32 positions results differ by 1e-10 from float64's.
_CORRECTION = np.float32


def rows_of(centred: Exchangeable, eps: float) -> FewRows | ManyRows:
    """Rows to be normalised, of a given centred covariance."""
    if len(centred.same) <= _FEW_POSITIONS:
        return FewRows.of(centred, eps)
    return ManyRows(centred, eps)


@dataclass(frozen=True, slots=True, eq=False)
class FewRows:
    """Gaussian rows in the basis of their covariance.

    Args:
        bases: Eigenvectors of the two blocks, as columns, each of shape ``[P, P]``.
        values: Their eigenvalues, each of shape ``[P]``.
        samples: N.
        rows: M.
        eps: ε.
    """

    bases: tuple[Array, Array]
    values: tuple[Array, Array]
    samples: int
    rows: int
    eps: float

    @staticmethod
    def of(centred: Exchangeable, eps: float) -> FewRows:
        """Decompose a centred covariance."""
        N = centred.samples
        found = [np.linalg.eigh((block + block.T) / 2) for block in centred.blocks]
        largest = max(values[-1] for values, _ in found)
        values = [np.where(v > _NEGLIGIBLE * largest, v, 0.0) for v, _ in found]
        return FewRows((found[0][1], found[1][1]), (values[0], values[1]), N, centred.rows, eps)

    @property
    def inverse(self) -> float:
        """E[M/S]."""
        return self.rows * self._integrals(1)[1]

    @property
    def radial_gain(self) -> float:
        r"""What J takes from a squared gradient along x: :math:`E[M(1-(M\epsilon/S)^2)/S]`."""
        first, third = self._integrals(1)[1], self._integrals(3)[0].sum()
        return float(self.rows * (first - (self.rows * self.eps) ** 2 * third))

    def normalised(self) -> Exchangeable:
        """Covariance after batch norm."""
        weights, _, v = self._integrals(1)
        found = [
            basis * (self.rows * (w @ weights)) @ basis.T
            for basis, w in zip(self.bases, v, strict=True)
        ]
        return Exchangeable.of_blocks(found[0], found[1], self.samples)

    def pulled_back(self, gradient: Exchangeable) -> Exchangeable:
        """Second moments of the gradient before batch norm, from those after it; both centred."""
        N, M = self.samples, self.rows
        inside = [u.T @ block @ u for u, block in zip(self.bases, gradient.blocks, strict=True)]
        first, second, v = self._integrals(2)
        third = self._integrals(3)[0]
        copies = (N - 1, 1)
        along = sum(
            n * np.diagonal(block) @ w for n, block, w in zip(copies, inside, v, strict=True)
        )
        found = []
        for basis, block, w in zip(self.bases, inside, v, strict=True):
            A = w @ first
            R = 2 * block * ((w * third) @ w.T) + np.diag(w @ (third * along))
            pulled = M * (second * block - A[:, None] * block - block * A + R)
            found.append(basis @ pulled @ basis.T)
        return Exchangeable.of_blocks(found[0], found[1], N)

    def _integrals(self, power: int) -> tuple[Array, float, tuple[Array, Array]]:
        """Weights of ∫ t^(power-1)/Γ(power) E[e^(-tS)] dt, E[1/S], and v_i of shape [P, T]."""
        copies = (self.samples - 1, 1)
        total = sum(n * v.sum() for n, v in zip(copies, self.values, strict=True))
        u = np.arange(_LOW, _HIGH, _STEP)
        t = np.exp(u) / (total + self.rows * self.eps)
        logs = -t * self.rows * self.eps
        for n, values in zip(copies, self.values, strict=True):
            logs -= n / 2 * np.log1p(2 * values[:, None] * t).sum(0)
        density = np.exp(logs) * t * _STEP
        factorial = (1.0, 1.0, 2.0)[power - 1]
        first, second = (values[:, None] / (1 + 2 * values[:, None] * t) for values in self.values)
        return density * t ** (power - 1) / factorial, float(density.sum()), (first, second)


@dataclass(frozen=True, eq=False)
class ManyRows:
    r"""The same to first order in :math:`\tau = \operatorname{tr}K_c^2/(\operatorname{tr}K_c)^2`.

    Args:
        centred: :math:`K_c`.
        eps: ε.
    """

    centred: Exchangeable
    eps: float

    @property
    def inverse(self) -> float:
        """As :attr:`FewRows.inverse`."""
        variance, signal, tau = self._sizes
        return (1 + 2 * tau * signal**2) / variance

    @property
    def radial_gain(self) -> float:
        """As :attr:`FewRows.radial_gain`."""
        variance, signal, tau = self._sizes
        rest = (self.eps / variance) ** 2
        return (1 - rest + 2 * tau * signal**2 * (1 - 6 * rest)) / variance

    def normalised(self) -> Exchangeable:
        """Covariance after batch norm."""
        alone, together = self._normalised
        return Exchangeable.of_blocks(alone, together, self.centred.samples)

    def pulled_back(self, gradient: Exchangeable) -> Exchangeable:
        """Second moments of the gradient before batch norm, from those after it; both centred."""
        N, M = self.centred.samples, self.centred.rows
        variance, signal, tau = self._sizes
        scale = (1 + 2 * tau * signal**2) / variance
        copies = (N - 1, 1)
        pairs = list(zip(self._normalised, gradient.blocks, strict=True))
        along = sum(n * np.vdot(A, G) for n, (A, G) in zip(copies, pairs, strict=True)) / M**2
        found = []
        for A, G in pairs:
            size = np.abs(G).max(initial=1e-300)
            a, g = (A / M).astype(_CORRECTION), (G / size).astype(_CORRECTION)
            ga = g @ a
            mixed = (2 * (a @ ga) - ga - ga.T) * size
            found.append((G + along * A + mixed) * scale)
        return Exchangeable.of_blocks(found[0], found[1], N)

    @cached_property
    def _normalised(self) -> tuple[Array, Array]:
        """The two blocks after batch norm."""
        M = self.centred.rows
        variance, signal, tau = self._sizes
        linear, square = (1 + 2 * tau * signal**2) / variance, -2 / (M * variance**2)
        first, second = (linear * K + square * (K @ K.T) for K in self.centred.blocks)
        return first, second

    @cached_property
    def _sizes(self) -> tuple[float, float, float]:
        """Mean variance with ε, its part that is signal, and τ."""
        K = self.centred
        trace = K.mean_diagonal
        return trace + self.eps, trace / (trace + self.eps), K.dot(K) / (K.rows * trace) ** 2
