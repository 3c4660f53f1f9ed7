"""A small convolutional network whose global pooling is one of the second-order heads."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from torch import nn

from equipoise import models
from equipoise.pooling import (
    BilinearPool,
    CompactBilinearPool,
    ISQRTPool,
    MatrixPowerPool,
    RUNPool,
)

_CHANNELS = (16, 32, 32)
_COMPACT = 256
# The same for all heads except the signed root, which is a method of its own.
_PLAIN: dict[str, Any] = {"signed_root": False, "unit_norm": True}

HEADS: Mapping[str, Callable[..., nn.Module]] = {
    "plain": partial(BilinearPool, **_PLAIN),
    "signed root": partial(BilinearPool, signed_root=True, unit_norm=True),
    "iSQRT, 5 steps": partial(ISQRTPool, **_PLAIN),
    "eigen root": partial(MatrixPowerPool, **_PLAIN),
    "RUN, η = 0.5, K = 1": partial(RUNPool, eta=0.5, num_steps=1, **_PLAIN),
    "RUN, η = 0.5, K = 2": partial(RUNPool, eta=0.5, num_steps=2, **_PLAIN),
    "RUN, η = 0.8, K = 2": partial(RUNPool, eta=0.8, num_steps=2, **_PLAIN),
    "RUN, η = 1, K = 2": partial(RUNPool, eta=1.0, num_steps=2, **_PLAIN),
    "compact": partial(CompactBilinearPool, size=_COMPACT, run=False, **_PLAIN),
    "compact, RUN, η = 0.8, K = 2": partial(
        CompactBilinearPool, size=_COMPACT, eta=0.8, num_steps=2, **_PLAIN
    ),
}
"""How each head is made, from its number of channels and a seed."""


def small_cnn(head: str, *, classes: int, in_channels: int, seed: int) -> nn.Sequential:
    """Three 3×3 convolutions with ReLU and no normaliser, a head, and a linear classifier.

    Weights are Glorot's uniform ones, from PyTorch's generator; what a head draws comes from
    the seed. RUN's start stays the same all along.
    """
    pooling = partial(HEADS[head], seed=seed)
    return models.bilinear_cnn(
        classes, in_channels, pooling=pooling, filters=_CHANNELS, norm="none"
    )
