"""The thin residual networks for CIFAR, in their original and pre-activation forms."""

from __future__ import annotations

from functools import partial
from typing import Literal, cast

import torch.nn.functional as F
from torch import Tensor, nn

from equipoise.models.initialisation import he_normal_
from equipoise.models.norms import CIFAR_GROUP_SIZE, Norm, make_norm
from equipoise.models.resnet import BasicBlock, convolution
from equipoise.numerics.checks import check_choice, check_positive, check_size
from equipoise.numerics.options import named_options

Shortcut = Literal["A", "B"]


class PadShortcut(nn.Module):
    """Shortcut without parameters: every ``stride``-th pixel, and further channels of zeros.

    Args:
        extra_channels: Channels of zeros.
        stride: Step between the pixels kept.

    Shape:
        - Input: ``[N, C, H, W]``.
        - Output: ``[N, C + extra_channels, ⌈H / stride⌉, ⌈W / stride⌉]``.

    References:
        [he2016], section 3.3, option A.
    """

    def __init__(self, extra_channels: int, stride: int):
        super().__init__()
        self.extra_channels = extra_channels
        self.stride = stride

    def forward(self, x: Tensor) -> Tensor:
        """Subsample the pixels and append channels of zeros."""
        kept = x[:, :, :: self.stride, :: self.stride]
        return F.pad(kept, (0, 0, 0, 0, 0, self.extra_channels))

    def extra_repr(self) -> str:
        """The arguments."""
        return f"extra_channels={self.extra_channels}, stride={self.stride}"


