r"""How a batch's differences split into size, unequal variances and unequal correlations.

Symmetric matrices with zero row sums split into :math:`\mathbb G = \mathbb R G`,
:math:`\mathbb L = \{GDG: D \text{ diagonal}, \mathrm{tr} D = 0\}` and
:math:`\mathbb M = \{\Delta: \mathrm{diag}\Delta = 0\}`, orthogonal to each other, with
G = I - 11ᵀ/B and B the batch size.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


class CentredParts(NamedTuple):
    """The three orthogonal parts of a symmetric matrix with zero row sums, each ``[B, B]``."""

    G: Array
    L: Array
    M: Array


def centred_dimensions(batch_size: int) -> tuple[int, int, int]:
    """Dimensions of 𝔾, 𝕃 and 𝕄.

    Examples:
        >>> centred_dimensions(6), 6 * 5 // 2  # they fill the zero-row-sum matrices
        ((1, 5, 9), 15)
    """
    B = check_batch_size(batch_size)
    return 1, B - 1, B * (B - 3) // 2


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
    delta = check_symmetric(matrix)
    B = check_batch_size(len(delta))
    if np.abs(delta.sum(0)).max() > 1e-10 * np.abs(delta).max():
        raise ValueError(
            "the matrix must have zero row sums. Centre it first: G @ matrix @ G with G = I - 1/B."
        )
    G = np.eye(B) - 1 / B
    along_g = np.trace(delta) / (B - 1) * G
    along_l = B / (B - 2) * G @ np.diag(np.diag(delta - along_g)) @ G
    return CentredParts(along_g, along_l, delta - along_g - along_l)


def check_batch_size(batch_size: int) -> int:
    """Return the batch size, or refuse one below 4."""
    if batch_size < 4:
        raise ValueError(f"batch_size must be at least 4, got {batch_size}. Use a larger batch.")
    return batch_size


def check_symmetric(matrix: Array, batch_size: int | None = None) -> Array:
    """Return the matrix in float64, or refuse it for its shape or asymmetry."""
    delta = np.asarray(matrix, dtype=np.float64)
    size = batch_size if batch_size is not None else len(delta)
    if delta.shape != (size, size):
        raise ValueError(f"the matrix must have shape ({size}, {size}), got {delta.shape}.")
    if not np.allclose(delta, delta.T, rtol=1e-12, atol=1e-12 * float(np.abs(delta).max())):
        raise ValueError("the matrix must be symmetric. Pass (A + A.T) / 2.")
    return delta
