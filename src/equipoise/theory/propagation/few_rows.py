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

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from equipoise.theory.propagation.exchangeable import Exchangeable

Array = NDArray[np.float64]

# The integrands are analytic in log t: the trapezoidal rule is exact to rounding.
_STEP, _LOW, _HIGH = 0.25, -36.0, 60.0
# Nodes that add less than this part are left out.
_ROUNDING = 1e-18
# Eigenvalues below this part of the largest are rounding.
_NEGLIGIBLE = 1e-13
# Up to so many positions eigenvectors are cheap; up to so many more they are found unless rows are
# so many that the law of many rows, right up to 12 τ², is right to 1e-4.
_FEW_POSITIONS, _MORE_POSITIONS, _SMALL_TAU = 32, 256, 3e-3
# The law of many rows leaves out what is of order τ², so that terms of order τ need no more digits
# than this: on maps of 32 × 32 positions results differ by 1e-9 from float64's.
_CORRECTION = np.float32


def steady_rows_of(
    centred: Exchangeable, eps: float, steady: float
) -> FewRows | ManyRows | SteadyRows:
    """Rows to be normalised, of whose squared variance a part is the same in every draw."""
    rows = rows_of(centred, eps)
    if not steady:
        return rows
    variance = centred.mean_diagonal + eps
    return SteadyRows(rows, ConstantRows(centred * (1 / variance), eps, variance), steady)


def rows_of(centred: Exchangeable, eps: float) -> FewRows | ManyRows:
    """Rows to be normalised, of a given centred covariance."""
    positions = len(centred.same)
    if positions > _MORE_POSITIONS or (
        positions > _FEW_POSITIONS and tau_of(centred) < _SMALL_TAU
    ):
        return ManyRows.of(centred, eps)
    return FewRows.of(centred, eps)


def tau_of(centred: Exchangeable) -> float:
    r"""τ, one over the number of rows that are independent."""
    trace = centred.rows * centred.mean_diagonal
    return centred.dot(centred) / trace**2 if trace > 0 else 1.0


@dataclass(frozen=True, eq=False)
class ConstantRows:
    r"""The same of rows whose sum of squares is its average in every draw.

    Products of four rows are those of Gaussian ones over :math:`1 + 2\tau`, as on a sphere.

    Args:
        normal: Covariance after batch norm.
        eps: ε.
        variance: The mean variance before, ε included.
    """

    normal: Exchangeable
    eps: float
    variance: float

    @property
    def inverse(self) -> float:
        """As :attr:`FewRows.inverse`."""
        return 1 / self.variance

    @property
    def radial_gain(self) -> float:
        """As :attr:`FewRows.radial_gain`."""
        return (1 - (self.eps / self.variance) ** 2) / self.variance

    def normalised(self) -> Exchangeable:
        """Covariance after batch norm."""
        return self.normal

    def pulled_back(self, gradient: Exchangeable) -> Exchangeable:
        """As :meth:`FewRows.pulled_back`."""
        A, M = self.normal, self.normal.rows
        crossed = A @ gradient
        four = A * A.dot(gradient) + crossed @ A * 2.0
        found = gradient + (crossed + crossed.transposed()) * (-1 / M) + four * self._fourth
        return found * (1 / self.variance)

    @property
    def dual(self) -> Exchangeable:
        """As :attr:`FewRows.dual`."""
        A, M = self.normal, self.normal.rows
        nothing = np.zeros_like(A.same)
        found = Exchangeable(np.eye(len(nothing)), nothing, A.samples) + A * (-2 / M)
        found = found + (A * (M * A.mean_diagonal) + A @ A * 2.0) * self._fourth
        return found * (1 / self.variance)

    @property
    def _fourth(self) -> float:
        A, M = self.normal, self.normal.rows
        return 1 / (M**2 + 2 * A.dot(A) / A.mean_diagonal**2)


