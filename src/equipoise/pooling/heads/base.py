"""Bases of all heads: maps become rows, rows a vector or a matrix, a matrix a vector."""

from __future__ import annotations

from typing import Any, Literal, TypedDict, Unpack

import torch
from torch import Tensor, nn

from equipoise.numerics.checks import check_choice, check_size
from equipoise.numerics.precision import at_least_float32, without_autocast
from equipoise.pooling.generators import own_generator
from equipoise.pooling.heads.layouts import Layout, as_mask, as_positions, check_layout
from equipoise.pooling.heads.reduction import Reduction
from equipoise.pooling.matrices import (
    triangle_indices,
    upper_triangle,
    valid_count,
    valid_positions,
)
from equipoise.pooling.vectors import signed_sqrt, unit_norm


class HeadOptions(TypedDict, total=False):
    """Keyword arguments of every head, explained at :class:`BilinearPool`."""

    reduction: int | None
    layout: Layout
    prefix_tokens: int
    centred: bool
    generator: torch.Generator | None
    seed: int | None


class MatrixOptions(HeadOptions, total=False):
    """Keyword arguments of heads that end in a matrix."""

    vector: Literal["triangle", "full"]
    preserve_inner_products: bool


class PoolingHead(nn.Module):
    """Make rows of maps, pool them, then take the signed root and the unit norm.

    Subclasses set ``output_dim`` and define :meth:`pool`. Arithmetic is in float32 or better,
    with autocast off; the output is rounded once, to the type of the (reduced) features.
    """

    output_dim: int

    def __init__(
        self,
        in_channels: int,
        *,
        signed_root: bool,
        unit_norm: bool,
        reduction: int | None = None,
        layout: Layout = "channels_first",
        prefix_tokens: int = 0,
        centred: bool = False,
        generator: torch.Generator | None = None,
        seed: int | None = None,
    ):
        super().__init__()
        check_size(in_channels=in_channels)
        check_layout(layout, prefix_tokens)
        self.in_channels = in_channels
        self.layout = layout
        self.prefix_tokens = prefix_tokens
        self.centred = centred
        self.signed_root = signed_root
        self.unit_norm = unit_norm
        self.generator = own_generator(generator, seed)
        self.reduction: Reduction | None = None
        if reduction is not None:
            check_size(reduction=reduction)
            self.reduction = Reduction(in_channels, reduction, generator=self.generator)
        self.channels = in_channels if reduction is None else reduction

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """Pool maps to vectors ``[B, output_dim]``; a mask has their shape without channels."""
        prefix = self.prefix_tokens
        positions = as_mask(mask, x, self.layout, prefix_tokens=prefix)
        features = as_positions(x, self.layout, self.in_channels, prefix_tokens=prefix)
        if self.reduction is not None:
            features = self.reduction(features, positions)
        with without_autocast(x.device):
            F = at_least_float32(features)
            vector = self.pool(_centre(F, positions) if self.centred else F, positions)
            if self.signed_root:
                vector = _root(vector)
            if self.unit_norm:
                vector = unit_norm(vector)
        return vector.to(features.dtype)

    def pool(self, features: Tensor, mask: Tensor | None) -> Tensor:
        """Vectors ``[B, output_dim]`` of rows ``[B, N, D]``, float32 or better.

        Raises:
            NotImplementedError: In this class.
        """
        raise NotImplementedError

    def extra_repr(self) -> str:
        """All options but those that have no effect."""
        parts = [str(self.in_channels)]
        if self.reduction is not None:
            parts.append(f"reduction={self.channels}")
        parts.append(f"layout={self.layout!r}")
        if self.prefix_tokens:
            parts.append(f"prefix_tokens={self.prefix_tokens}")
        parts += [f"{name}={getattr(self, name)!r}" for name in self._shown_options()]
        return ", ".join(parts)

    def _shown_options(self) -> tuple[str, ...]:
        """Names of the attributes to show."""
        return ("centred", "signed_root", "unit_norm", "output_dim")


class MatrixHead(PoolingHead):
    """Make a symmetric matrix of the rows, and a vector of the matrix.

    Subclasses define :meth:`matrix`.
    """

    triangle: Tensor | None

    def __init__(
        self,
        in_channels: int,
        *,
        signed_root: bool,
        unit_norm: bool,
        vector: Literal["triangle", "full"] = "triangle",
        preserve_inner_products: bool = False,
        **options: Unpack[HeadOptions],
    ):
        super().__init__(in_channels, signed_root=signed_root, unit_norm=unit_norm, **options)
        check_choice("vector", vector, ("triangle", "full"))
        self.vector = vector
        self.preserve_inner_products = preserve_inner_products
        D = self.channels
        self.output_dim = D * D if vector == "full" else D * (D + 1) // 2
        indices = triangle_indices(D) if vector == "triangle" else None
        self.register_buffer("triangle", indices, persistent=False)

    def pool(self, features: Tensor, mask: Tensor | None) -> Tensor:
        """The matrix, row by row."""
        matrix = self.matrix(features, mask)
        if self.triangle is None:
            return matrix.flatten(-2)
        if self.triangle.is_meta and not matrix.is_meta:
            # A state lacks them, so loading with assign=True has left them on the meta device.
            self.triangle = triangle_indices(self.channels, device=matrix.device)
        return upper_triangle(
            matrix,
            preserve_inner_products=self.preserve_inner_products,
            indices=self.triangle,
        )

    def matrix(self, features: Tensor, mask: Tensor | None) -> Tensor:
        """Symmetric matrices ``[B, D, D]`` of rows ``[B, N, D]``, float32 or better.

        Raises:
            NotImplementedError: In this class.
        """
        raise NotImplementedError

    def _shown_options(self) -> tuple[str, ...]:
        scaled = ("preserve_inner_products",) if self.preserve_inner_products else ()
        return ("vector", *scaled, *super()._shown_options())

    def _load_from_state_dict(self, *args: Any) -> None:
        super()._load_from_state_dict(*args)
        # to_empty() leaves them arbitrary.
        if self.triangle is not None and not self.triangle.is_meta:
            self.triangle = triangle_indices(self.channels, device=self.triangle.device)


def _root(vector: Tensor) -> Tensor:
    if torch.onnx.is_in_onnx_export():
        # ONNX has no copysign. This form's gradient is NaN at 0, but gradients are not exported.
        return vector.sign() * vector.abs().sqrt()
    return signed_sqrt(vector)


def _centre(features: Tensor, mask: Tensor | None) -> Tensor:
    """Subtract the mean of the valid positions; masked positions are arbitrary afterwards."""
    valid = valid_positions(features, mask)
    return valid - valid.sum(-2, keepdim=True) / valid_count(features, mask)