class PreactivationBlock(nn.Module):
    r"""Two 3×3 convolutions, each after its normaliser and activation, beside a shortcut.

    .. math:: h = \phi(n_1(x)), \quad y = s + W_2 * \phi(n_2(W_1 * h)),

    with the shortcut s = x or, in the first block of a stage (``first``), h itself or, where
    the shape changes, ``downsample`` of h. No activation follows the sum.

    Args:
        in_channels: Channels of the input.
        out_channels: Channels of the output.
        stride: Of the first convolution.
        norm: A kind of :func:`make_norm`, or a function of the channels that makes a module.
        first: Whether the shortcut starts after the first activation.
        downsample: Shortcut where the shape changes; by default a 1×1 convolution.

    Raises:
        ValueError: If a size is not positive or the norm is unknown.

    Shape:
        - Input: ``[N, in_channels, H, W]``.
        - Output: ``[N, out_channels, ⌈H / stride⌉, ⌈W / stride⌉]``.

    References:
        [he2016b], figure 1 (b) and appendix.
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        *,
        stride: int = 1,
        norm: Norm = "batch",
        first: bool = False,
        downsample: nn.Module | None = None,
    ):
        super().__init__()
        check_size(in_channels=in_channels, out_channels=out_channels, stride=stride)
        self.first = first
        self.bn1 = make_norm(norm, in_channels)
        self.act1 = nn.ReLU()
        self.conv1 = convolution(in_channels, out_channels, stride, norm=norm)
        self.bn2 = make_norm(norm, out_channels)
        self.act2 = nn.ReLU()
        self.conv2 = convolution(out_channels, out_channels, 1, norm=norm)
        self.downsample: nn.Module | None = None
        if stride != 1 or in_channels != out_channels:
            self.downsample = downsample
            if downsample is None:
                self.downsample = convolution(
                    in_channels, out_channels, stride, kernel=1, norm=norm
                )

    def forward(self, x: Tensor) -> Tensor:
        """Add the residual to the shortcut."""
        activated = self.act1(self.bn1(x))
        shortcut = activated if self.first else x
        if self.downsample is not None:
            shortcut = self.downsample(shortcut)
        residual = self.conv2(self.act2(self.bn2(self.conv1(activated))))
        return cast(Tensor, shortcut + residual)


class CifarResNet(nn.Module):
    """A thin residual network; see :func:`resnet_cifar`, which describes and builds it."""

    def __init__(
        self,
        depth: int,
        *,
        classes: int,
        in_channels: int,
        width: int,
        norm: Norm,
        preactivation: bool,
        shortcut: Shortcut,
        init_scale: float,
    ):
        super().__init__()
        check_size(depth=depth, classes=classes, in_channels=in_channels, width=width)
        check_choice("shortcut", shortcut, ["A", "B"])
        check_positive(init_scale=init_scale)
        if depth < 8 or depth % 6 != 2:
            raise ValueError(f"depth must be 6n + 2, as 20, 32, 44, 56 or 110 are, got {depth}.")
        if norm == "group" or norm == "four_things":
            norm = partial(make_norm, norm, group_size=CIFAR_GROUP_SIZE)
        self.preactivation = preactivation
        self.conv1 = convolution(in_channels, width, 1, norm=norm)
        self.bn1 = nn.Identity() if preactivation else make_norm(norm, width)
        self.act1 = nn.Identity() if preactivation else nn.ReLU()
        stage = partial(_stage, (depth - 2) // 6, norm, preactivation, shortcut)
        self.layer1 = stage(width, width)
        self.layer2 = stage(width, 2 * width)
        self.layer3 = stage(2 * width, 4 * width)
        # In the original form the last block ends in an activation already.
        self.bn_last = make_norm(norm, 4 * width) if preactivation else nn.Identity()
        self.act_last = nn.ReLU() if preactivation else nn.Identity()
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.fc = nn.Linear(4 * width, classes)
        he_normal_(self, scale=init_scale)

    def forward(self, x: Tensor) -> Tensor:
        """Logits ``[N, classes]`` of images ``[N, in_channels, H, W]``."""
        x = self.act1(self.bn1(self.conv1(x)))
        x = self.layer3(self.layer2(self.layer1(x)))
        x = self.act_last(self.bn_last(x))
        return cast(Tensor, self.fc(self.avgpool(x).flatten(1)))


@named_options
def resnet_cifar(
    depth: int = 20,
    classes: int = 10,
    in_channels: int = 3,
    *,
    preactivation: bool = False,
    norm: Norm = "batch",
    shortcut: Shortcut = "A",
    width: int = 16,
    init_scale: float = 1.0,
) -> CifarResNet:
    r"""A residual network for images of about 32×32, of depth 6n + 2.

    A 3×3 convolution, three stages of n blocks with 1, 2 and 4 times ``width`` channels (the
    last two halve the resolution), global mean and a linear head. Convolutions start from
    :math:`\mathcal{N}(0, \text{init\_scale}^2 \cdot 2 / \text{fan-out})` and have a bias only
    if ``norm`` is ``"none"``. Parameters are named as in :func:`resnet18`, with ``bn_last``
    before the head of the pre-activation form.

    Args:
        depth: Layers with weights along the main path: 8, 14, 20, …, 110, ….
        classes: Number of logits.
        in_channels: Channels of the images.
        preactivation: Whether normaliser and activation precede each convolution, as in
            [he2016b], or follow it.
        norm: A kind of :func:`make_norm`, with groups of 4 channels where there are groups; or
            a function of the channels that makes a module. With ``"none"`` each block nearly
            doubles the variance, and at depth 110 logits start near 10⁷ (10⁵ with
            pre-activation): choose ``init_scale`` below 1.
        shortcut: Where the shape changes: ``"A"`` for subsampled pixels and channels of zeros,
            as in the papers' experiments on CIFAR; ``"B"`` for a 1×1 convolution, normalised in
            the original form.
        width: Channels of the first stage.
        init_scale: Factor of the convolutions' initial weights, above 0; [lange2022] takes
            0.1 and 0.4 with group norm.

    Raises:
        ValueError: If the depth is not 6n + 2, a size is not positive, or the norm or the
            shortcut is unknown.

    Shape:
        - Input: ``[N, in_channels, H, W]``.
        - Output: ``[N, classes]``.

    Examples:
        >>> sum(p.numel() for p in resnet_cifar(20).parameters())  # published: 0.27 million
        269722

    References:
        [he2016], section 4.2 and table 6; [he2016b] for the pre-activation form; [lange2022],
        appendix B, for groups of 4.
    """
    return CifarResNet(
        depth,
        classes=classes,
        in_channels=in_channels,
        width=width,
        norm=norm,
        preactivation=preactivation,
        shortcut=shortcut,
        init_scale=init_scale,
    )


def _stage(
    blocks: int,
    norm: Norm,
    preactivation: bool,
    shortcut: Shortcut,
    in_channels: int,
    out_channels: int,
) -> nn.Sequential:
    """Blocks of one resolution; the first halves it if it changes the channels."""
    stride = 1 if in_channels == out_channels else 2
    pad = PadShortcut(out_channels - in_channels, stride) if shortcut == "A" else None
    head: nn.Module
    if preactivation:
        head = PreactivationBlock(
            in_channels, out_channels, stride=stride, norm=norm, first=True, downsample=pad
        )
    else:
        head = BasicBlock(in_channels, out_channels, stride=stride, norm=norm, downsample=pad)
    block = PreactivationBlock if preactivation else BasicBlock
    return nn.Sequential(
        head, *(block(out_channels, out_channels, norm=norm) for _ in range(blocks - 1))
    )
