"""From bytes to network inputs, alike for every set: standardised, or in [0, 1]."""

from __future__ import annotations

import torch
from torch import Tensor

from equipoise.data.source import Samples


def standardised(name: str, images: Tensor, labels: Tensor, classes: int) -> Samples:
    r"""Images as float32 with mean 0 and variance 1 in each channel, over the whole set.

    Args:
        name: The set.
        images: uint8, shape ``[N, C, H, W]``.
        labels: Class numbers, shape ``[N]``.
        classes: Number of classes.

    Raises:
        ValueError: If a label is out of range, or a channel is constant.
    """
    if len(labels) and not 0 <= int(labels.min()) <= int(labels.max()) < classes:
        raise ValueError(
            f"{name} has labels from {int(labels.min())} to {int(labels.max())}; its "
            f"{classes} classes are numbered from 0 to {classes - 1}."
        )
    inputs = images.to(torch.float32)
    levels = torch.arange(256, dtype=torch.float64, device="cpu")
    for channel in range(images.shape[1]):
        # A histogram gives both moments exactly, without a float64 copy of the whole set.
        counts = torch.bincount(images[:, channel].reshape(-1), minlength=256).double()
        mean = (levels * counts).sum() / counts.sum()
        deviation = ((levels - mean).square() * counts).sum().div(counts.sum()).sqrt()
        if not deviation > 0:
            raise ValueError(f"{name}: channel {channel} is constant and has no scale.")
        inputs[:, channel].sub_(float(mean)).div_(float(deviation))
    return Samples(name, inputs, labels.to(torch.int64), classes)


def to_unit(
    name: str, images: Tensor, labels: Tensor, classes: int, *, white: int = 255
) -> Samples:
    """Images as float32 in [0, 1]; ``white`` is the level that becomes 1."""
    return Samples(name, images.to(torch.float32) / white, labels.to(torch.int64), classes)
