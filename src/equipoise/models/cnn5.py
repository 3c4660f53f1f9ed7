"""The five-layer convolutional network of the preconditioning paper."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from functools import partial
from typing import Literal

from torch import nn

from equipoise.models.initialisation import glorot_uniform_
from equipoise.models.norms import CIFAR_GROUP_SIZE, Norm, make_norm
from equipoise.models.stack import stage
from equipoise.numerics.checks import check_choice, check_size
from equipoise.numerics.options import named_options

_FILTERS = (32, 64, 32)
_DENSE = 64


@named_options
def cnn5(
    classes: int = 10,
    in_channels: int = 3,
    *,
    image_size: int | tuple[int, int] = 32,
    padding: Literal["valid", "same"] = "valid",
    norm: Norm = "batch",
    dense_norm: Norm | None = None,
    after_activation: bool = True,
) -> nn.Sequential:
    r"""3×3 convolutions of 32, 64 and 32 filters, a dense layer of 64, and a linear head.

    Max-pooling of 2×2 follows the first two, ReLU all but the head. The layers are named
    ``conv1``, ``act1``, ``norm1``, ``pool1``, ``conv2``, …, ``norm3``, ``flatten``,
    ``linear4``, ``act4``, ``norm4``, ``head``. Weights start from Glorot's uniform
    distribution, biases from 0; layers just before a normaliser that subtracts each channel's
    mean have no bias.

    Args:
        classes: Number of logits.
        in_channels: Channels of the images.
        image_size: Height and width of the images, or the side of square ones.
        padding: ``"valid"`` for none, as in TensorFlow's tutorial, which needs images of at
            least 18×18; or ``"same"`` for one pixel on each side, which needs 4×4.
        norm: A kind of :func:`make_norm`, with groups of 4 channels where there are groups; or
            a function of the channels that makes a module.
        dense_norm: The same for the dense layer, whose input has no positions. By default
            ``norm``, but ``"none"`` for ``"instance"``, which needs positions. If ``norm`` is
            a function for images only, such as ``nn.BatchNorm2d``, pass one for dense layers.
        after_activation: Whether normalisers follow the activations, as in the paper, or
            precede them.

    Raises:
        ValueError: If a size is not positive, the images are too small, or a norm or the
            padding is unknown.

    Shape:
        - Input: ``[N, in_channels, *image_size]``.
        - Output: ``[N, classes]``.

    Examples:
        >>> sum(p.numel() for p in cnn5(norm="none").parameters())
        71338

    References:
        [lange2022], section 4 and appendix B; [glorot2010], equation 16.
    """
    check_size(classes=classes, in_channels=in_channels)
    check_choice("padding", padding, ["valid", "same"])
    height, width = (_side_before_dense(side, padding) for side in _sides(image_size))
    if dense_norm is None:
        dense_norm = "none" if norm == "instance" else norm
    layers: OrderedDict[str, nn.Module] = OrderedDict()
    channels = in_channels
    for number, filters in enumerate(_FILTERS, start=1):
        layers |= stage(
            "conv",
            number,
            # A number rather than PyTorch's padding="same", which other tools do not read.
            partial(nn.Conv2d, channels, filters, 3, padding=int(padding == "same")),
            norm=make_norm(norm, filters, dims=2, group_size=CIFAR_GROUP_SIZE),
            after_activation=after_activation,
        )
        if number < len(_FILTERS):
            layers[f"pool{number}"] = nn.MaxPool2d(2)
        channels = filters
    layers["flatten"] = nn.Flatten()
    layers |= stage(
        "linear",
        len(_FILTERS) + 1,
        partial(nn.Linear, channels * height * width, _DENSE),
        norm=make_norm(dense_norm, _DENSE, dims=0, group_size=CIFAR_GROUP_SIZE),
        after_activation=after_activation,
    )
    layers["head"] = nn.Linear(_DENSE, classes)
    return glorot_uniform_(nn.Sequential(layers))


def _sides(image_size: int | tuple[int, int]) -> tuple[int, int]:
    sides = (image_size, image_size) if isinstance(image_size, int) else image_size
    if not isinstance(sides, Sequence) or len(sides) != 2:
        raise ValueError(
            f"image_size must be a height and a width, or one number for both, got {sides!r}."
        )
    height, width = sides
    return height, width


def _side_before_dense(side: int, padding: str) -> int:
    """Height or width of the maps that reach the dense layer."""
    check_size(image_size=side)
    border, least = (2, 18) if padding == "valid" else (0, 4)
    if side < least:
        remedy = " padding='same' needs 4." if padding == "valid" else ""
        raise ValueError(
            f"image_size must be at least {least} with padding={padding!r}, got {side}.{remedy}"
        )
    return ((side - border) // 2 - border) // 2 - border
