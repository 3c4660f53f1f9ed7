r"""What second-order pooling begins and ends with: features to matrix, matrix to vector.

Symbols: F: features of one sample ``[N, D]``, a row per position; G: gradient of the loss with
respect to a result.
"""

from __future__ import annotations

import math
from typing import Any, Literal

import torch
from torch import Tensor

from equipoise.numerics.precision import at_least_float32, without_autocast
from equipoise.pooling.symmetric import check_square


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
    F = at_least_float32(features)
    count: Tensor | float = max(features.shape[-2], 1)
    if mask is not None:
        F = torch.where(mask[..., None], F, 0.0)
        count = mask.sum(-1).clamp(min=1).to(F.dtype)[..., None, None]
    if centred:
        F = F - F.sum(-2, keepdim=True) / count
        if mask is not None:
            F = torch.where(mask[..., None], F, 0.0)
    # PyTorch does not annotate apply.
    product: Tensor = _Gram.apply(F)  # type: ignore[no-untyped-call]
    return (product / count if scale == "positions" else product).to(features.dtype)


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
        """Laid out in memory as F, which may be a view of channel-first maps."""
        F: Tensor = ctx.saved_tensors[0]
        total = gradient + gradient.mT
        with without_autocast(F.device):
            return (total @ F.mT).mT if F.stride(-2) == 1 else F @ total


def triangle_indices(size: int, *, device: torch.device | str | None = None) -> Tensor:
    """Places of the upper triangle in a flattened ``[size, size]`` matrix, row by row.

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
    # gather: index_select takes twice the time backward (CPU, 8 x 512 x 512).
    vector = matrix.flatten(-2).gather(-1, indices.expand(*matrix.shape[:-2], -1))
    if not preserve_inner_products:
        return vector
    diagonal = indices % (size + 1) == 0
    # Two Python numbers would meet in float32, and √2 with them.
    return torch.where(diagonal, vector, math.sqrt(2) * vector)


def signed_sqrt(x: Tensor) -> Tensor:
    r"""Signed square root :math:`\mathrm{sgn}(x)\sqrt{|x|}` of every entry.

    The slope :math:`1/(2\sqrt{|x|})` is infinite at 0; there it counts as 0, exactly and only
    there. No constant is added under the root, so the smallest float16 keeps its digits; the
    largest slope is 2048 in float16 and 1.3e22 in float32.

    Args:
        x: Any shape and floating type.

    Returns:
        Shaped and typed as the input. Derivatives of every order are right, and 0 at 0.

    Examples:
        >>> x = torch.tensor([-4.0, 0.0, 9.0], requires_grad=True)
        >>> signed_sqrt(x).sum().backward()
        >>> signed_sqrt(x).tolist(), x.grad
        ([-2.0, 0.0, 3.0], tensor([0.2500, 0.0000, 0.1667]))

    References:
        [yu2020], the methods that RUN is compared with.
    """
    # PyTorch does not annotate apply.
    return _SignedSqrt.apply(x)  # type: ignore[no-untyped-call, no-any-return]


class _SignedSqrt(torch.autograd.Function):
    """Keeps its output alone, where autograd keeps the input, its sign and its root."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor) -> Tensor:
        """Two passes over memory."""
        return x.abs().sqrt_().copysign_(x)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor], output: Tensor) -> None:
        """Save the output."""
        ctx.save_for_backward(output)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        """G/(2|y|), with |y| infinite where it is 0."""
        y: Tensor = ctx.saved_tensors[0]
        return gradient * (0.5 / y.abs().masked_fill(y == 0, math.inf))


def unit_norm(x: Tensor) -> Tensor:
    r"""Divide vectors by their Euclidean norm.

    The largest entry is divided out first, so the result is right at any scale of the type, as
    1e30 and 1e-30 in float32, and no constant is added to the norm. A zero vector stays zero,
    with gradient zero: it has no direction.

    Args:
        x: ``[..., n]``.

    Returns:
        Shaped and typed as the input; float16 and bfloat16 are computed in float32. A vector
        that is not finite gives NaN among its own entries alone.

    Raises:
        TypeError: If the vectors are not of floating point.

    Examples:
        >>> unit_norm(torch.tensor([[3e30, -4e30], [0.0, 0.0]]))
        tensor([[ 0.6000, -0.8000],
                [ 0.0000,  0.0000]])
    """
    wide = at_least_float32(x)
    # A constant for autograd: the result does not depend on it.
    largest = wide.detach().abs().amax(-1, keepdim=True)
    zero = largest == 0
    scaled = torch.where(zero, 0.0, wide / torch.where(zero, 1.0, largest))
    norm = torch.where(zero, 1.0, scaled.square().sum(-1, keepdim=True)).sqrt()
    return (scaled / norm).to(x.dtype)


def _check_features(features: Tensor, mask: Tensor | None, scale: str) -> None:
    if features.ndim < 2:
        raise ValueError(f"need features [..., N, D], got shape {tuple(features.shape)}.")
    if scale not in ("positions", "none"):
        raise ValueError(f"scale must be 'positions' or 'none', got {scale!r}.")
    if mask is None:
        return
    if mask.dtype != torch.bool:
        raise TypeError(f"mask must be boolean, got {mask.dtype}; convert with mask != 0.")
    if mask.shape != features.shape[:-1]:
        raise ValueError(
            f"mask must have the features' shape {tuple(features.shape)} without the channels, "
            f"got {tuple(mask.shape)}."
        )
