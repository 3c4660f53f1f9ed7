"""Bilinear pooling after RUN."""

from __future__ import annotations

from typing import Literal, Unpack

from torch import Tensor

from equipoise.numerics.options import named_options
from equipoise.pooling.heads.base import MatrixHead, MatrixOptions
from equipoise.pooling.run.layer import RUN, RunStart


class RUNPool(MatrixHead):
    r"""Bilinear pooling of features whose dominant direction is shrunk by a rank-1 update.

    .. math:: y = \mathrm{vec}\Big(\tfrac1N F_K^\top F_K\Big), \qquad
              F_K = F\,(I - \eta\,\hat v\hat v^\top), \qquad
              \hat v = \frac{(F^\top F)^K v_0}{\lVert (F^\top F)^K v_0\rVert}

    Computed by the equivalent symmetric form: the matrix is formed once and updated, at O(KD²)
    beside its own O(ND²), without F_K.

    Args:
        in_channels: Channels C of the maps.
        eta: η in [0, 1]. At 0 this is :class:`BilinearPool`; 0.5 if neither strength is given.
        epsilon: ε in [0, 1], instead; :math:`\epsilon = 2\eta - \eta^2`.
        num_steps: K.
        start: v_0; ``"gaussian"`` as in the paper, ``"mean"`` as the robust choice, ``"ones"``
            or a vector: see :class:`RUN`.
        resample: ``"train"`` for a new start in every pass in training mode.
        differentiate_direction: Whether the backward pass follows the direction.
        signed_root: Whether to take the signed root of every entry.
        unit_norm: Whether to divide by the Euclidean norm, after the root.
        options: What all heads take: see :class:`BilinearPool`.

    Attributes:
        output_dim: Length of the vectors.
        run: The :class:`RUN` layer, which holds the start.

    Shape:
        - Input: maps and optionally a mask, as in :class:`BilinearPool`.
        - Output: ``[B, output_dim]``.

        Evaluation never draws a start; training does with ``resample="train"``.

    Raises:
        TypeError: As :class:`RUN` and :class:`BilinearPool`.
        ValueError: Likewise.

    Examples:
        >>> import torch
        >>> head = RUNPool(512, reduction=256)
        >>> head(torch.rand(2, 512, 7, 7)).shape
        torch.Size([2, 32896])
        >>> head = RUNPool(3, eta=1.0, start="mean", num_steps=0, unit_norm=False)
        >>> head(torch.ones(1, 3, 5, 5))  # the mean is all there is, and is removed
        tensor([[0., 0., 0., 0., 0., 0.]])

    References:
        [yu2020]
    """

    @named_options
    def __init__(
        self,
        in_channels: int,
        *,
        eta: float | None = None,
        epsilon: float | None = None,
        num_steps: int = 2,
        start: RunStart = "gaussian",
        resample: Literal["never", "train"] = "never",
        differentiate_direction: bool = True,
        signed_root: bool = True,
        unit_norm: bool = True,
        **options: Unpack[MatrixOptions],
    ):
        super().__init__(in_channels, signed_root=signed_root, unit_norm=unit_norm, **options)
        self.run = RUN(
            self.channels,
            eta=eta,
            epsilon=epsilon,
            num_steps=num_steps,
            start=start,
            resample=resample,
            differentiate_direction=differentiate_direction,
            generator=self.generator,
        )

    def matrix(self, features: Tensor, mask: Tensor | None) -> Tensor:
        """Second moments of F_K."""
        return self.run.bilinear(features, mask)
