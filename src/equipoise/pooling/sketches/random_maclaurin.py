r"""Random Maclaurin map: compact second-order pooling by random projections.

.. math:: \phi(x) = \tfrac{1}{\sqrt d}\,(W_1x) \circ (W_2x), \qquad
          \Phi(C) = \tfrac{1}{\sqrt d}\,\mathrm{diag}(W_1 C W_2^\top) .

Symbols: W: projections of signs ``[d, D]``; F: features ``[N, D]``; C: matrix ``[D, D]``; d: size.

References:
    [kar2012] for the map, [gao2016] for pooling with it.
"""

from __future__ import annotations

import math
from typing import Literal

import torch
from torch import Tensor

from equipoise.numerics.precision import at_least_float32, without_autocast
from equipoise.pooling.sketches.maps import (
    MaclaurinProjections,
    check_channels,
    maclaurin_directly,
)
from equipoise.pooling.symmetric import check_square
from equipoise.pooling.vectorise import bilinear


def random_maclaurin(
    features: Tensor,
    projections: MaclaurinProjections,
    *,
    route: Literal["auto", "direct", "gram"] = "auto",
) -> Tensor:
    r"""Random Maclaurin map of every position, summed: :math:`\sum_n\phi(f_n) = \Phi(F^\top F)`.

    Args:
        features: F, ``[..., N, D]``. Rows of zeros add nothing.
        projections: Drawn once; see :class:`MaclaurinProjections`.
        route: "direct" projects every position and keeps N·d numbers for the backward pass;
            "gram" projects FᵀF; "auto" takes the one with fewer operations, by
            :func:`~equipoise.pooling.sketches.maps.maclaurin_directly`. All agree to
            rounding.

    Returns:
        ``[..., d]``, typed as the input; float16 and bfloat16 are computed in float32.

    Raises:
        ValueError: If the channels are not those of the projections, or ``route`` is another
            word.
        TypeError: If the features are not of floating point.

    Examples:
        >>> W = MaclaurinProjections(torch.tensor([[[1.0, 1.0]], [[1.0, -1.0]]]))
        >>> random_maclaurin(torch.tensor([[3.0, 1.0], [2.0, 0.0]]), W)  # 4 · 2 + 2 · 2
        tensor([12.])

    References:
        [kar2012], section 3; [gao2016], Algorithm 1.
    """
    if route not in ("auto", "direct", "gram"):
        raise ValueError(f"route must be 'auto', 'direct' or 'gram', got {route!r}.")
    size, channels = projections.signs.shape[1:]
    check_channels(features, channels, dims=2)
    directly = route == "direct"
    if route == "auto":
        directly = maclaurin_directly(features.shape[-2], channels, size)
    F = at_least_float32(features)
    if not directly:
        return random_maclaurin_matrix(bilinear(F, scale="none"), projections).to(features.dtype)
    return (_projected(F, F, projections).sum(-2) / math.sqrt(size)).to(features.dtype)


def random_maclaurin_matrix(matrix: Tensor, projections: MaclaurinProjections) -> Tensor:
    r"""Random Maclaurin map Φ(C) of a matrix, symmetric or not.

    Args:
        matrix: C, ``[..., D, D]``.
        projections: Drawn once.

    Returns:
        ``[..., d]``, typed as the input; float16 and bfloat16 are computed in float32.

    Raises:
        ValueError: If the matrices are not square, or of another size than the projections.
        TypeError: If the matrices are not of floating point.

    Examples:
        >>> W = MaclaurinProjections(torch.tensor([[[1.0, 1.0]], [[1.0, -1.0]]]))
        >>> random_maclaurin_matrix(torch.tensor([[1.0, 2.0], [3.0, 4.0]]), W)  # 1 - 2 + 3 - 4
        tensor([-2.])
    """
    check_square(matrix)
    check_channels(matrix, projections.signs.shape[-1], dims=2)
    C = at_least_float32(matrix)
    signs = projections.signs.to(C.dtype)
    with without_autocast(C.device):
        sketch = ((signs[0] @ C) * signs[1]).sum(-1)
    return (sketch / math.sqrt(signs.shape[1])).to(matrix.dtype)


def random_maclaurin_pair(u: Tensor, v: Tensor, projections: MaclaurinProjections) -> Tensor:
    r"""Random Maclaurin map Φ(uvᵀ) of a pair of vectors, to correct for a low-rank update.

    Args:
        u: ``[..., D]``.
        v: ``[..., D]``, of a shape that broadcasts with u's.
        projections: Drawn once.

    Returns:
        ``[..., d]``, typed as the input; float16 and bfloat16 are computed in float32.

    Raises:
        ValueError: If the channels are not those of the projections.
        TypeError: If the vectors are not of floating point.

    Examples:
        >>> W = MaclaurinProjections(torch.tensor([[[1.0, 1.0]], [[1.0, -1.0]]]))
        >>> random_maclaurin_pair(torch.tensor([1.0, 3.0]), torch.tensor([1.0, 2.0]), W)
        tensor([-4.])
    """
    size, channels = projections.signs.shape[1:]
    for vector in (u, v):
        check_channels(vector, channels, dims=1)
    pair = _projected(at_least_float32(u), at_least_float32(v), projections) / math.sqrt(size)
    return pair.to(torch.promote_types(u.dtype, v.dtype))


def _projected(u: Tensor, v: Tensor, projections: MaclaurinProjections) -> Tensor:
    signs = projections.signs
    with without_autocast(u.device):
        return (u @ signs[0].to(u.dtype).mT) * (v @ signs[1].to(v.dtype).mT)