@dataclass(frozen=True, eq=False)
class SteadyRows:
    r"""Rows of which a part has a size that is the same in every draw.

    Such is a residual stream behind batch norm, to which a branch is added: with the shares a and
    b = 1 - a of the variance, the sum of squares varies as that of Gaussian rows times
    :math:`b^2 + 2ab = 1 - a^2`. Averages are that far from those of a constant sum.

    Args:
        gaussian: As if all rows were Gaussian.
        constant: As if the sum of squares were its average.
        share: a², the part that counts as constant.
    """

    gaussian: FewRows | ManyRows
    constant: ConstantRows
    share: float

    @property
    def inverse(self) -> float:
        """As :attr:`FewRows.inverse`."""
        return self._mixed(self.gaussian.inverse, self.constant.inverse)

    @property
    def radial_gain(self) -> float:
        """As :attr:`FewRows.radial_gain`."""
        return self._mixed(self.gaussian.radial_gain, self.constant.radial_gain)

    def normalised(self) -> Exchangeable:
        """Covariance after batch norm."""
        return self._both(self.gaussian.normalised(), self.constant.normalised())

    def pulled_back(self, gradient: Exchangeable) -> Exchangeable:
        """As :meth:`FewRows.pulled_back`."""
        first, second = (rows.pulled_back(gradient) for rows in (self.gaussian, self.constant))
        return self._both(first, second)

    @property
    def dual(self) -> Exchangeable:
        """As :attr:`FewRows.dual`."""
        return self._both(self.gaussian.dual, self.constant.dual)

    def _mixed(self, first: float, second: float) -> float:
        return (1 - self.share) * first + self.share * second

    def _both(self, first: Exchangeable, second: Exchangeable) -> Exchangeable:
        return first * (1 - self.share) + second * self.share


def of_two_draws(
    rows: FewRows | ManyRows, own: Exchangeable, shared: Exchangeable
) -> Exchangeable:
    r"""Covariance of two draws x and y of the rows, each normalised by itself.

    .. math:: E[f(x)f(y)^\top] \approx E[J]\,C\,E[J] + \rho^3\,(E[f(x)f(x)^\top] - E[J]\,K\,E[J])

    The first term is that of a Gaussian's first degree. The others are of odd degrees, and are
    taken for cubes of the mean correlation ρ; of equal draws the formula is exact.

    Args:
        rows: Of covariance K.
        own: K, centred.
        shared: C, the covariance of the two draws, centred.
    """
    J, alike = rows.jacobian, shared.mean_diagonal / own.mean_diagonal
    rest = rows.normalised() + J @ own @ J * -1.0
    return J @ shared @ J + rest * min(1.0, max(-1.0, alike)) ** 3


@dataclass(frozen=True, eq=False)
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
        return float(self.rows * self._integrals[1].sum())

    @property
    def jacobian(self) -> Exchangeable:
        r"""E[J] of the rows over their standard deviation, for centred rows.

        .. math:: E J = \sqrt M\,E\Big[S^{-1/2} - \frac{xx^\top}{S^{3/2}}\Big], \qquad
                  E[x_i^2S^{-3/2}] = \frac2{\sqrt\pi}\int v_i\sqrt t\,E e^{-tS}\,dt
        """
        t, density, v = self._integrals
        mean = (density @ t**-0.5) / math.sqrt(math.pi)
        found = []
        for basis, w in zip(self.bases, v, strict=True):
            along = 2 / math.sqrt(math.pi) * (w @ (density * t**0.5))
            found.append(basis * (math.sqrt(self.rows) * (mean - along)) @ basis.T)
        return Exchangeable.of_blocks(found[0], found[1], self.samples)

    @property
    def radial_gain(self) -> float:
        r"""What J takes from a squared gradient along x: :math:`E[M(1-(M\epsilon/S)^2)/S]`."""
        t, density, _ = self._integrals
        rest = (self.rows * self.eps) ** 2 * (density @ t**2) / 2
        return float(self.rows * (density.sum() - rest))

    def normalised(self) -> Exchangeable:
        """Covariance after batch norm."""
        _, density, v = self._integrals
        found = [
            basis * (self.rows * (w @ density)) @ basis.T
            for basis, w in zip(self.bases, v, strict=True)
        ]
        return Exchangeable.of_blocks(found[0], found[1], self.samples)

    def pulled_back(self, gradient: Exchangeable) -> Exchangeable:
        """Second moments of the gradient before batch norm, from those after it; both centred."""
        N, M = self.samples, self.rows
        inside = [u.T @ block @ u for u, block in zip(self.bases, gradient.blocks, strict=True)]
        t, density, v = self._integrals
        first, second, third = density * t, float(density.sum()), density * t**2 / 2
        copies = (N - 1, 1)
        along = sum(
            n * np.diagonal(block) @ w for n, block, w in zip(copies, inside, v, strict=True)
        )
        found = []
        for basis, block, w in zip(self.bases, inside, v, strict=True):
            A = w @ first
            pulled = block * (second - A[:, None] - A + 2 * ((w * third) @ w.T))
            pulled[np.diag_indices_from(pulled)] += w @ (third * along)
            found.append(basis @ (M * pulled) @ basis.T)
        return Exchangeable.of_blocks(found[0], found[1], N)

    @property
    def dual(self) -> Exchangeable:
        """What gradients are multiplied with, entry by entry, for the trace of the result."""
        t, density, v = self._integrals
        third = density * t**2 / 2
        both = sum(n * w.sum(0) for n, w in zip((self.samples - 1, 1), v, strict=True))
        found = []
        for basis, w in zip(self.bases, v, strict=True):
            gain = density.sum() + 2 * w**2 @ third - 2 * w @ (density * t) + w @ (third * both)
            found.append(basis * (self.rows * gain) @ basis.T)
        return Exchangeable.of_blocks(found[0], found[1], self.samples)

    @cached_property
    def _integrals(self) -> tuple[Array, Array, tuple[Array, Array]]:
        """Nodes t, weights of ∫ E[e^(-tS)] dt, and v_i of shape [P, T]."""
        copies = (self.samples - 1, 1)
        total = sum(n * v.sum() for n, v in zip(copies, self.values, strict=True))
        u = np.arange(_LOW, _HIGH, _STEP)
        t = np.exp(u) / (total + self.rows * self.eps)
        logs = -t * self.rows * self.eps
        for n, values in zip(copies, self.values, strict=True):
            logs -= n / 2 * np.log1p(2 * values[:, None] * t).sum(0)
        density = np.exp(logs) * t * _STEP
        size = density * (1 + (self.rows * self.eps * t) ** 2)
        few = size > _ROUNDING * size.max()
        t, density = t[few], density[few]
        first, second = (values[:, None] / (1 + 2 * values[:, None] * t) for values in self.values)
        return t, density, (first, second)


