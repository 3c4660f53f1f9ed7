"""Modules of several parts that a stack computes part by part."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn


class Residual(nn.Module):
    r"""A branch beside the identity: :math:`y = x + s\,f(x)`.

    Args:
        branch: f, which keeps the shape.
        scale: s.

    Examples:
        >>> import torch
        >>> Residual(nn.Identity(), scale=0.5)(torch.ones(2))
        tensor([1.5000, 1.5000])
    """

    def __init__(self, branch: nn.Module, scale: float = 1.0) -> None:
        super().__init__()
        self.branch = branch
        self.scale = scale

    def forward(self, x: Tensor) -> Tensor:
        """Add the scaled branch."""
        return self.added(x, self.branch(x))

    def added(self, x: Tensor, branch: Tensor) -> Tensor:
        """The sum, of what the branch has returned."""
        return x + (branch if self.scale == 1.0 else self.scale * branch)


class SelfAttention(nn.Module):
    r"""Scaled dot-product attention with one packed projection, ``[N, T, C]`` to ``[N, T, C]``.

    Args:
        width: C.
        heads: Heads, which divide C.
        causal: Whether a position sees only those before it.

    Examples:
        >>> import torch
        >>> tuple(SelfAttention(8, heads=2, causal=True)(torch.ones(3, 5, 8)).shape)
        (3, 5, 8)
    """

    def __init__(self, width: int, heads: int, *, causal: bool) -> None:
        super().__init__()
        self.heads, self.causal = heads, causal
        self.packed = nn.Linear(width, 3 * width, bias=False)
        self.out = nn.Linear(width, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Attend to all positions, or to those before."""
        attended: Tensor = self.out(self.mixed(self.packed(x)))
        return attended

    def mixed(self, packed: Tensor) -> Tensor:
        """Averages of values over positions, from the packed projection ``[..., T, 3C]``."""
        width = packed.shape[-1] // (3 * self.heads)
        parts = packed.reshape(*packed.shape[:-1], 3, self.heads, width)
        q, k, v = parts.movedim(-3, 0).transpose(-2, -3).unbind()
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=self.causal)
        return mixed.transpose(-2, -3).flatten(-2)
