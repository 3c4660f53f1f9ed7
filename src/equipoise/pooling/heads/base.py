"""What all second-order heads share: the way in, from maps to rows, and the way out."""

from __future__ import annotations

from typing import Any, Literal, TypedDict, Unpack

import torch
from torch import Tensor, nn

from equipoise.numerics.precision import at_least_float32, without_autocast
from equipoise.pooling.heads.checks import check_choice, check_size
from equipoise.pooling.heads.generators import own_generator
from equipoise.pooling.heads.layouts import Layout, as_mask, as_positions, check_layout
from equipoise.pooling.heads.reduction import Reduction
from equipoise.pooling.run.bilinear import valid_count
from equipoise.pooling.vectorise import signed_sqrt, triangle_indices, unit_norm, upper_triangle


class HeadOptions(TypedDict, total=False):
    """Keyword arguments of every head; what they mean stands at :class:`BilinearPool`."""

    reduction: int | None
    layout: Layout
    prefix_tokens: int
    centred: bool
    generator: torch.Generator | None
    seed: int | None


class MatrixOptions(HeadOptions, total=False):
    """Those of heads that end in a matrix."""

    vector: Literal["triangle", "full"]
    preserve_inner_products: bool


class PoolingHead(nn.Module):
    """Maps to rows, then whatever pools them, then signed root and unit norm.

    Subclasses set ``output_dim`` and pool. Arithmetic is in float32 or better, with autocast
    off; the output is rounded once, to the type of the (reduced) features.
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
        """Every option; those with their neutral value are left out."""
        parts = [str(self.in_channels)]
        if self.reduction is not None:
            parts.append(f"reduction={self.channels}")
        parts.append(f"layout={self.layout!r}")
        if self.prefix_tokens:
            parts.append(f"prefix_tokens={self.prefix_tokens}")
        parts += [f"{name}={getattr(self, name)!r}" for name in self._shown()]
        return ", ".join(parts)

    def _shown(self) -> tuple[str, ...]:
        """Attributes of the representation."""
        return ("centred", "signed_root", "unit_norm", "output_dim")


class MatrixHead(PoolingHead):
    """A head whose rows become a symmetric matrix, and the matrix a vector.

    Subclasses make the matrix.
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

    def _shown(self) -> tuple[str, ...]:
        scaled = ("preserve_inner_products",) if self.preserve_inner_products else ()
        return ("vector", *scaled, *super()._shown())

    def _load_from_state_dict(self, *args: Any) -> None:
        super()._load_from_state_dict(*args)
        # No part of the state: lost where a head was made on the meta device, then filled.
        if self.triangle is not None and not self.triangle.is_meta:
            self.triangle = triangle_indices(self.channels, device=self.triangle.device)


def _root(vector: Tensor) -> Tensor:
    if torch.onnx.is_in_onnx_export():
        # ONNX knows no copysign. The gradient, which this form makes NaN at 0, is not exported.
        return vector.sign() * vector.abs().sqrt()
    return signed_sqrt(vector)


def _centre(features: Tensor, mask: Tensor | None) -> Tensor:
    """Subtract the mean of the valid positions; what others hold stays arbitrary."""
    valid = features if mask is None else torch.where(mask[..., None], features, 0.0)
    return valid - valid.sum(-2, keepdim=True) / valid_count(features, mask)
