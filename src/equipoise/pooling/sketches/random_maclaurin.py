r"""Random Maclaurin map: compact second-order pooling by random projections.

.. math:: \phi(x) = \tfrac{1}{\sqrt d}\,(W_1x) \circ (W_2x), \qquad
          \Phi(C) = \tfrac{1}{\sqrt d}\,\mathrm{diag}(W_1 C W_2^\top) .

Symbols: W: projections of signs ``[d, D]``; F: features ``[N, D]``; C: matrix ``[D, D]``; d: size.

References:
    [kar2012], section 3, for the map, [gao2016], Algorithm 1, for pooling with it.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from equipoise.pooling.generators import placed, random_signs


class RandomMaclaurin(nn.Module):
    r"""Random Maclaurin map with projections that are drawn once.

    :math:`\mathbb E\langle\phi(x), \phi(y)\rangle = (x^\top y)^2`.

    Args:
        channels: D.
        size: d.
        generator: Source of the projections.

    Attributes:
        by_position: Name of the route that takes position by position.
        signs: W_1 and W_2, ``[2, d, D]``.
    """

    by_position = "direct"
    signs: Tensor

    def __init__(self, channels: int, size: int, *, generator: torch.Generator):
        super().__init__()
        self.register_buffer("signs", placed(random_signs(2, size, channels, generator=generator)))

    def of_matrix(self, matrix: Tensor) -> Tensor:
        """Φ(C) ``[B, d]`` of matrices ``[B, D, D]``."""
        signs = self.signs.to(matrix.dtype)
        sketch: Tensor = ((signs[0] @ matrix) * signs[1]).sum(-1)
        return sketch / math.sqrt(signs.shape[1])

    def of_positions(self, features: Tensor) -> Tensor:
        """Φ(FᵀF) ``[B, d]`` of rows ``[B, N, D]``; saves N·d numbers for the backward pass."""
        signs = self.signs.to(features.dtype)
        projected = (features @ signs[0].mT) * (features @ signs[1].mT)
        return projected.sum(-2) / math.sqrt(self.signs.shape[1])

    def prefers_positions(self, positions: int) -> bool:
        r"""Whether projections of all positions cost fewer operations than those of the matrix.

        Forward and backward, :math:`8NDd` against :math:`4D^2(N + d)`. The count chose the
        faster route at every size that the Tensor Sketch's constants were fitted to.
        """
        size, channels = self.signs.shape[1:]
        return 2 * positions * size < channels * (positions + size)
