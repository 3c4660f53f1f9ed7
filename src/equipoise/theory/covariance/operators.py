r"""Linear maps of symmetric matrices that treat all samples alike, and their spectra.

The Jacobian of one layer at a matrix with equal diagonal and equal off-diagonal entries is such a
map: without normalisation a DOS operator (its diagonal follows from the diagonal alone), with
batch norm an ultrasymmetric one. Their eigenspaces follow from the symmetry, so ten numbers
determine them. All results are exact but for rounding.

Symmetric matrices with zero row sums split into :math:`\mathbb G = \mathbb R G` (size),
:math:`\mathbb L = \{GDG: D \text{ diagonal}, \mathrm{tr} D = 0\}` (unequal variances) and
:math:`\mathbb M = \{\Delta: \mathrm{diag}\Delta = 0\}` (unequal correlations), orthogonal to each
other, of dimensions 1, B - 1 and B(B - 3)/2.

Symbols: B: batch size, G = I - 11ᵀ/B, H: symmetric matrices, Hᴳ: those with zero row sums, T: the
map.

References:
    [yang2019], Appendix B (ultrasymmetric and DOS operators).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from equipoise.numerics.checks import check_whole

Array = NDArray[np.float64]


class Eigenvalue(NamedTuple):
    """An eigenvalue and the dimension of its eigenspace; complex in conjugate pairs only."""

    value: float | complex
    multiplicity: int


class CentredEigenvalues(NamedTuple):
    r"""Eigenvalues of :math:`\Delta \mapsto G\,T\{\Delta\}\,G` on matrices with zero row sums.

    Args:
        G: Along the common size of all differences, dimension 1.
        L: Along unequal variances of samples, dimension B - 1.
        M: Along unequal correlations of samples, dimension B(B - 3)/2.
    """

    G: float
    L: float
    M: float


@dataclass(frozen=True, slots=True)
class Brackets:
    r"""The ten numbers :math:`[kl|ij] = T(E_{ij})_{kl}` that an ultrasymmetric map consists of.

    Args:
        at_11_11: Diagonal entry from itself.
        at_11_12: Diagonal entry from an entry in its row.
        at_11_22: Diagonal entry from another diagonal entry.
        at_11_23: Diagonal entry from an entry elsewhere.
        at_12_11: Off-diagonal entry from a diagonal entry in its row.
        at_12_12: Off-diagonal entry from itself.
        at_12_13: Off-diagonal entry from another in its row or column.
        at_12_21: Off-diagonal entry from its mirror image.
        at_12_33: Off-diagonal entry from a diagonal entry elsewhere.
        at_12_34: Off-diagonal entry from an entry elsewhere.
    """

    at_11_11: float
    at_11_12: float
    at_11_22: float
    at_11_23: float
    at_12_11: float
    at_12_12: float
    at_12_13: float
    at_12_21: float
    at_12_33: float
    at_12_34: float


@dataclass(frozen=True, slots=True)
class UltrasymmetricOperator:
    r"""A linear map of symmetric matrices that commutes with relabelling the samples.

    Args:
        batch_size: B, at least 4.
        brackets: Its entries, symmetrised over i ↔ j, as maps of symmetric matrices allow.

    Raises:
        ValueError: If ``batch_size < 4``: with fewer samples some brackets do not exist.

    Examples:
        >>> identity = Brackets(1, 0, 0, 0, 0, 0.5, 0, 0.5, 0, 0)
        >>> UltrasymmetricOperator(5, identity).centred_eigenvalues()
        CentredEigenvalues(G=1.0, L=1.0, M=1.0)
    """

    batch_size: int
    brackets: Brackets

    def __post_init__(self) -> None:
        _check_batch_size(self.batch_size)

    def apply(self, matrix: Array) -> Array:
        """Return T{Δ} for a symmetric matrix, both of shape ``[B, B]``."""
        delta = _check_symmetric(matrix, self.batch_size)
        b, diagonal = self.brackets, np.diag(delta)
        trace, rows = diagonal.sum(), delta.sum(0) - diagonal
        others = rows.sum()  # over ordered pairs of different samples
        on_diagonal = (
            b.at_11_11 * diagonal
            + 2 * b.at_11_12 * rows
            + b.at_11_22 * (trace - diagonal)
            + b.at_11_23 * (others - 2 * rows)
        )
        ends, row_ends = np.add.outer(diagonal, diagonal), np.add.outer(rows, rows)
        result = (
            b.at_12_11 * ends
            + (b.at_12_12 + b.at_12_21) * delta
            + 2 * b.at_12_13 * (row_ends - 2 * delta)
            + b.at_12_33 * (trace - ends)
            + b.at_12_34 * (others - 2 * row_ends + 2 * delta)
        )
        np.fill_diagonal(result, on_diagonal)
        return np.asarray(result)

    def eigenvalues(self) -> tuple[Eigenvalue, ...]:
        """The spectrum on H: two single ones (equal samples), two (B - 1)-fold ones, and μ."""
        B = self.batch_size
        blocks = ((self._alpha(), 1), (self._beta(), B - 1))
        pairs = [
            Eigenvalue(_plain(value), multiplicity)
            for block, multiplicity in blocks
            for value in np.linalg.eigvals(block)
        ]
        return (*pairs, Eigenvalue(self._mu(), B * (B - 3) // 2))

    def centred_eigenvalues(self) -> CentredEigenvalues:
        r"""Eigenvalues of :math:`\Delta \mapsto G\,T\{\Delta\}\,G` on Hᴳ."""
        B, alpha, beta = self.batch_size, self._alpha(), self._beta()
        along_g = (B - 1) * (alpha[0, 0] - alpha[1, 0]) - (alpha[0, 1] - alpha[1, 1])
        along_l = (B - 2) * (beta[0, 0] + 2 * beta[1, 0]) + beta[0, 1] + 2 * beta[1, 1]
        return CentredEigenvalues(float(along_g) / B, float(along_l) / B, self._mu())

    def _alpha(self) -> Array:
        """The map on matrices with equal diagonal and equal off-diagonal entries."""
        B, b = self.batch_size, self.brackets
        return np.array(
            [
                [
                    b.at_11_11 + (B - 1) * b.at_11_22,
                    2 * (B - 1) * b.at_11_12 + (B - 1) * (B - 2) * b.at_11_23,
                ],
                [
                    2 * b.at_12_11 + (B - 2) * b.at_12_33,
                    b.at_12_12
                    + 4 * (B - 2) * b.at_12_13
                    + b.at_12_21
                    + (B - 2) * (B - 3) * b.at_12_34,
                ],
            ]
        )

    def _beta(self) -> Array:
        """The map on what singles out one sample."""
        B, b = self.batch_size, self.brackets
        return np.array(
            [
                [b.at_11_11 - b.at_11_22, 2 * (B - 2) * (b.at_11_23 - b.at_11_12)],
                [
                    b.at_12_33 - b.at_12_11,
                    b.at_12_12 + b.at_12_21 + 2 * (B - 4) * b.at_12_13 - 2 * (B - 3) * b.at_12_34,
                ],
            ]
        )

    def _mu(self) -> float:
        b = self.brackets
        return b.at_12_12 + b.at_12_21 - 4 * b.at_12_13 + 2 * b.at_12_34


@dataclass(frozen=True, slots=True)
class DOSOperator:
    r"""A diagonal–off-diagonal semidirect map, the Jacobian of Σ ↦ E[φ(h)φ(h)ᵀ], h ~ N(0, Σ).

    .. math:: (T\Delta)_{ii} = u\Delta_{ii}, \qquad
              (T\Delta)_{ij} = v\Delta_{ii} + v\Delta_{jj} + w\Delta_{ij}

    Args:
        batch_size: B, at least 4.
        u: Diagonal to diagonal.
        v: Diagonal to off-diagonal.
        w: Off-diagonal to off-diagonal.

    Raises:
        ValueError: If ``batch_size < 4``.

    Examples:
        >>> DOSOperator(5, u=0.5, v=0.1, w=0.8).eigenvalues()
        (Eigenvalue(value=0.5, multiplicity=5), Eigenvalue(value=0.8, multiplicity=10))
    """

    batch_size: int
    u: float
    v: float
    w: float

    def __post_init__(self) -> None:
        _check_batch_size(self.batch_size)

    def apply(self, matrix: Array) -> Array:
        """Return T{Δ} for a symmetric matrix, both of shape ``[B, B]``."""
        delta = _check_symmetric(matrix, self.batch_size)
        diagonal = np.diag(delta)
        result = self.v * np.add.outer(diagonal, diagonal) + self.w * delta
        np.fill_diagonal(result, self.u * diagonal)
        return np.asarray(result)

    def eigenvalues(self) -> tuple[Eigenvalue, Eigenvalue]:
        """The spectrum on H: u, B-fold, and w, B(B - 1)/2-fold."""
        B = self.batch_size
        return Eigenvalue(self.u, B), Eigenvalue(self.w, B * (B - 1) // 2)

    def eigenmatrix(self, sample: int) -> Array:
        """The eigenvector to u of sample i: w - u at (i, i), -v in the rest of its row and column.

        At u = w with v ≠ 0 these vectors belong to w too, and the map has no basis of
        eigenvectors.
        """
        if not 0 <= sample < self.batch_size:
            raise ValueError(f"sample must be within 0 … {self.batch_size - 1}, got {sample}.")
        matrix = np.zeros((self.batch_size, self.batch_size))
        matrix[sample] = matrix[:, sample] = -self.v
        matrix[sample, sample] = self.w - self.u
        return matrix

    def equal_eigenmatrix(self) -> Array:
        """The eigenvector to u with all samples alike: u - w on the diagonal, 2v elsewhere.

        The paper's text says w - u and w·v; its displayed equation, used here, is right.
        """
        matrix = np.full((self.batch_size, self.batch_size), 2 * self.v)
        np.fill_diagonal(matrix, self.u - self.w)
        return matrix

    def centred_eigenvalues(self) -> CentredEigenvalues:
        r"""Eigenvalues of :math:`\Delta \mapsto G\,T\{\Delta\}\,G` on Hᴳ."""
        B, difference = self.batch_size, self.u - 2 * self.v
        return CentredEigenvalues(
            G=((B - 1) * difference + self.w) / B,
            L=((B - 2) * difference + 2 * self.w) / B,
            M=self.w,
        )

    def as_ultrasymmetric(self) -> UltrasymmetricOperator:
        """The same map by its brackets."""
        half = self.w / 2
        brackets = Brackets(self.u, 0.0, 0.0, 0.0, self.v, half, 0.0, half, 0.0, 0.0)
        return UltrasymmetricOperator(self.batch_size, brackets)


class CentredParts(NamedTuple):
    """The three orthogonal parts of a symmetric matrix with zero row sums, each ``[B, B]``."""

    G: Array
    L: Array
    M: Array


def project_centred(matrix: Array) -> CentredParts:
    r"""Split a symmetric matrix with zero row sums into its parts in 𝔾, 𝕃 and 𝕄.

    .. math:: \Delta_G = \frac{\mathrm{tr}\Delta}{B-1} G, \quad
              \Delta_L = \frac{B}{B-2}\,G\,\mathrm{Diag}(\Delta - \Delta_G)\,G, \quad
              \Delta_M = \Delta - \Delta_G - \Delta_L

    Args:
        matrix: Symmetric, with zero row sums, of shape ``[B, B]``, B at least 4.

    Raises:
        ValueError: If the matrix is not symmetric or its rows do not sum to 0.

    Examples:
        >>> parts = project_centred(np.eye(4) - 0.25)  # the centring projector itself
        >>> float(abs(parts.L).max()), float(abs(parts.M).max())
        (0.0, 0.0)
    """
    delta = _check_symmetric(matrix)
    B = _check_batch_size(len(delta))
    if np.abs(delta.sum(0)).max() > 1e-10 * np.abs(delta).max():
        raise ValueError(
            "the matrix must have zero row sums. Centre it first: G @ matrix @ G with G = I - 1/B."
        )
    G = np.eye(B) - 1 / B
    along_g = np.trace(delta) / (B - 1) * G
    along_l = B / (B - 2) * G @ np.diag(np.diag(delta - along_g)) @ G
    return CentredParts(along_g, along_l, delta - along_g - along_l)


def _plain(value: complex) -> float | complex:
    return float(value.real) if value.imag == 0 else complex(value)


def _check_batch_size(batch_size: int) -> int:
    """Return the batch size, or refuse one below 4."""
    return check_whole("batch_size", batch_size, 4)


def _check_symmetric(matrix: Array, batch_size: int | None = None) -> Array:
    """Return the matrix in float64, or refuse it for its shape or asymmetry."""
    delta = np.asarray(matrix, dtype=np.float64)
    size = batch_size if batch_size is not None else len(delta)
    if delta.shape != (size, size):
        raise ValueError(f"the matrix must have shape ({size}, {size}), got {delta.shape}.")
    if not np.allclose(delta, delta.T, rtol=1e-12, atol=1e-12 * float(np.abs(delta).max())):
        raise ValueError("the matrix must be symmetric. Pass (A + A.T) / 2.")
    return delta
