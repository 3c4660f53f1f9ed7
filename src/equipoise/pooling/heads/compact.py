"""Compact bilinear pooling, with RUN before it or without."""

from __future__ import annotations

from typing import Literal, Unpack

import torch
from torch import Tensor

from equipoise.numerics.checks import check_choice, check_size
from equipoise.numerics.options import named_options
from equipoise.pooling.heads.base import HeadOptions, PoolingHead
from equipoise.pooling.matrices import bilinear, valid_count, valid_positions
from equipoise.pooling.run.layer import RUN, RunStart
from equipoise.pooling.sketches.random_maclaurin import RandomMaclaurin
from equipoise.pooling.sketches.tensor_sketch import TensorSketch

_METHODS: dict[str, type[TensorSketch] | type[RandomMaclaurin]] = {
    "tensor_sketch": TensorSketch,
    "random_maclaurin": RandomMaclaurin,
}


class CompactBilinearPool(PoolingHead):
    r"""A sketch of the second moments in place of all their D² entries.

    .. math:: y = \tfrac1N \sum_n \phi(f_n) = \Phi\Big(\tfrac1N F_K^\top F_K\Big), \qquad
              \mathbb E\,\langle\phi(x), \phi(z)\rangle = (x^\top z)^2 ,

    where :math:`f_n` are the rows of :math:`F_K`, features after RUN, or of F without it. The
    map is linear in the matrix, so it goes position by position, with nothing of size D × D, or
    through the matrix, which RUN then updates; the result is the same to rounding.

    Args:
        in_channels: Channels C of the maps.
        size: d, the length of the vectors.
        method: ``"tensor_sketch"`` or ``"random_maclaurin"``.
        route: ``"gram"`` through the matrix; ``"fft"`` (Tensor Sketch) or ``"direct"`` (Random
            Maclaurin) position by position, which keeps N·d numbers for the backward pass;
            ``"auto"`` by the cost at each number of positions, in exported programs ``"gram"``.
        run: Whether RUN comes first.
        eta: Of RUN, as is all to ``differentiate_direction``: see :class:`RUNPool`.
        epsilon: ε, instead.
        num_steps: K.
        start: v_0.
        resample: ``"train"`` for a new start in every pass in training mode.
        differentiate_direction: Whether the backward pass follows the direction.
        signed_root: Whether to take the signed root of every entry.
        unit_norm: Whether to divide by the Euclidean norm, after the root.
        options: What all heads take: see :class:`BilinearPool`; it is a vector already, so
            neither ``vector`` nor ``preserve_inner_products``.

    Attributes:
        output_dim: d.
        sketch: The compact map, which holds hashes and signs, or projections.
        run: The :class:`RUN` layer, or None.

    Shape:
        - Input: maps and optionally a mask, as in :class:`BilinearPool`.
        - Output: ``[B, size]``.

    Raises:
        TypeError: As :class:`RUNPool`.
        ValueError: If an option is out of range, shapes do not fit, a route is not one of the
            method, or a strength is given without RUN.

    Note:
        ``torch.compile`` of the FFT route warns that its default backend leaves complex numbers
        to PyTorch; "gram" compiles whole.

    Examples:
        >>> import torch
        >>> head = CompactBilinearPool(64, size=1024)
        >>> head(torch.rand(2, 64, 7, 7)).shape
        torch.Size([2, 1024])

    References:
        [gao2016], Algorithms 1 and 2; [pham2013]; [kar2012]; [yu2020] for RUN before it.
    """

    @named_options
    def __init__(
        self,
        in_channels: int,
        *,
        size: int = 8192,
        method: Literal["tensor_sketch", "random_maclaurin"] = "tensor_sketch",
        route: Literal["auto", "gram", "fft", "direct"] = "auto",
        run: bool = True,
        eta: float | None = None,
        epsilon: float | None = None,
        num_steps: int = 2,
        start: RunStart = "gaussian",
        resample: Literal["never", "train"] = "never",
        differentiate_direction: bool = True,
        signed_root: bool = True,
        unit_norm: bool = True,
        **options: Unpack[HeadOptions],
    ):
        super().__init__(in_channels, signed_root=signed_root, unit_norm=unit_norm, **options)
        check_size(size=size)
        check_choice("method", method, tuple(_METHODS))
        check_choice("route", route, ("auto", "gram", _METHODS[method].by_position))
        if not run and (eta is not None or epsilon is not None):
            raise ValueError("eta and epsilon are RUN's strength: pass run=True, or neither.")
        self.method = method
        self.route = route
        self.output_dim = size
        self.sketch = _METHODS[method](self.channels, size, generator=self.generator)
        self.run: RUN | None = None
        if run:
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

    def pool(self, features: Tensor, mask: Tensor | None) -> Tensor:
        """The sketch, by the chosen route."""
        if not self._by_position(features.shape[-2]):
            return self.sketch.of_matrix(self._matrix(features, mask))
        count = valid_count(features, mask)
        sketch = self.sketch.of_positions(self._rows(features, mask))
        return sketch / (count[..., 0] if isinstance(count, Tensor) else count)

    def _matrix(self, features: Tensor, mask: Tensor | None) -> Tensor:
        if self.run is not None:
            return self.run.bilinear(features, mask)
        return bilinear(features, mask=mask)

    def _rows(self, features: Tensor, mask: Tensor | None) -> Tensor:
        if self.run is not None:
            rows: Tensor = self.run(features, mask)
            return rows
        return valid_positions(features, mask)

    def _by_position(self, positions: int) -> bool:
        if self.route != "auto":
            return self.route != "gram"
        # An exported program is for any number of positions and has one route.
        return not torch.compiler.is_exporting() and self.sketch.prefers_positions(positions)

    def _shown_options(self) -> tuple[str, ...]:
        return ("method", "route", *super()._shown_options())
