"""Square matrices that count through their symmetric part."""

from __future__ import annotations

from torch import Tensor


def symmetric_part(matrix: Tensor) -> Tensor:
    """(A + Aᵀ)/2, halves first: the sum of two large entries may overflow."""
    half = 0.5 * matrix
    return half + half.mT


def check_square(matrix: Tensor) -> None:
    """Refuse what is not ``[..., D, D]`` with D at least 1.

    Raises:
        ValueError: Naming the shape.
    """
    if matrix.ndim < 2 or matrix.shape[-1] != matrix.shape[-2] or matrix.shape[-1] == 0:
        raise ValueError(
            f"need square matrices [..., D, D], D at least 1; got shape {tuple(matrix.shape)}. "
            "bilinear(features) makes them from features [..., N, D]."
        )
