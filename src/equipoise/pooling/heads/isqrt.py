"""Pooling by the matrix square root of Newton and Schulz."""

from __future__ import annotations

from typing import Unpack

from torch import Tensor

from equipoise.numerics.checks import check_choice, check_size
from equipoise.numerics.options import named_options
from equipoise.pooling.heads.base import MatrixHead, MatrixOptions
from equipoise.pooling.matrices import bilinear
from equipoise.pooling.roots.newton_schulz import Prenormalise, sqrt_newton_schulz


class ISQRTPool(MatrixHead):
    r"""Second moments, or the covariance, under an approximate matrix square root (iSQRT).

    .. math:: y = \mathrm{vec}\Big(\big(\tfrac1N F^\top F\big)^{1/2}\Big)

    by a few coupled Newton–Schulz steps; see
    :func:`~equipoise.pooling.roots.newton_schulz.sqrt_newton_schulz`. The published iSQRT-COV
    is ``ISQRTPool(in_channels, reduction=256, centred=True)``.

    Args:
        in_channels: Channels C of the maps.
        iterations: Steps, at least 1. Five are not converged, and are what is used.
        prenormalise: ``"trace"`` or ``"frobenius"``.
        signed_root: Whether to take the signed root of every entry; the matrix root compresses
            already.
        unit_norm: Whether to divide by the Euclidean norm.
        options: What all heads take: see :class:`BilinearPool`.

    Attributes:
        output_dim: Length of the vectors.

    Shape:
        - Input: maps and optionally a mask, as in :class:`BilinearPool`.
        - Output: ``[B, output_dim]``.

    Raises:
        TypeError: As :class:`BilinearPool`.
        ValueError: If an option is out of range, or shapes do not fit.

    Examples:
        >>> import torch
        >>> head = ISQRTPool(2, iterations=20)
        >>> head(torch.tensor([[[[2.0, 0.0]], [[0.0, 4.0]]]])).round(decimals=4)  # √2, √8
        tensor([[1.4142, 0.0000, 2.8284]])

    References:
        [li2018], Algorithm 1.
    """

    @named_options
    def __init__(
        self,
        in_channels: int,
        *,
        iterations: int = 5,
        prenormalise: Prenormalise = "trace",
        signed_root: bool = False,
        unit_norm: bool = False,
        **options: Unpack[MatrixOptions],
    ):
        super().__init__(in_channels, signed_root=signed_root, unit_norm=unit_norm, **options)
        check_size(iterations=iterations)
        check_choice("prenormalise", prenormalise, ("trace", "frobenius"))
        self.iterations = iterations
        self.prenormalise = prenormalise

    def matrix(self, features: Tensor, mask: Tensor | None) -> Tensor:
        """The approximate root."""
        return sqrt_newton_schulz(
            bilinear(features, mask=mask),
            iterations=self.iterations,
            prenormalise=self.prenormalise,
        )

    def _shown_options(self) -> tuple[str, ...]:
        return ("iterations", "prenormalise", *super()._shown_options())
