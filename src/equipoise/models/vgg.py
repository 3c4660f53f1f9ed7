"""Plain deep convolutional networks, with the small head that CIFAR needs."""

from __future__ import annotations

from collections import OrderedDict
from functools import partial
from typing import Literal

from torch import nn

from equipoise.models.checks import check_choice, check_positive
from equipoise.models.initialisation import he_normal_
from equipoise.models.norms import Norm, make_norm
from equipoise.models.stack import stage

VGGName = Literal["vgg11", "vgg13", "vgg16", "vgg19"]

# Simonyan and Zisserman 2015, table 1, columns A, B, D, E: convolutions in each block.
_CONVOLUTIONS: dict[str, tuple[int, ...]] = {
    "vgg11": (1, 1, 2, 2, 2),
    "vgg13": (2, 2, 2, 2, 2),
    "vgg16": (2, 2, 3, 3, 3),
    "vgg19": (2, 2, 4, 4, 4),
}
# Channels of each block, in multiples of the first one's.
_WIDENING = (1, 2, 4, 8, 8)


def vgg(
    name: VGGName = "vgg16",
    classes: int = 10,
    in_channels: int = 3,
    *,
    width: int = 64,
    norm: Norm = "batch",
) -> nn.Sequential:
    r"""A VGG network: five blocks of 3×3 convolutions, global mean, linear head.

    Each block ends in 2×2 max-pooling (rounded up, so images of any size will do); it has 1,
    2, 4, 8 and 8 times ``width`` channels. Each convolution is normalised, then rectified. The
    head is one linear layer instead of the original's three, as is usual for CIFAR. Layers are
    named ``conv1_1``, ``norm1_1``, ``act1_1``, …, ``pool1``, …, ``avgpool``, ``flatten``,
    ``head``. Convolutions start from :math:`\mathcal{N}(0, 2 / \text{fan-out})`; before a
    normaliser that subtracts each channel's mean they have no bias.

    Args:
        name: ``"vgg11"``, ``"vgg13"``, ``"vgg16"`` or ``"vgg19"``.
        classes: Number of logits.
        in_channels: Channels of the images.
        width: Channels of the first block.
        norm: A kind of :data:`NORMS`, with 32 groups (fewer where they do not divide) where
            there are groups; or a function of the channels that makes a module. See
            :func:`make_norm`.

    Raises:
        ValueError: If the name or the norm is unknown, or a size is not positive.

    Shape:
        - Input: ``[N, in_channels, H, W]``.
        - Output: ``[N, classes]``.

    Examples:
        >>> model = vgg("vgg11", norm="none")
        >>> sum(p.numel() for p in model.parameters()) - 5_130  # without the head
        9220480

    References:
        [simonyan2015], table 1.
    """
    check_choice("name", name, _CONVOLUTIONS)
    check_positive(classes=classes, in_channels=in_channels, width=width)
    layers: OrderedDict[str, nn.Module] = OrderedDict()
    channels = in_channels
    for block, (count, widening) in enumerate(
        zip(_CONVOLUTIONS[name], _WIDENING, strict=True), start=1
    ):
        for number in range(1, count + 1):
            layers |= stage(
                "conv",
                f"{block}_{number}",
                partial(_convolution, channels, widening * width),
                norm=make_norm(norm, widening * width, dims=2),
            )
            channels = widening * width
        layers[f"pool{block}"] = nn.MaxPool2d(2, ceil_mode=True)
    layers["avgpool"] = nn.AdaptiveAvgPool2d(1)
    layers["flatten"] = nn.Flatten()
    layers["head"] = nn.Linear(channels, classes)
    return he_normal_(nn.Sequential(layers))


def _convolution(in_channels: int, out_channels: int, bias: bool) -> nn.Conv2d:
    return nn.Conv2d(in_channels, out_channels, 3, padding=1, bias=bias)
