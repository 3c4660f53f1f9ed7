"""Residual networks of basic blocks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

from torch import Tensor, nn

from equipoise.models.initialisation import he_normal_
from equipoise.models.norms import Norm, make_norm
from equipoise.numerics.checks import check_size
from equipoise.numerics.options import named_options


class BasicBlock(nn.Module):
    r"""Two 3×3 convolutions beside a shortcut.

    .. math:: y = \phi(n_2(W_2 * \phi(n_1(W_1 * x))) + s(x))

    with normalisers :math:`n`, and :math:`s` the identity, or a normalised 1×1 convolution
    where the shape changes. Convolutions have a bias only where no normaliser follows.

    Args:
        in_channels: Channels of the input.
        out_channels: Channels of the output.
        stride: Of the first convolution and of the shortcut.
        norm: A kind of :func:`make_norm`, or a function of the channels that makes a module.
        downsample: Shortcut in place of the 1×1 convolution, where the shape changes.

    Raises:
        ValueError: If a size is not positive or the norm is unknown.

    Shape:
        - Input: ``[N, in_channels, H, W]``.
        - Output: ``[N, out_channels, ⌈H / stride⌉, ⌈W / stride⌉]``.

    References:
        [he2016] Deep residual learning for image recognition, figure 5 (left).
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        *,
        stride: int = 1,
        norm: Norm = "batch",
        downsample: nn.Module | None = None,
    ):
        super().__init__()
        check_size(in_channels=in_channels, out_channels=out_channels, stride=stride)
        self.conv1 = convolution(in_channels, out_channels, stride, norm=norm)
        self.bn1 = make_norm(norm, out_channels)
        # One module per use, so that a hook sees each activation once.
        self.act1 = nn.ReLU()
        self.conv2 = convolution(out_channels, out_channels, 1, norm=norm)
        self.bn2 = make_norm(norm, out_channels)
        self.act2 = nn.ReLU()
        self.downsample: nn.Module | None = None
        if stride != 1 or in_channels != out_channels:
            self.downsample = downsample
            if downsample is None:
                self.downsample = nn.Sequential(
                    convolution(in_channels, out_channels, stride, kernel=1, norm=norm),
                    make_norm(norm, out_channels),
                )

    def forward(self, x: Tensor) -> Tensor:
        """Add the residual to the shortcut."""
        shortcut = x if self.downsample is None else self.downsample(x)
        residual = self.bn2(self.conv2(self.act1(self.bn1(self.conv1(x)))))
        return cast(Tensor, self.act2(residual + shortcut))


class ResNet(nn.Module):
    """A residual network of basic blocks; see :func:`resnet18` for the arguments.

    Args:
        blocks: Basic blocks in each of the four stages.
    """

    def __init__(
        self,
        blocks: Sequence[int],
        *,
        classes: int = 10,
        in_channels: int = 3,
        small_images: bool = True,
        width: int = 64,
        norm: Norm = "batch",
    ):
        super().__init__()
        check_size(classes=classes, in_channels=in_channels, width=width)
        if len(blocks) != 4:
            raise ValueError(f"blocks must name four stages, got {list(blocks)}.")
        check_size(**{f"blocks[{stage}]": count for stage, count in enumerate(blocks)})
        if small_images:
            self.conv1 = convolution(in_channels, width, 1, norm=norm)
        else:
            self.conv1 = convolution(in_channels, width, 2, kernel=7, norm=norm)
        self.bn1 = make_norm(norm, width)
        self.act1 = nn.ReLU()
        self.maxpool = nn.Identity() if small_images else nn.MaxPool2d(3, stride=2, padding=1)
        self.layer1 = _stage(width, width, blocks[0], 1, norm)
        self.layer2 = _stage(width, 2 * width, blocks[1], 2, norm)
        self.layer3 = _stage(2 * width, 4 * width, blocks[2], 2, norm)
        self.layer4 = _stage(4 * width, 8 * width, blocks[3], 2, norm)
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.fc = nn.Linear(8 * width, classes)
        he_normal_(self)

    def forward(self, x: Tensor) -> Tensor:
        """Logits ``[N, classes]`` of images ``[N, in_channels, H, W]``."""
        x = self.maxpool(self.act1(self.bn1(self.conv1(x))))
        x = self.layer4(self.layer3(self.layer2(self.layer1(x))))
        return cast(Tensor, self.fc(self.avgpool(x).flatten(1)))


@named_options
def resnet18(
    classes: int = 10,
    in_channels: int = 3,
    *,
    small_images: bool = True,
    width: int = 64,
    norm: Norm = "batch",
) -> ResNet:
    r"""ResNet-18: stem, four stages of two basic blocks each, global mean, linear head.

    Stage s has :math:`2^{s-1}` times ``width`` channels, and every stage after the first halves
    the resolution. Convolutions start from :math:`\mathcal{N}(0, 2 / \text{fan-out})`. Parameters
    are named as in torchvision, so state dictionaries can be exchanged.

    Args:
        classes: Number of logits.
        in_channels: Channels of the images.
        small_images: For images of about 32×32: a 3×3 stem that keeps the resolution. Otherwise
            the original's 7×7 convolution of stride 2 and max-pooling.
        width: Channels of the first stage.
        norm: A kind of :func:`make_norm`, with 32 groups (fewer where they do not divide) where
            there are groups; or a function of the channels that makes a module. With
            ``"none"``, convolutions have biases.

    Raises:
        ValueError: If a size is not positive or the norm is unknown.

    Shape:
        - Input: ``[N, in_channels, H, W]``.
        - Output: ``[N, classes]``.

    Examples:
        >>> model = resnet18(classes=1000, small_images=False)
        >>> sum(p.numel() for p in model.parameters())
        11689512

    References:
        [he2016] Deep residual learning for image recognition, table 1;
        [wu2018] Group normalization.
    """
    return ResNet(
        (2, 2, 2, 2),
        classes=classes,
        in_channels=in_channels,
        small_images=small_images,
        width=width,
        norm=norm,
    )


def _stage(
    in_channels: int, out_channels: int, blocks: int, stride: int, norm: Norm
) -> nn.Sequential:
    return nn.Sequential(
        BasicBlock(in_channels, out_channels, stride=stride, norm=norm),
        *(BasicBlock(out_channels, out_channels, norm=norm) for _ in range(blocks - 1)),
    )


def convolution(
    in_channels: int, out_channels: int, stride: int, *, kernel: int = 3, norm: Norm
) -> nn.Conv2d:
    """A padded convolution, with a bias only if no normaliser will shift its output."""
    return nn.Conv2d(
        in_channels, out_channels, kernel, stride, padding=kernel // 2, bias=norm == "none"
    )
