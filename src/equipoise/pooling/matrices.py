r"""Features to matrices, and symmetric matrices to vectors.

Symbols: F: features of one sample ``[N, D]``, a row per position; G: gradient of the loss with
respect to a result.
"""

from __future__ import annotations

import math
from typing import Any, Literal

import torch
from torch import Tensor

from equipoise.numerics.checks import check_choice
from equipoise.numerics.precision import at_least_float32, check_floating, without_autocast


def bilinear(
    features: Tensor,
    *,
    centred: bool = False,
    mask: Tensor | None = None,
    scale: Literal["positions", "none"] = "positions",
) -> Tensor:
    r"""Second moments of the features of each sample, or their covariance.

    .. math:: \tfrac1N F^\top F \qquad\text{or}\qquad
              \tfrac1N (F - \mathbf 1\mu^\top)^\top (F - \mathbf 1\mu^\top)

    Args:
        features: F, ``[..., N, D]``; a transposed view of channel-first maps costs no copy.
        centred: Whether to subtract the mean feature μ.
        mask: Boolean ``[..., N]``, True at valid positions. Others count neither in the sum nor
            in N and μ, whatever they hold.
        scale: "positions" divides by the number of valid positions, "none" does not.

    Returns:
        ``[..., D, D]``, typed as the input; float16 and bfloat16 are computed in float32.
        Samples without a valid position give zero.

    Raises:
        ValueError: If shapes do not fit, or ``scale`` is another word.
        TypeError: If the features are not of floating point, or the mask is not boolean.

    Examples:
        >>> F = torch.tensor([[1.0, 0.0], [3.0, 4.0]])
        >>> bilinear(F).tolist()
        [[5.0, 6.0], [6.0, 8.0]]
        >>> bilinear(F, centred=True).tolist()
        [[1.0, 2.0], [2.0, 4.0]]

    References:
        [yu2020], the methods that RUN is compared with; [li2018] centres.
    """
    _check_features(features, mask, scale)
    F = valid_positions(features, mask)
    if centred:
        F = valid_positions(F - F.sum(-2, keepdim=True) / valid_count(F, mask), mask)
    # PyTorch does not annotate apply.
    product: Tensor = _Gram.apply(F)  # type: ignore[no-untyped-call]
    if scale == "positions":
        product = product / valid_count(F, mask)
    return product.to(features.dtype)


def valid_positions(features: Tensor, mask: Tensor | None) -> Tensor:
    """Features in float32 or better, with zeros in the masked rows, whatever these hold."""
    features = at_least_float32(features)
    return features if mask is None else torch.where(mask[..., None], features, 0.0)


def valid_count(features: Tensor, mask: Tensor | None) -> Tensor | int:
    """The number of valid positions, at least 1: an int, or ``[..., 1, 1]`` with a mask."""
    if mask is None:
        return max(features.shape[-2], 1)
    return mask.sum(-1).clamp(min=1).to(features.dtype)[..., None, None]


class _Gram(torch.autograd.Function):
    """FᵀF, whose backward pass F (G + Gᵀ) is one product where autograd takes two."""

    generate_vmap_rule = True

    @staticmethod
    def forward(F: Tensor) -> Tensor:
        """One product."""
        with without_autocast(F.device):
            return F.mT @ F

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor], output: Tensor) -> None:
        """Save F."""
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        """In the memory layout of F, which may be a view of channel-first maps."""
        F: Tensor = ctx.saved_tensors[0]
        total = gradient + gradient.mT
        with without_autocast(F.device):
            return (total @ F.mT).mT if F.stride(-2) == 1 else F @ total


def triangle_indices(size: int, *, device: torch.device | str | None = None) -> Tensor:
    """Indices of the upper triangle in a flattened ``[size, size]`` matrix, row by row.

    Examples:
        >>> triangle_indices(3)
        tensor([0, 1, 2, 4, 5, 8])
    """
    places = torch.triu_indices(size, size, device=device)
    return places[0] * size + places[1]


def upper_triangle(
    matrix: Tensor, *, preserve_inner_products: bool = False, indices: Tensor | None = None
) -> Tensor:
    r"""Upper triangle of symmetric matrices as vectors, row by row.

    Args:
        matrix: ``[..., D, D]``.
        preserve_inner_products: Whether to multiply entries beside the diagonal by √2, so that
            inner products and norms are those of the whole matrices.
        indices: :func:`triangle_indices` of D, to be kept as a buffer where a model is exported;
            computed where not given.

    Returns:
        ``[..., D(D+1)/2]``. The gradient lies in the upper triangle alone.

    Raises:
        ValueError: If the matrices are not square.

    Examples:
        >>> A = torch.tensor([[1.0, 2.0], [2.0, 3.0]])
        >>> upper_triangle(A).tolist()
        [1.0, 2.0, 3.0]
        >>> v = upper_triangle(A, preserve_inner_products=True)
        >>> round(float(v @ v), 4), float((A * A).sum())
        (18.0, 18.0)
    """
    check_square(matrix)
    size = matrix.shape[-1]
    if indices is None:
        indices = triangle_indices(size, device=matrix.device)
    # index_select would take twice the time backward (CPU, 8 x 512 x 512).
    vector = matrix.flatten(-2).gather(-1, indices.expand(*matrix.shape[:-2], -1))
    if not preserve_inner_products:
        return vector
    diagonal = indices % (size + 1) == 0
    # torch.where(diagonal, 1, √2) would be float32, whatever the matrix is.
    return torch.where(diagonal, vector, math.sqrt(2) * vector)


def _check_features(features: Tensor, mask: Tensor | None, scale: str) -> None:
    check_floating("features", features)
    if features.ndim < 2:
        raise ValueError(f"need features [..., N, D], got shape {tuple(features.shape)}.")
    check_choice("scale", scale, ("positions", "none"))
    if mask is None:
        return
    check_boolean(mask)
    if mask.shape != features.shape[:-1]:
        raise ValueError(
            f"mask must have the features' shape {tuple(features.shape)} without the channels, "
            f"got {tuple(mask.shape)}."
        )


def check_boolean(mask: Tensor) -> None:
    """Refuse a mask of numbers.

    Raises:
        TypeError: Naming their type.
    """
    if mask.dtype != torch.bool:
        raise TypeError(
            f"mask must be boolean, True at valid positions; got {mask.dtype}. Use mask.bool()."
        )


def symmetric_part(matrix: Tensor) -> Tensor:
    """(A + Aᵀ)/2, halves first: the sum of two large entries may overflow."""
    half = 0.5 * matrix
    return half + half.mT


def check_square(matrix: Tensor) -> None:
    """Refuse what is not ``[..., D, D]`` with D at least 1.

    Raises:
        TypeError: If they are not real floating-point numbers.
        ValueError: Naming the shape.
    """
    check_floating("square matrices", matrix)
    if matrix.ndim < 2 or matrix.shape[-1] != matrix.shape[-2] or matrix.shape[-1] == 0:
        raise ValueError(
            f"need square matrices [..., D, D], D at least 1; got shape {tuple(matrix.shape)}. "
            "bilinear(features) makes them from features [..., N, D]."
        )
