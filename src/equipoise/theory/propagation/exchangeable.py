r"""Covariances over samples that are alike, each with P positions.

All NP rows have a covariance of two blocks: ``same`` between positions of one sample, ``diff``
between positions of two, both of shape ``[P, P]``. In a basis of differences between samples and
of what they share, such a matrix has the blocks :math:`A_s - A_d`, N - 1 times, and
:math:`A_s + (N-1)A_d`, once; products multiply them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, partial

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


def kron(first: Array, second: Array) -> Array:
    """The Kronecker product, in float64."""
    return np.asarray(np.kron(first, second), dtype=np.float64)


@dataclass(frozen=True, slots=True, eq=False)
class Exchangeable:
    """A symmetric matrix over N samples of P positions.

    Args:
        same: Between positions of one sample, of shape ``[P, P]``.
        diff: Between positions of two samples, of shape ``[P, P]``.
        samples: N.
    """

    same: Array
    diff: Array
    samples: int

    @property
    def positions(self) -> int:
        """P."""
        return len(self.same)

    @property
    def rows(self) -> int:
        """N times P."""
        return self.samples * self.positions

    @property
    def diagonal(self) -> Array:
        """Of shape ``[P]``."""
        return np.diagonal(self.same)

    @property
    def mean_diagonal(self) -> float:
        """The trace over the number of rows."""
        return float(self.diagonal.mean())

    @property
    def mean_shared(self) -> float:
        """The mean diagonal of what two samples have in common."""
        return float(np.diagonal(self.diff).mean())

    @property
    def spread(self) -> float:
        """The mean variance over positions of a sample."""
        return self.mean_diagonal - float(self.same.mean())

    def __add__(self, other: Exchangeable) -> Exchangeable:
        return Exchangeable(self.same + other.same, self.diff + other.diff, self.samples)

    def __mul__(self, factor: float) -> Exchangeable:
        return Exchangeable(factor * self.same, factor * self.diff, self.samples)

    def __matmul__(self, other: Exchangeable) -> Exchangeable:
        first, second = self.blocks, other.blocks
        return Exchangeable.of_blocks(first[0] @ second[0], first[1] @ second[1], self.samples)

    def transposed(self) -> Exchangeable:
        """The transpose."""
        return Exchangeable(self.same.T, self.diff.T, self.samples)

    @property
    def blocks(self) -> tuple[Array, Array]:
        """What acts on differences between samples, and on what they share."""
        return self.same - self.diff, self.same + (self.samples - 1) * self.diff

    @staticmethod
    def of_blocks(alone: Array, together: Array, samples: int) -> Exchangeable:
        """The inverse of :attr:`blocks`."""
        diff = together - alone
        diff /= samples
        return Exchangeable(alone + diff, diff, samples)

    def dot(self, other: Exchangeable) -> float:
        """Sum over all pairs of rows of the product of entries."""
        N = self.samples
        same, diff = np.vdot(self.same, other.same), np.vdot(self.diff, other.diff)
        return float(N * same + N * (N - 1) * diff)

    def total(self) -> float:
        """Sum over all pairs of rows."""
        N = self.samples
        return N * float(self.same.sum()) + N * (N - 1) * float(self.diff.sum())

    def scaled(self, scale: Array) -> Exchangeable:
        """Multiply rows and columns, by numbers of shape ``[P]``."""
        size = np.outer(scale, scale)
        return Exchangeable(self.same * size, self.diff * size, self.samples)

    def seen_by(self, matrix: Array) -> Exchangeable:
        """R A Rᵀ, for R of the positions, of shape ``[Q, P]``."""
        same, diff = (matrix @ block @ matrix.T for block in (self.same, self.diff))
        return Exchangeable(same, diff, self.samples)

    def times(self, other: Exchangeable) -> Exchangeable:
        """The product entry by entry."""
        return Exchangeable(self.same * other.same, self.diff * other.diff, self.samples)

    def centred(self) -> Exchangeable:
        """Subtract row means and column means, and add the grand mean."""
        rows = (self.same.sum(1) + (self.samples - 1) * self.diff.sum(1)) / self.rows
        change = rows.mean() - rows[:, None] - rows
        return Exchangeable(self.same + change, self.diff + change, self.samples)


def of_draws(first: Array, second: Array, samples: int) -> Exchangeable:
    """Average products of draws, of shape ``[draws, 2, P]`` for two samples, made symmetric."""
    count, _, positions = first.shape
    same = first.reshape(-1, positions).T @ second.reshape(-1, positions) / (2 * count)
    diff = first[:, 0].T @ second[:, 1] / count
    if second is first:
        return Exchangeable(same, (diff + diff.T) / 2, samples)
    diff = (diff + first[:, 1].T @ second[:, 0] / count) / 2
    return Exchangeable((same + same.T) / 2, (diff + diff.T) / 2, samples)


class Later(Exchangeable):
    """Such a matrix that is computed when its entries are first read.

    Args:
        compute: What gives it.
        positions: P.
        samples: N.
    """

    _compute: Callable[[], Exchangeable]
    _positions: int

    def __init__(self, compute: Callable[[], Exchangeable], positions: int, samples: int) -> None:
        object.__setattr__(self, "_compute", compute)
        object.__setattr__(self, "_positions", positions)
        object.__setattr__(self, "samples", samples)

    @cached_property
    def _computed(self) -> Exchangeable:
        return self._compute()

    @property
    def positions(self) -> int:
        """P."""
        return self._positions

    @property
    def same(self) -> Array:
        """Between positions of one sample."""
        return self._computed.same

    @property
    def diff(self) -> Array:
        """Between positions of two samples."""
        return self._computed.diff


class Average(Later):
    """The sum of several, each times a share; sums over entries are those of its parts.

    Args:
        parts: The matrices.
        shares: What they are multiplied with.
    """

    _terms: list[tuple[float, Exchangeable]]

    def __init__(self, parts: Sequence[Exchangeable], shares: Sequence[float]) -> None:
        terms = list(zip(map(float, shares), parts, strict=True))
        super().__init__(partial(_summed, terms), parts[0].positions, parts[0].samples)
        object.__setattr__(self, "_terms", terms)

    @cached_property
    def diagonal(self) -> Array:
        """Of shape ``[P]``."""
        return np.asarray(sum(share * part.diagonal for share, part in self._terms))

    @cached_property
    def mean_diagonal(self) -> float:
        """The trace over the number of rows."""
        return sum(share * part.mean_diagonal for share, part in self._terms)

    @cached_property
    def mean_shared(self) -> float:
        """The mean diagonal of what two samples have in common."""
        return sum(share * part.mean_shared for share, part in self._terms)

    def total(self) -> float:
        """Sum over all pairs of rows."""
        return sum(share * part.total() for share, part in self._terms)

    def of(self, parts: Sequence[Exchangeable]) -> Average:
        """The same of other parts."""
        return Average(parts, [share for share, _ in self._terms])


def _summed(terms: Sequence[tuple[float, Exchangeable]]) -> Exchangeable:
    share, first = terms[0]
    same, diff = share * first.same, share * first.diff
    spare = np.empty_like(same)
    for share, part in terms[1:]:
        same += np.multiply(share, part.same, out=spare)
        diff += np.multiply(share, part.diff, out=spare)
    return Exchangeable(same, diff, first.samples)
