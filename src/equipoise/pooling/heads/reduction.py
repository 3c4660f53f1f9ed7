"""Fewer channels before pooling: 1×1 convolution, batch norm, ReLU."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from equipoise.pooling.generators import placed


class Reduction(nn.Module):
    r"""A 1×1 convolution without bias, batch norm and ReLU, on rows of channels.

    Second-order pooling grows with the square of the channels: 512 give 131,328 numbers, 256
    give 32,896. Statistics in training are those of the valid positions alone.

    Args:
        in_channels: Channels C of the input.
        channels: Channels r of the output.
        generator: Source of the weights, PyTorch's usual uniform ones.

    Shape:
        - Input: ``[B, N, in_channels]``.
        - Output: ``[B, N, channels]``; arbitrary at positions that the mask excludes.

    References:
        [li2018], section 4.1: 256 channels.
    """

    def __init__(self, in_channels: int, channels: int, *, generator: torch.Generator):
        super().__init__()
        # Without memory at first: PyTorch would draw from its global generator.
        self.conv = nn.Conv1d(in_channels, channels, 1, bias=False, device="meta")
        weight = torch.empty(self.conv.weight.shape, device=generator.device)
        nn.init.kaiming_uniform_(weight, a=math.sqrt(5), generator=generator)
        self.conv.weight = nn.Parameter(placed(weight))
        self.norm = nn.BatchNorm1d(channels)
        self.act = nn.ReLU()

    def forward(self, features: Tensor, mask: Tensor | None = None) -> Tensor:
        """Reduce rows; in training only valid positions enter the statistics."""
        if mask is None:
            return self._map(features)
        if not self.training:
            # Positions are independent here, so shapes need not depend on the mask's values.
            return self._map(torch.where(mask[..., None], features, 0.0))
        valid = self._map(features[mask][:, None])[:, 0]
        reduced = valid.new_zeros(*mask.shape, valid.shape[-1])
        return reduced.index_put((mask,), valid)

    def _map(self, features: Tensor) -> Tensor:
        # Not Conv2d on [B, C, N, 1]: the compiler cannot order strides there if sizes are dynamic.
        reduced: Tensor = self.act(self.norm(self.conv(features.mT)))
        return reduced.mT
