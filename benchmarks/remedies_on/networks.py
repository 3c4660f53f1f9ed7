"""Small networks of the kinds that users bring, healthy until something is done to them."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn


def dense(
    depth: int,
    width: int,
    activation: Callable[[], nn.Module] = nn.ReLU,
    norm: bool = True,
    inputs: int = 64,
    classes: int = 10,
) -> nn.Sequential:
    """A fully connected classifier."""
    layers: list[nn.Module] = [nn.Flatten()]
    for fan_in in [inputs] + [width] * (depth - 1):
        layers.append(nn.Linear(fan_in, width, bias=not norm))
        if norm:
            layers.append(nn.BatchNorm1d(width))
        layers.append(activation())
    return nn.Sequential(*layers, nn.Linear(width, classes))


class Block(nn.Module):
    """Two convolutions beside a stream."""

    def __init__(self, width: int, norm: bool) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(width, width, 3, padding=1, bias=not norm)
        self.norm1 = nn.BatchNorm2d(width) if norm else nn.Identity()
        self.act1 = nn.ReLU()
        self.conv2 = nn.Conv2d(width, width, 3, padding=1, bias=not norm)
        self.norm2 = nn.BatchNorm2d(width) if norm else nn.Identity()
        self.act2 = nn.ReLU()

    def forward(self, x: Tensor) -> Tensor:
        """Add the branch."""
        return self.act2(x + self.norm2(self.conv2(self.act1(self.norm1(self.conv1(x))))))


def residual(
    blocks: int,
    width: int,
    *,
    norm: bool = True,
    stride: int = 1,
    channels: int = 1,
    classes: int = 10,
) -> nn.Sequential:
    """A residual classifier of images."""
    stem = [nn.Conv2d(channels, width, 3, stride=stride, padding=1, bias=not norm)]
    if norm:
        stem.append(nn.BatchNorm2d(width))
    body = [Block(width, norm) for _ in range(blocks)]
    head = [nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(4 * width, classes)]
    return nn.Sequential(*stem, nn.ReLU(), *body, *head)


def plain(layers: int, width: int, *, channels: int = 1, classes: int = 10) -> nn.Sequential:
    """A plain convolutional classifier with batch norm."""
    parts: list[nn.Module] = []
    for fan_in in [channels] + [width] * (layers - 1):
        parts += [
            nn.Conv2d(fan_in, width, 3, padding=1, bias=False),
            nn.BatchNorm2d(width),
            nn.ReLU(),
        ]
    return nn.Sequential(
        *parts, nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(4 * width, classes)
    )


def _double(fan_in: int, width: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(fan_in, width, 3, padding=1, bias=False),
        nn.BatchNorm2d(width),
        nn.ReLU(),
        nn.Conv2d(width, width, 3, padding=1, bias=False),
        nn.BatchNorm2d(width),
        nn.ReLU(),
    )


class UNet(nn.Module):
    """Two levels down and up, with skips."""

    def __init__(self, channels: int, outputs: int, width: int = 8) -> None:
        super().__init__()
        self.down1, self.down2 = _double(channels, width), _double(width, 2 * width)
        self.bottom = _double(2 * width, 2 * width)
        self.pool = nn.MaxPool2d(2)
        self.rise2 = nn.ConvTranspose2d(2 * width, 2 * width, 2, stride=2)
        self.rise1 = nn.ConvTranspose2d(2 * width, width, 2, stride=2)
        self.up2, self.up1 = _double(4 * width, 2 * width), _double(2 * width, width)
        self.head = nn.Conv2d(width, outputs, 1)

    def forward(self, x: Tensor) -> Tensor:
        """One value or logit per pixel and output."""
        first = self.down1(x)
        second = self.down2(self.pool(first))
        low = self.rise2(self.bottom(self.pool(second)))
        low = self.rise1(self.up2(torch.cat([second, low], 1)))
        return self.head(self.up1(torch.cat([first, low], 1)))


class PostNorm(nn.Module):
    """A transformer over characters, with norms after the sums; returns ``[N, classes, T]``."""

    def __init__(self, blocks: int, width: int, symbols: int, length: int) -> None:
        super().__init__()
        self.embed = nn.Embedding(symbols, width)
        self.place = nn.Parameter(0.1 * torch.randn(length, width))
        self.blocks = nn.ModuleList(_Attention(width) for _ in range(blocks))
        self.head = nn.Linear(width, symbols)

    def forward(self, tokens: Tensor) -> Tensor:
        """Logits of the next character at every place."""
        x = self.embed(tokens) + self.place[: tokens.shape[1]]
        for block in self.blocks:
            x = block(x)
        return self.head(x).transpose(1, 2)


class _Attention(nn.Module):
    def __init__(self, width: int, heads: int = 4) -> None:
        super().__init__()
        self.heads = heads
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.up, self.act, self.down = (
            nn.Linear(width, 4 * width),
            nn.ReLU(),
            nn.Linear(4 * width, width),
        )

    def forward(self, x: Tensor) -> Tensor:
        n, t, c = x.shape
        q, k, v = (
            part.reshape(n, t, self.heads, c // self.heads).transpose(1, 2)
            for part in self.qkv(x).chunk(3, -1)
        )
        seen = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = self.norm1(x + self.out(seen.transpose(1, 2).reshape(n, t, c)))
        return self.norm2(x + self.down(self.act(self.up(x))))


class CausalText(nn.Module):
    """Causal convolutions over characters with batch norm; returns ``[N, outputs, T]``."""

    def __init__(
        self, layers: int, width: int, symbols: int, outputs: int, *, pooled: bool
    ) -> None:
        super().__init__()
        self.embed = nn.Embedding(symbols, width)
        self.convs = nn.ModuleList(
            nn.Sequential(
                nn.ConstantPad1d((2, 0), 0.0),
                nn.Conv1d(width, width, 3, bias=False),
                nn.BatchNorm1d(width),
                nn.ReLU(),
            )
            for _ in range(layers)
        )
        self.head, self.pooled = nn.Conv1d(width, outputs, 1), pooled

    def forward(self, tokens: Tensor) -> Tensor:
        """Logits at every place, or of the whole text if pooled."""
        x = self.embed(tokens).transpose(1, 2)
        for conv in self.convs:
            x = x + conv(x)
        return self.head(x).mean(-1) if self.pooled else self.head(x)


def generator(width: int = 32) -> nn.Sequential:
    """DCGAN's generator for images of 8 × 8, with its initial weights."""
    layers = nn.Sequential(
        nn.Unflatten(1, (-1, 1, 1)),
        nn.ConvTranspose2d(26, 2 * width, 2, bias=False),
        nn.BatchNorm2d(2 * width),
        nn.ReLU(),
        nn.ConvTranspose2d(2 * width, width, 4, 2, 1, bias=False),
        nn.BatchNorm2d(width),
        nn.ReLU(),
        nn.ConvTranspose2d(width, 1, 4, 2, 1),
        nn.Tanh(),
    )
    for module in layers.modules():
        if isinstance(module, nn.ConvTranspose2d):
            nn.init.normal_(module.weight, 0.0, 0.02)
        elif isinstance(module, nn.BatchNorm2d):
            nn.init.normal_(module.weight, 1.0, 0.02)
    return layers
