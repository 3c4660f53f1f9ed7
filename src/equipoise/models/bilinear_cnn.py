"""A small convolutional network whose global pooling is a second-order head."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from functools import partial

import torch
from torch import nn

from equipoise.models.initialisation import glorot_uniform_
from equipoise.models.norms import Norm, make_norm
from equipoise.models.stack import stage
from equipoise.numerics.checks import check_size
from equipoise.numerics.options import named_options
from equipoise.pooling.heads.run import RUNPool


@named_options
def bilinear_cnn(
    classes: int = 10,
    in_channels: int = 1,
    *,
    pooling: Callable[[int], nn.Module] = RUNPool,
    filters: Sequence[int] = (32, 64, 64),
    norm: Norm = "batch",
    generator: torch.Generator | None = None,
) -> nn.Sequential:
    r"""3×3 convolutions, a second-order head, and a linear layer, for images of about 28×28.

    The convolutions keep the resolution. Max-pooling stands between them, except before the
    last, so that 28×28 images become 14×14 positions of ``filters[-1]`` features after a ReLU.
    Layers are named ``conv1``, ``norm1``, ``act1``, ``pool1``, ``conv2``, …, ``pooling``,
    ``head``. Weights start from Glorot's uniform distribution, biases from 0.

    Args:
        classes: Number of logits.
        in_channels: Channels of the images.
        pooling: Makes the second-order head when called with its channels, as
            ``partial(RUNPool, eta=1.0)`` does. The head must have an ``output_dim``.
        filters: Channels of each convolution.
        norm: A kind of :func:`make_norm`, or a function of the channels that makes a module.
        generator: Source of all weights but those of the pooling, which has its own generator;
            PyTorch's own if None.

    Raises:
        ValueError: If a size is not positive, there is no convolution, the norm is unknown, or
            ``pooling`` makes no head.

    Shape:
        - Input: ``[N, in_channels, H, W]``.
        - Output: ``[N, classes]``.

    Examples:
        >>> from equipoise.pooling import BilinearPool
        >>> model = bilinear_cnn(pooling=partial(BilinearPool, reduction=16))
        >>> [name for name, _ in model.named_children()][-4:]
        ['norm3', 'act3', 'pooling', 'head']
        >>> model.head.in_features  # 16 · 17 / 2
        136

    References:
        [lin2015], with a network of the size of the experiments; [yu2020].
    """
    check_size(classes=classes, in_channels=in_channels)
    check_size(**{f"filters[{n}]": channels for n, channels in enumerate(filters)})
    if not filters:
        raise ValueError("filters must name at least one convolution, got none.")
    layers: OrderedDict[str, nn.Module] = OrderedDict()
    channels = in_channels
    for number, width in enumerate(filters, start=1):
        layers |= stage(
            "conv",
            number,
            partial(nn.Conv2d, channels, width, 3, padding=1),
            norm=make_norm(norm, width),
        )
        if number < len(filters) - 1:
            layers[f"pool{number}"] = nn.MaxPool2d(2)
        channels = width
    layers["pooling"] = head = pooling(channels)
    layers["head"] = nn.Linear(_output_dim(head), classes)
    for name, part in layers.items():
        if name != "pooling":  # which has drawn its own weights
            glorot_uniform_(part, generator=generator)
    return nn.Sequential(layers)


def _output_dim(head: object) -> int:
    size = getattr(head, "output_dim", None)
    if not isinstance(head, nn.Module) or not isinstance(size, int):
        raise ValueError(
            "pooling must make a module with output_dim when called with the channels, as "
            f"RUNPool does; got {head!r}."
        )
    return size