@dataclass(frozen=True, eq=False)
class ManyRows:
    r"""The same to first order in :math:`\tau = \operatorname{tr}K_c^2/(\operatorname{tr}K_c)^2`.

    Args:
        normal: Covariance after batch norm.
        eps: ε.
        variance: The mean variance before, ε included.
        tau: τ.
    """

    normal: Exchangeable
    eps: float
    variance: float
    tau: float

    @staticmethod
    def of(centred: Exchangeable, eps: float) -> ManyRows:
        """Rows of a centred covariance."""
        M, trace = centred.rows, centred.mean_diagonal
        variance, tau = trace + eps, tau_of(centred)
        linear = (1 + 2 * tau * (trace / variance) ** 2) / variance
        found = []
        for K in centred.blocks:
            k = (K / variance).astype(_CORRECTION)
            K *= linear
            K += (k @ k.T) * (-2 / M)
            found.append(K)
        normal = Exchangeable.of_blocks(found[0], found[1], centred.samples)
        return ManyRows(normal, eps, variance, tau)

    @property
    def inverse(self) -> float:
        """As :attr:`FewRows.inverse`."""
        signal = 1 - self.eps / self.variance
        return (1 + 2 * self.tau * signal**2) / self.variance

    @property
    def radial_gain(self) -> float:
        """As :attr:`FewRows.radial_gain`."""
        rest = (self.eps / self.variance) ** 2
        signal = 1 - self.eps / self.variance
        return (1 - rest + 2 * self.tau * signal**2 * (1 - 6 * rest)) / self.variance

    @property
    def jacobian(self) -> Exchangeable:
        """As :attr:`FewRows.jacobian`."""
        N, M = self.normal.samples, self.normal.rows
        signal = 1 - self.eps / self.variance
        scale = (1 + 0.75 * self.tau * signal**2) / math.sqrt(self.variance)
        alone = np.eye(len(self.normal.same))
        found = [scale * (alone - block / M) for block in self.normal.blocks]
        return Exchangeable.of_blocks(found[0], found[1], N)

    def normalised(self) -> Exchangeable:
        """Covariance after batch norm."""
        return self.normal

    def pulled_back(self, gradient: Exchangeable) -> Exchangeable:
        """Second moments of the gradient before batch norm, from those after it; both centred."""
        N, M, scale = self.normal.samples, self.normal.rows, self.inverse
        along = self.normal.dot(gradient) / M**2
        found = []
        for A, G in zip(self.normal.blocks, gradient.blocks, strict=True):
            size = max(np.abs(np.diagonal(G)).max(), 1e-300)
            a, g = (A / M).astype(_CORRECTION), (G / size).astype(_CORRECTION)
            ga = g @ a
            pulled = (a @ (2 * ga - g) - ga) * (size * scale)
            G *= scale
            A *= along * scale
            pulled += G
            pulled += A
            found.append(pulled)
        return Exchangeable.of_blocks(found[0], found[1], N)

    @property
    def dual(self) -> Exchangeable:
        """As :attr:`FewRows.dual`."""
        M, scale = self.normal.rows, self.inverse
        linear = self.normal.mean_diagonal / M - 2 / M
        found = []
        for A in self.normal.blocks:
            a = (A / M).astype(_CORRECTION)
            A *= scale * linear
            A += (a @ a.T) * (2 * scale)
            A[np.diag_indices_from(A)] += scale
            found.append(A)
        return Exchangeable.of_blocks(found[0], found[1], self.normal.samples)
