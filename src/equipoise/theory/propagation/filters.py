r"""How sizes of features vary, if each of them is a sum with random weights of its own.

A filter k of n taps, of m features each, gives a feature of variance :math:`S = k^\top M k` over
the batch, M the centred second moments of what its taps read, averaged over positions. With
eigenvalues :math:`\lambda_i` of M, in units of which S averages to the predicted
:math:`\bar s = m \sum_i \lambda_i`, Gaussian filters have

.. math:: E[e^{-tS}] = \prod_i (1 + 2t\lambda_i)^{-m/2}, \qquad
          E[(S + \epsilon)^{-1}] = \int E[e^{-tS}]\,e^{-t\epsilon}\,dt, \qquad
          E[k_i^2 (S + \epsilon)^{-1}]
          = \int \frac{E[e^{-tS}]}{1 + 2t\lambda_i}\,e^{-t\epsilon}\,dt .

A norm of single features divides squared gradients by S, and :math:`E[1/S] > 1/\bar s`: by
n/(n - 2) for n equal eigenvalues and m = 1, as of a depthwise convolution. Small filters have the
large gradients, so that the way back through the layer takes most of it off again.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from equipoise.theory.propagation.exchangeable import Exchangeable

Array = NDArray[np.float64]

# The integrands are analytic in log t: the trapezoidal rule is exact to rounding.
_LOGS = np.arange(-36.0, 60.0, 0.25)
# Of more taps, so many rows are looked at: that moves the mean of 1/S by 0.4 %, and by 2 % where
# few eigenvalues make most of S, while those of the 4,608 taps of 512 maps take ten seconds.
_MOST_ROWS = 512


@dataclass(frozen=True, slots=True, eq=False)
class Filters:
    """Filters of Gaussian weights.

    Args:
        values: Eigenvalues of M, up to a factor, of shape ``[n]``.
        features: m.
        of_data: Whether they read data, so that M is that of the very batch. Rows then vary in
            size for no other reason.
    """

    values: Array
    features: float
    of_data: bool = False

    @staticmethod
    def of(moments: Array, features: float, *, of_data: bool = False) -> Filters | None:
        """Filters that read taps of such second moments; None if there is nothing to read."""
        values = np.maximum(np.linalg.eigvalsh((moments + moments.T) / 2), 0)
        return Filters(values, features, of_data) if values.sum() > 0 else None

    @staticmethod
    def of_rows(rows: Array) -> Filters | None:
        """Filters that read data, of shape ``[rows, taps]``, one feature a tap.

        Beyond :data:`_MOST_ROWS` taps, eigenvalues are those of products of as many rows, which
        are spread over the data.
        """
        count, taps = rows.shape
        if taps <= _MOST_ROWS:
            seen = np.cov(rows, rowvar=False, bias=True)
            return Filters.of(np.atleast_2d(seen), 1, of_data=True)
        mean = rows.mean(0)
        if count > _MOST_ROWS:
            chosen = np.random.default_rng(0).choice(count, _MOST_ROWS, replace=False)
            rows = rows[np.sort(chosen)]
        centred = rows - mean
        found = Filters.of(centred @ centred.T / len(rows), 1, of_data=True)
        if found is None:
            return None
        # The other eigenvalues are zero.
        missing = taps - len(found.values)
        return replace(found, values=np.append(np.zeros(missing), found.values))

    def divided(self, variance: float, eps: float) -> tuple[float, float]:
        r"""What division by the square root of S + ε does to squared gradients.

        Args:
            variance: :math:`\bar s`.
            eps: ε.

        Returns:
            :math:`(\bar s + \epsilon) E[1/(S + \epsilon)]`, and the mean square of filters
            weighted by :math:`1/(S + \epsilon)`, over that of all.

        Examples:
            >>> nine = Filters(np.ones(9), 1)
            >>> print(np.round(nine.divided(1.0, 0.0), 6))  # 9/7 and 7/9
            [1.285714 0.777778]
        """
        values = self.values * variance / (self.features * self.values.sum())
        t = np.exp(_LOGS)[:, None] / (variance + eps)
        logs = -self.features / 2 * np.log1p(2 * t * values).sum(1) - eps * t[:, 0]
        density = np.exp(logs) * t[:, 0] * (_LOGS[1] - _LOGS[0])
        inverse = float(density.sum())
        squares = float(density @ (1 / (1 + 2 * t * values)).mean(1))
        return (variance + eps) * inverse, squares / inverse


def read_by_taps(pairs: Exchangeable, reads: NDArray[np.intp]) -> Array:
    """M, from second moments of what is read.

    Args:
        pairs: Of the input.
        reads: Which position an output reads by a tap, -1 for none, of shape ``[outputs, taps]``.
    """
    N, (outputs, taps) = pairs.samples, reads.shape
    outside = len(pairs.same)
    same = np.pad(pairs.same, (0, 1))
    own = same[reads[:, :, None], reads[:, None, :]].mean(0)
    counts = np.zeros((taps, outside + 1))
    np.add.at(counts, (np.arange(taps), reads), 1 / outputs)
    counts = counts[:, :outside]
    common = pairs.same / N + pairs.diff * ((N - 1) / N)
    return np.asarray(own - counts @ common @ counts.T)
