"""Self-attention, put together from projections and a way to attend."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

Attend = Callable[[Tensor, Tensor, Tensor], Tensor]
Heads = tuple[Tensor, Tensor, Tensor]  # queries, keys and values, [N, heads, T, width / heads]


class PackedProjections(nn.Module):
    """Queries, keys and values of all heads by one linear layer."""

    def __init__(self, width: int, heads: int):
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width)

    def forward(self, x: Tensor) -> Heads:
        """Heads of tokens ``[N, T, width]``."""
        q, k, v = self.qkv(x).chunk(3, dim=-1)
        return _split(q, self.heads), _split(k, self.heads), _split(v, self.heads)


class SeparateProjections(nn.Module):
    """Queries, keys and values by one linear layer each.

    Args:
        width: Features of a token.
        heads: Number of heads.
        bias: Whether the layers have one.
        rotate: Turns queries and keys by their positions.
    """

    def __init__(
        self, width: int, heads: int, *, bias: bool = True, rotate: nn.Module | None = None
    ):
        super().__init__()
        self.heads = heads
        self.query = nn.Linear(width, width, bias=bias)
        self.key = nn.Linear(width, width, bias=bias)
        self.value = nn.Linear(width, width, bias=bias)
        self.rotate = rotate

    def forward(self, x: Tensor) -> Heads:
        """Heads of tokens ``[N, T, width]``."""
        q = _split(self.query(x), self.heads)
        k = _split(self.key(x), self.heads)
        v = _split(self.value(x), self.heads)
        if self.rotate is not None:
            q, k = self.rotate(q), self.rotate(k)
        return q, k, v


def _split(x: Tensor, heads: int) -> Tensor:
    return x.view(*x.shape[:-1], heads, -1).transpose(1, 2)


class Rotary(nn.Module):
    """Rotate pairs of features by angles that grow with position [Su 2021, arXiv:2104.09864].

    Feature i is paired with feature i + width / 2, as in Llama's common implementations.
    """

    cos: Tensor
    sin: Tensor

    def __init__(self, width: int, tokens: int, base: float = 10_000.0):
        super().__init__()
        frequencies = base ** (-torch.arange(0, width, 2) / width)
        angles = torch.outer(torch.arange(tokens), frequencies).repeat(1, 2)  # [T, width]
        self.register_buffer("cos", angles.cos(), persistent=False)
        self.register_buffer("sin", angles.sin(), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        """Rotate heads ``[N, heads, T, width]``."""
        first, second = x.chunk(2, dim=-1)
        return x * self.cos + torch.cat([-second, first], dim=-1) * self.sin


def fused(*, causal: bool = False) -> Attend:
    """PyTorch's own attention."""
    return partial(F.scaled_dot_product_attention, is_causal=causal)


class CausalSoftmax(nn.Module):
    """Attention written out: scaled products, a mask of minus infinities, softmax."""

    mask: Tensor

    def __init__(self, tokens: int):
        super().__init__()
        mask = torch.ones(tokens, tokens, dtype=torch.bool).tril()
        self.register_buffer("mask", mask, persistent=False)

    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Mix the values of earlier tokens."""
        scores = q @ k.transpose(-2, -1) * q.shape[-1] ** -0.5
        scores = scores.masked_fill(~self.mask, float("-inf"))
        mixed: Tensor = scores.softmax(dim=-1) @ v
        return mixed


class BiasedSoftmax(nn.Module):
    """Attention in a square window with a learned bias for every relative position and head."""

    index: Tensor

    def __init__(self, window: int, heads: int):
        super().__init__()
        span = 2 * window - 1
        self.table = nn.Parameter(torch.empty(span**2, heads))
        nn.init.trunc_normal_(self.table, std=0.02)
        rows, columns = torch.arange(window**2) // window, torch.arange(window**2) % window
        row = rows[:, None] - rows + window - 1
        column = columns[:, None] - columns + window - 1
        self.register_buffer("index", row * span + column, persistent=False)  # [T, T]

    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Mix the values of the window's tokens."""
        scores = (q * q.shape[-1] ** -0.5) @ k.transpose(-2, -1)
        scores = scores + self.table[self.index].permute(2, 0, 1)  # [heads, T, T]
        mixed: Tensor = scores.softmax(dim=-1) @ v
        return mixed


class Attention(nn.Module):
    """Project tokens to heads, attend, and project back.

    Args:
        width: Features of a token.
        project: Makes queries, keys and values.
        attend: Mixes values by queries and keys.
        bias: Whether the last layer has one.
    """

    def __init__(self, width: int, project: nn.Module, attend: Attend, *, bias: bool = True):
        super().__init__()
        self.project = project
        self.attend = attend
        self.out = nn.Linear(width, width, bias=bias)

    def forward(self, x: Tensor) -> Tensor:
        """Mix tokens ``[N, T, width]``."""
        q, k, v = self.project(x)
        mixed: Tensor = self.out(self.attend(q, k, v).transpose(1, 2).flatten(2))
        return mixed


class Windowed(nn.Module):
    """Attention among the tokens of each window of an image alone."""

    def __init__(self, attention: nn.Module, window: int):
        super().__init__()
        self.attention = attention
        self.window = window

    def forward(self, x: Tensor) -> Tensor:
        """Mix tokens ``[N, H, W, width]``."""
        n, h, w, width = x.shape
        m = self.window
        tiles = x.view(n, h // m, m, w // m, m, width).transpose(2, 3)
        mixed: Tensor = self.attention(tiles.reshape(-1, m * m, width))
        tiles = mixed.view(n, h // m, w // m, m, m, width).transpose(2, 3)
        return tiles.reshape(n, h, w, width)
