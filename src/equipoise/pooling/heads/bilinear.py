"""Plain bilinear pooling, which every other head is compared with."""

from __future__ import annotations

from typing import Unpack

from torch import Tensor

from equipoise.numerics.options import named_options
from equipoise.pooling.heads.base import MatrixHead, MatrixOptions
from equipoise.pooling.matrices import bilinear


class BilinearPool(MatrixHead):
    r"""Bilinear pooling: second moments of the features, as one vector per sample.

    .. math:: y = \mathrm{vec}\Big(\tfrac1N F^\top F\Big), \qquad
              y \leftarrow \mathrm{sgn}(y)\sqrt{|y|}, \qquad
              y \leftarrow y / \lVert y\rVert

    It takes the place of a backbone's global pooling: maps in, vectors ``[B, output_dim]`` out.
    A zero sample gives zero with a finite gradient; one that is not finite leaves its
    neighbours alone.

    Args:
        in_channels: Channels C of the maps.
        signed_root: Whether to take the signed root of every entry. By default True for heads
            that leave most of the spectrum as it is (this one, RUN, compact), and False for
            those that compress every eigenvalue.
        unit_norm: Whether to divide by the Euclidean norm, after the root; the same defaults.
        reduction: Channels after a 1×1 convolution, batch norm and ReLU; None for neither.
        layout: ``"channels_first"`` for ``[B, C, H, W]``, ``"tokens"`` for ``[B, N, C]``,
            ``"channels_last"`` for ``[B, H, W, C]``.
        prefix_tokens: Tokens at the front that are no positions, as a class token.
        centred: Whether to subtract each sample's mean feature: covariance, not second moments.
        vector: ``"triangle"`` for the upper triangle, ``"full"`` for all D² entries.
        preserve_inner_products: Whether to multiply the triangle's entries beside the diagonal
            by √2, so that inner products are those of the matrices.
        generator: Source of all that is drawn in construction, weights of the reduction
            included; by default one of the head's own with the seed. PyTorch's global
            generator is never touched.
        seed: Of the head's own generator, 0 by default.

    Attributes:
        output_dim: Length of the vectors.
        channels: D, the channels after the reduction.

    Shape:
        - Input: maps in the layout, with any number of dimensions of positions; and optionally
          a boolean mask, shaped as the maps without channels, True at valid positions. Others
          have no effect, whatever they hold.
        - Output: ``[B, output_dim]``, typed as the maps; computed in float32 or better, with
          autocast off.

        Training and evaluation differ in the reduction's batch norm only, here.

    Raises:
        TypeError: If maps, mask or generator have the wrong type.
        ValueError: If an option is out of range, or shapes do not fit.

    Examples:
        >>> import torch
        >>> head = BilinearPool(2, signed_root=False, unit_norm=False)
        >>> head(torch.tensor([[[[1.0, 3.0]], [[0.0, 4.0]]]]))  # positions (1, 0) and (3, 4)
        tensor([[5., 6., 8.]])

    References:
        [lin2015], section 3; [yu2020], the methods that RUN is compared with.
    """

    @named_options
    def __init__(
        self,
        in_channels: int,
        *,
        signed_root: bool = True,
        unit_norm: bool = True,
        **options: Unpack[MatrixOptions],
    ):
        super().__init__(in_channels, signed_root=signed_root, unit_norm=unit_norm, **options)

    def matrix(self, features: Tensor, mask: Tensor | None) -> Tensor:
        """Second moments."""
        return bilinear(features, mask=mask)
