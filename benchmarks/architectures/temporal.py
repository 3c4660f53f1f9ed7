"""Causal convolutional language models."""

from __future__ import annotations

from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.parametrizations import weight_norm

from architectures._architecture import VOCABULARY, Architecture, texts, token_cross_entropy
from architectures._parts import CausalConv1d, Permute, Residual, initialise_


def tcn_block(in_channels: int, out_channels: int, dilation: int) -> Residual:
    """Two dilated causal convolutions with weight norm, ReLU and dropout after each."""
    layers: list[nn.Module] = []
    for channels in (in_channels, out_channels):
        convolution = CausalConv1d(channels, out_channels, 3, dilation=dilation)
        layers += [weight_norm(convolution), nn.ReLU(), nn.Dropout(0.2)]
    return Residual(
        nn.Sequential(*layers),
        shortcut=None if in_channels == out_channels else _narrow(in_channels, out_channels),
        after=nn.ReLU(),
    )


def _narrow(in_channels: int, out_channels: int) -> nn.Module:
    shortcut = nn.Conv1d(in_channels, out_channels, 1)
    nn.init.normal_(shortcut.weight, std=0.01)
    return shortcut


def tcn(embedding: int = 64, width: int = 128) -> nn.Module:
    """A temporal convolutional network on characters [Bai 2018, arXiv:1803.01271].

    The paper's code means to draw all convolutions with standard deviation 0.01, but weight norm
    discards that for all but the shortcut's, so that the others start from PyTorch's default.
    """
    tokens = nn.Embedding(VOCABULARY, embedding)
    blocks = [tcn_block(embedding if level == 0 else width, width, 2**level) for level in range(4)]
    head = nn.Linear(width, VOCABULARY)
    model = nn.Sequential(tokens, Permute(0, 2, 1), *blocks, Permute(0, 2, 1), head)
    initialise_(model, partial(nn.init.uniform_, a=-0.1, b=0.1), nn.Embedding, nn.Linear)
    return model


class WaveNetLayer(nn.Module):
    """A gated dilated convolution, and 1×1 convolutions to the residual and the skip stream."""

    def __init__(self, width: int, skip: int, dilation: int):
        super().__init__()
        self.signal = CausalConv1d(width, width, 2, dilation=dilation)
        self.gate = CausalConv1d(width, width, 2, dilation=dilation)
        self.residual = nn.Conv1d(width, width, 1)
        self.skip = nn.Conv1d(width, skip, 1)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """The next layer's input and the contribution to the output."""
        gated = torch.tanh(self.signal(x)) * torch.sigmoid(self.gate(x))
        return x + self.residual(gated), self.skip(gated)


class WaveNet(nn.Module):
    """WaveNet with two cycles of dilations [van den Oord 2016, arXiv:1609.03499]."""

    def __init__(
        self, width: int = 128, skip: int = 128, dilations: tuple[int, ...] = (1, 2, 4, 8) * 2
    ):
        super().__init__()
        self.stem = CausalConv1d(VOCABULARY, width, 2)
        self.layers = nn.ModuleList(WaveNetLayer(width, skip, d) for d in dilations)
        self.head = nn.Sequential(
            nn.ReLU(), nn.Conv1d(skip, skip, 1), nn.ReLU(), nn.Conv1d(skip, VOCABULARY, 1)
        )

    def forward(self, tokens: Tensor) -> Tensor:
        """Logits ``[N, T, vocabulary]`` of tokens ``[N, T]``."""
        one_hot = F.one_hot(tokens, VOCABULARY).to(self.stem.weight.dtype)
        x = self.stem(one_hot.transpose(1, 2))
        total = None
        for layer in self.layers:
            x, skip = layer(x)
            total = skip if total is None else total + skip
        logits: Tensor = self.head(total)
        return logits.transpose(1, 2)


TEMPORAL = (
    Architecture("tcn", tcn, texts, token_cross_entropy),
    Architecture("wavenet", WaveNet, texts, token_cross_entropy),
)
