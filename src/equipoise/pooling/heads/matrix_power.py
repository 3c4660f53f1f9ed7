"""Pooling by a power of the matrix."""

from __future__ import annotations

from typing import Unpack

from torch import Tensor

from equipoise.numerics.checks import check_within
from equipoise.numerics.options import named_options
from equipoise.pooling.heads.base import MatrixHead, MatrixOptions
from equipoise.pooling.matrices import bilinear
from equipoise.pooling.roots.powers import matrix_power


class MatrixPowerPool(MatrixHead):
    r"""Second moments, or the covariance, to a power, by an eigendecomposition.

    .. math:: y = \mathrm{vec}\Big(\big(\tfrac1N F^\top F\big)^{p}\Big)

    with gradients by divided differences, finite on ties; see
    :func:`~equipoise.pooling.roots.powers.matrix_power`. On a CPU this exact root takes
    less time than :class:`ISQRTPool`; on a GPU more.

    Args:
        in_channels: Channels C of the maps.
        exponent: p, above 0. At 1 this is :class:`BilinearPool`.
        relative_cutoff: Eigenvalues up to this fraction of the largest count as zero; in [0, 1),
            by default D roundings.
        signed_root: Whether to take the signed root of every entry.
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
        >>> head = MatrixPowerPool(2)
        >>> head(torch.tensor([[[[2.0, 0.0]], [[0.0, 4.0]]]])).round(decimals=4)  # √2, √8
        tensor([[1.4142, 0.0000, 2.8284]])

    References:
        [yu2020], the methods that RUN is compared with.
    """

    @named_options
    def __init__(
        self,
        in_channels: int,
        *,
        exponent: float = 0.5,
        relative_cutoff: float | None = None,
        signed_root: bool = False,
        unit_norm: bool = False,
        **options: Unpack[MatrixOptions],
    ):
        super().__init__(in_channels, signed_root=signed_root, unit_norm=unit_norm, **options)
        check_within("exponent", exponent, "(0, inf]", "LogEuclideanPool is the limit at 0.")
        if relative_cutoff is not None:
            check_within("relative_cutoff", relative_cutoff, "[0, 1)")
        self.exponent = exponent
        self.relative_cutoff = relative_cutoff

    def matrix(self, features: Tensor, mask: Tensor | None) -> Tensor:
        """The power."""
        return matrix_power(
            bilinear(features, mask=mask), self.exponent, relative_cutoff=self.relative_cutoff
        )

    def _shown_options(self) -> tuple[str, ...]:
        return ("exponent", "relative_cutoff", *super()._shown_options())
