"""Pooling by the logarithm of the matrix."""

from __future__ import annotations

from typing import Unpack

from torch import Tensor

from equipoise.numerics.checks import check_within
from equipoise.numerics.options import named_options
from equipoise.pooling.heads.base import MatrixHead, MatrixOptions
from equipoise.pooling.matrices import bilinear
from equipoise.pooling.roots.powers import log_euclidean


class LogEuclideanPool(MatrixHead):
    r"""Second moments, or the covariance, under the matrix logarithm.

    .. math:: y = \mathrm{vec}\Big(U\log(\Lambda + \varepsilon)U^\top\Big), \qquad
              \tfrac1N F^\top F = U\Lambda U^\top

    Args:
        in_channels: Channels C of the maps.
        eps: ε, above 0, in the units of squared features. A zero sample gives log ε on the
            diagonal; gradients reach 1/ε where there are fewer positions than channels.
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
        >>> head = LogEuclideanPool(2, eps=1.0)
        >>> head(torch.tensor([[[[2.0, 0.0]], [[0.0, 4.0]]]])).round(decimals=4)  # log 3, log 9
        tensor([[1.0986, 0.0000, 2.1972]])

    References:
        [yu2020], the methods that RUN is compared with.
    """

    @named_options
    def __init__(
        self,
        in_channels: int,
        *,
        eps: float = 1e-3,
        signed_root: bool = False,
        unit_norm: bool = False,
        **options: Unpack[MatrixOptions],
    ):
        super().__init__(in_channels, signed_root=signed_root, unit_norm=unit_norm, **options)
        check_within("eps", eps, "(0, inf]", "Singular matrices have no logarithm.")
        self.eps = eps

    def matrix(self, features: Tensor, mask: Tensor | None) -> Tensor:
        """The logarithm."""
        return log_euclidean(bilinear(features, mask=mask), eps=self.eps)

    def _shown_options(self) -> tuple[str, ...]:
        return ("eps", *super()._shown_options())
