"""Networks that classify every pixel."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import pairwise

import torch
from torch import Tensor, nn

from architectures._architecture import CLASSES, Architecture, cross_entropy, segmentations
from architectures._parts import convolution, initialise_

Norm = Callable[[int], nn.Module]


def double_convolution(in_channels: int, out_channels: int, norm: Norm) -> nn.Sequential:
    """Two 3×3 convolutions, each with norm and ReLU."""
    return nn.Sequential(
        convolution(in_channels, out_channels, 3),
        norm(out_channels),
        nn.ReLU(),
        convolution(out_channels, out_channels, 3),
        norm(out_channels),
        nn.ReLU(),
    )


class UNet(nn.Module):
    """U-Net with padding [Ronneberger 2015, arXiv:1505.04597], two levels deep.

    The original has no norm; instance norm as in nnU-Net [Isensee 2018, arXiv:1809.10486].

    Args:
        norm: Makes a norm when called with the channels.
        widths: Channels at each resolution.
    """

    def __init__(self, norm: Norm, widths: tuple[int, ...] = (64, 128, 256)):
        super().__init__()
        pairs = list(pairwise(widths))
        self.entry = double_convolution(3, widths[0], norm)
        self.down = nn.ModuleList(
            nn.Sequential(nn.MaxPool2d(2), double_convolution(fine, coarse, norm))
            for fine, coarse in pairs
        )
        self.up = nn.ModuleList(
            nn.ConvTranspose2d(coarse, fine, 2, stride=2) for fine, coarse in reversed(pairs)
        )
        self.merge = nn.ModuleList(
            double_convolution(2 * fine, fine, norm) for fine, _ in reversed(pairs)
        )
        self.head = nn.Conv2d(widths[0], CLASSES, 1)
        initialise_(self, nn.init.kaiming_normal_, nn.Conv2d)

    def forward(self, x: Tensor) -> Tensor:
        """Logits ``[N, classes, H, W]`` of images ``[N, 3, H, W]``."""
        skips = [self.entry(x)]
        for down in self.down:
            skips.append(down(skips[-1]))
        x = skips.pop()
        for up, merge in zip(self.up, self.merge, strict=True):
            x = merge(torch.cat([skips.pop(), up(x)], dim=1))
        logits: Tensor = self.head(x)
        return logits


NORMS: dict[str, Norm] = {
    "batch": nn.BatchNorm2d,
    "instance": partial(nn.InstanceNorm2d, affine=True),
    "group": partial(nn.GroupNorm, 32),
}

DENSE_PREDICTION = tuple(
    Architecture(f"unet_{name}_norm", partial(UNet, norm), segmentations, cross_entropy)
    for name, norm in NORMS.items()
)
