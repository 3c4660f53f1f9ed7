"""Plain deep convolutional networks, with the small head that CIFAR needs."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from functools import partial
from itertools import pairwise
from typing import Literal

from torch import nn

from equipoise.models.initialisation import he_normal_
from equipoise.models.norms import Norm, make_norm
from equipoise.models.stack import stage
from equipoise.numerics.checks import check_choice, check_size, is_whole
from equipoise.numerics.options import named_options

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


@named_options
def vgg(
    name: VGGName | Sequence[Sequence[int]] = "vgg16",
    classes: int = 10,
    in_channels: int = 3,
    *,
    width: int | None = None,
    norm: Norm = "batch",
    dense: Sequence[int] = (),
    dense_norm: Norm | None = None,
    head_size: int = 1,
) -> nn.Sequential:
    r"""A VGG network: blocks of 3×3 convolutions, mean over positions, linear head.

    The named networks have five blocks, of 1, 2, 4, 8 and 8 times ``width`` channels. Each
    block ends in 2×2 max-pooling (rounded up, so images may have any size). Each convolution
    is normalised, then rectified. The head is one linear layer instead of the original's three,
    as is usual for CIFAR, unless ``dense`` adds more. Layers are named ``conv1_1``,
    ``norm1_1``, ``act1_1``, …, ``pool1``, …, ``avgpool``, ``flatten``, ``head``, and dense
    layers go on counting, as ``linear6``, ``norm6``, ``act6``. Convolutions start from
    :math:`\mathcal{N}(0, 2 / \text{fan-out})`; before a normaliser that subtracts each channel's
    mean they have no bias.

    Args:
        name: ``"vgg11"``, ``"vgg13"``, ``"vgg16"`` or ``"vgg19"``; or the channels of every
            convolution, block by block.
        classes: Number of logits.
        in_channels: Channels of the images.
        width: Channels of the first block of a named network; 64 if None.
        norm: A kind of :func:`make_norm`, with 32 groups (fewer where they do not divide) where
            there are groups; or a function of the channels that makes a module.
        dense: Neurons of dense layers before the head, each normalised, then rectified.
        dense_norm: Normaliser of the dense layers, whose input has no positions. By default
            ``norm``, but ``"none"`` for ``"instance"``, which needs positions. If ``norm`` is
            a function for images only, such as ``nn.BatchNorm2d``, pass one for dense layers.
        head_size: Side of the square map that is flattened for the head. Positions are averaged
            down to it; 1 for their mean.

    Raises:
        ValueError: If the name or the norm is unknown, a size is not positive, or a width is
            given beside a plan of channels.

    Shape:
        - Input: ``[N, in_channels, H, W]``.
        - Output: ``[N, classes]``.

    Examples:
        >>> model = vgg("vgg11", norm="none")
        >>> sum(p.numel() for p in model.parameters()) - 5_130  # without the head
        9220480

        A small one for 28×28 and 32×32 images, whose maps are 4×4 after three blocks, with
        Glorot's weights:

        >>> from equipoise.models import glorot_uniform_
        >>> plan = ((12, 12), (24, 24), (48, 48))
        >>> small = glorot_uniform_(vgg(plan, 10, 1, dense=(64,), head_size=4))
        >>> [tuple(p.shape) for name, p in small.named_parameters() if name == "linear4.weight"]
        [(64, 768)]

    References:
        [simonyan2015], table 1.
    """
    check_size(classes=classes, in_channels=in_channels, head_size=head_size)
    blocks = _plan(name, width)
    layers = _blocks(blocks, in_channels, norm)
    layers["avgpool"] = nn.AdaptiveAvgPool2d(head_size)
    layers["flatten"] = nn.Flatten()
    if dense_norm is None:
        dense_norm = "none" if norm == "instance" else norm
    features = [blocks[-1][-1] * head_size**2, *_sizes("dense", dense)]
    for number, (before, after) in enumerate(pairwise(features), start=len(blocks) + 1):
        make = partial(nn.Linear, before, after)
        layers |= stage("linear", number, make, norm=make_norm(dense_norm, after, dims=0))
    layers["head"] = nn.Linear(features[-1], classes)
    return he_normal_(nn.Sequential(layers))


def _plan(name: VGGName | Sequence[Sequence[int]], width: int | None) -> list[Sequence[int]]:
    """Channels of every convolution, block by block."""
    if isinstance(name, str):
        check_choice("name", name, _CONVOLUTIONS)
        width = 64 if width is None else width
        check_size(width=width)
        return [
            count * (widening * width,)
            for count, widening in zip(_CONVOLUTIONS[name], _WIDENING, strict=True)
        ]
    if width is not None:
        raise ValueError(
            f"width={width} is for named networks; a plan has the channels of every convolution."
        )
    if is_whole(name) or not all([name, *name]):
        raise ValueError(
            f"name must be one of {', '.join(_CONVOLUTIONS)}, or a plan, whose blocks have at "
            f"least one convolution, as ((12, 12), (24, 24)); got {name!r}."
        )
    return [_sizes("a block", block) for block in name]


def _sizes(name: str, sizes: Sequence[int]) -> Sequence[int]:
    if not isinstance(sizes, Sequence):
        raise ValueError(f"{name} must be a sequence of numbers, as (64,); got {sizes!r}.")
    for size in sizes:
        check_size(**{name: size})
    return sizes


def _blocks(
    blocks: Sequence[Sequence[int]], in_channels: int, norm: Norm
) -> OrderedDict[str, nn.Module]:
    layers: OrderedDict[str, nn.Module] = OrderedDict()
    before = in_channels
    for block, widths in enumerate(blocks, start=1):
        for number, after in enumerate(widths, start=1):
            make = partial(nn.Conv2d, before, after, 3, padding=1)
            layers |= stage("conv", f"{block}_{number}", make, norm=make_norm(norm, after))
            before = after
        layers[f"pool{block}"] = nn.MaxPool2d(2, ceil_mode=True)
    return layers
