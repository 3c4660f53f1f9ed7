r"""Averages of softmax weights with random logits.

A row weighs keys by :math:`a_j = b_j e^{z_j} / \sum_k b_k e^{z_k}`, b the softmax of a bias and z
independent Gaussian logits of variance :math:`\sigma^2`. The log-odds of :math:`a_j` are those of
:math:`b_j`, a logit, and the logarithm of what the other keys add up to. The last is taken as
Gaussian, with the first two moments of that sum (Fenton 1960); averages of the logistic function
are :math:`A_j = E[a_j]`.

Weights vary as :math:`A_j (1 + z_j - \sum_k A_k z_k)`, so that for covariances K of keys

.. math:: E[a_i^\top K a_{i'}] = A_i^\top K A_{i'} + (F_{ii'} - 1) \sum_j A_{ij} A_{i'j}
          \langle j - \bar\jmath_i,\; j - \bar\jmath_{i'} \rangle_K ,

with :math:`\bar\jmath_i` the average key of row i. Products of derivatives by logits,
:math:`a_j (\delta_{jk} - a_k)`, are :math:`R_{ii'}` times those at A. F and R of a row are those
of :math:`n = 1/\sum_j A_j^2` equal keys, which is exact without a bias:

.. math:: F = 1 + \frac{n \, E[s_2] - 1}{1 - 1/n}, \qquad
          R = \frac{E[s_2 - 2 s_3 + s_2^2]}{(1 - 1/n)/n}, \qquad s_k = \sum_j a_j^k .

Two rows whose logits are independent have F = 1 and R = hh', :math:`h = (1 - E s_2)/(1 - 1/n)`;
logarithms are interpolated by correlation. Noise that multiplies weights, as dropout does, adds
its variance times :math:`E[a_{ij}^2] K_{jj}` to i = i'.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit

Array = NDArray[np.float64]

# More rows than this share interpolated averages.
_MOST_SOLVED = 24
# For the logistic function of a normal number of variance 4 they leave 3e-6.
_NODES, _WEIGHTS = np.polynomial.hermite_e.hermegauss(24)
# Of integrals over normal numbers of standard deviation 1, and over logarithms. Both integrands
# are analytic, and the trapezoidal rule leaves 1e-12.
_STEP = 0.25
# The log-odds of a key that is alone remain finite.
_SMALLEST = 1e-100
# Logits of a larger variance choose one key nearly always: what is left of the others' weights
# and of derivatives is the chance that two logits come close, which falls as one over the root.
_LARGEST = 100.0


@dataclass(frozen=True, slots=True, eq=False)
class SoftmaxWeights:
    """Rows of softmax weights.

    Args:
        mean: A, of shape ``[T, S]``.
        concentration: F, of shape ``[T, T]``.
        sensitivity: R, of shape ``[T, T]``.
        contrast: h, of shape ``[T]``.
        noise: Variance of what multiplies each weight, around 1.
    """

    mean: Array
    concentration: Array
    sensitivity: Array
    contrast: Array
    noise: float

    @staticmethod
    def of(bias: Array, variance: Array, correlation: Array, noise: float) -> SoftmaxWeights:
        """Averages over logits.

        Args:
            bias: b, rows that sum to 1, of shape ``[T, S]``.
            variance: Of the logits of each row, of shape ``[T]``.
            correlation: Of the logits of two rows, of shape ``[T, T]``.
            noise: See above.
        """
        mean = _mean_weights(bias, variance)
        F, h, R = _rows(variance, 1 / (mean**2).sum(1))
        gains = (np.sqrt(np.log(np.maximum(ratio, 1.0))) for ratio in (F, R / h**2))
        factors = [np.exp(correlation * np.outer(gain, gain)) for gain in gains]
        return SoftmaxWeights(mean, factors[0], np.outer(h, h) * factors[1], h, noise)

    @property
    def squares(self) -> Array:
        """E[a²], of shape ``[T, S]``."""
        A = self.mean
        change = 1 - 2 * A + (A**2).sum(1, keepdims=True)
        excess = np.diagonal(self.concentration)[:, None] - 1
        return np.asarray(A**2 * (1 + excess * change))

    def averaged(self, K: Array, together: Array | float = 1.0) -> Array:
        """E[aKaᵀ].

        Args:
            K: Covariances, of shape ``[S, S]``.
            together: By how much more logits spread outputs, in each of the T rows, as keys with
                equal values have equal logits.
        """
        A, AK = self.mean, self.mean @ K
        AKA, crossed = AK @ A.T, A @ (A * AK).T
        spread = (A * np.diagonal(K)) @ A.T - crossed - crossed.T + (A @ A.T) * AKA
        root = np.sqrt(together) * np.ones(len(A))
        found = AKA + (self.concentration - 1) * np.outer(root, root) * spread
        found[np.diag_indices_from(found)] += self.noise * self.squares @ np.diagonal(K)
        return np.asarray(found)

    def pulled_back(self, P: Array) -> Array:
        """The transpose of :meth:`averaged`, for matrices of shape ``[T, T]``."""
        A, extra = self.mean, P * (self.concentration - 1)
        crossed = (extra @ A * A).T @ A
        found = A.T @ (P + extra * (A @ A.T)) @ A - crossed - crossed.T
        own = ((A.T @ extra) * A.T).sum(1) + self.noise * self.squares.T @ np.diagonal(P)
        found[np.diag_indices_from(found)] += own
        return np.asarray(found)


def distances(K: Array, A: Array) -> Array:
    """Squared distance of keys from the average key of a row, of shape ``[T, S]``."""
    AK = A @ K
    average = (AK * A).sum(1, keepdims=True)
    return np.asarray(np.maximum(np.diagonal(K) - 2 * AK + average, 0.0))


def shared(first: Array, second: Array, A: Array) -> Array:
    r"""For each row :math:`\sum_{jj'} A_j A_{j'} K_{jj'} L_{jj'}`, of centred K and L."""
    where = _solved(len(A))
    found = []
    for a in A[where]:
        centred = []
        for K in (first, second):
            rows = K @ a
            centred.append(K - rows - rows[:, None] + a @ rows)
        found.append(a @ (centred[0] * centred[1]) @ a / (a @ a))
    return np.asarray(np.interp(np.arange(len(A)), where, found) * (A**2).sum(1))


def _mean_weights(bias: Array, variance: Array) -> Array:
    """A, of shape ``[T, S]``."""
    found = bias.copy()
    for i in np.flatnonzero(variance):
        seen = bias[i] > 0
        b, sigma = bias[i, seen], min(float(variance[i]), _LARGEST)
        if np.ptp(b) < 1e-12:
            continue  # equal ones stay equal
        rest = np.maximum(1 - b, _SMALLEST)
        spread = np.log1p(((b**2).sum() - b**2) * math.expm1(sigma) / rest**2)
        odds = np.log(b / rest) + (spread - sigma) / 2
        points = odds + np.sqrt(sigma + spread) * _NODES[:, None]
        a = _WEIGHTS @ expit(points)
        found[i, seen] = a / a.sum()
    return found


def _solved(count: int) -> NDArray[np.intp]:
    """For which rows averages are computed; the others are interpolated."""
    if count <= _MOST_SOLVED:
        return np.arange(count)
    return np.unique(np.geomspace(1, count, _MOST_SOLVED).astype(int) - 1)


def _rows(variance: Array, n: Array) -> tuple[Array, Array, Array]:
    """F, h and R of all rows."""
    where = _solved(len(n))
    found = zip(*(_row(float(variance[i]), float(n[i])) for i in where), strict=True)
    F, h, R = (np.interp(np.arange(len(n)), where, values) for values in found)
    return F, h, R


def _row(variance: float, n: float) -> tuple[float, float, float]:
    r"""F, h and R of n equal keys.

    With a = e^z/Z, :math:`Z^{-k} = \int t^{k-1} e^{-tZ} dt / (k-1)!` and
    :math:`L_k(t) = E[e^{kz - te^z}]`,

    .. math:: E[a_1^k] = \int \frac{t^{k-1}}{(k-1)!} L_k L_0^{n-1} dt, \qquad
              E[a_1^2 a_2^2] = \int \frac{t^3}{3!} L_2^2 L_0^{n-2} dt .
    """
    if n < 1 + 1e-9 or variance <= 0:
        return 1.0, 1.0, 1.0
    beyond, variance = math.sqrt(max(variance / _LARGEST, 1.0)), min(variance, _LARGEST)
    spread = math.sqrt(variance)
    g = np.arange(-9.0, 9.0, _STEP / max(spread, 1.0))
    weights = np.exp(-(g**2) / 2)
    weights /= weights.sum()
    u = np.arange(-30.0, 8.0 + 2 * variance, _STEP) - math.log(n) - variance / 2 + 4
    t, z = np.exp(u)[:, None], spread * g
    decay = np.exp(-t * np.exp(z)) * weights
    L0 = np.maximum(decay.sum(1), 1e-300)
    ratios = {k: np.exp(k * u) * (decay @ np.exp(k * z)) / L0 for k in (2, 3, 4)}
    measure = _STEP * np.exp(n * np.log(L0))
    second, third, fourth = (
        n * float(measure @ ratios[k]) / math.factorial(k - 1) for k in (2, 3, 4)
    )
    fourth += n * (n - 1) * float(measure @ ratios[2] ** 2) / 6
    equal, others = 1 - 1 / n, (1 - second) / beyond
    F, h = 1 + (n * (1 - others) - 1) / equal, others / equal
    return F, h, (second - 2 * third + fourth) * n / equal / beyond
