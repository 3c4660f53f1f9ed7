"""Convolutional networks for images whose idea is not, or not only, the residual block."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from architectures._architecture import (
    CLASSES,
    SIDE,
    Architecture,
    Batch,
    cross_entropy,
    images,
)
from architectures._parts import (
    Gain,
    Permute,
    Residual,
    SqueezeExcite,
    conv_norm,
    convolution,
    he_fan_out_,
    imagenet_stem,
    initialise_,
    normal_,
    pooled,
    truncated_normal_,
)


class DenseLayer(nn.Module):
    """Append ``growth`` channels, made by a bottleneck of norm, ReLU and convolution."""

    def __init__(self, in_channels: int, growth: int):
        super().__init__()
        self.layers = nn.Sequential(
            nn.BatchNorm2d(in_channels),
            nn.ReLU(),
            *conv_norm(in_channels, 4 * growth, 1),
            nn.ReLU(),
            convolution(4 * growth, growth, 3),
        )

    def forward(self, x: Tensor) -> Tensor:
        """Concatenate ``[N, C, H, W]`` and the new channels."""
        return torch.cat([x, self.layers(x)], dim=1)


def densenet(
    growth: int = 32, blocks: tuple[int, ...] = (6, 6), *, large_maps: bool = False
) -> nn.Module:
    """DenseNet-BC: dense blocks with transitions between [Huang 2016, arXiv:1608.06993].

    Args:
        growth: Channels that every layer adds.
        blocks: Layers of each block.
        large_maps: Whether the first block has the resolution of the images.
    """
    stem = [*conv_norm(3, 64, 3), nn.ReLU()] if large_maps else imagenet_stem(64)
    body: list[nn.Module] = []
    channels = 64
    for block, layers in enumerate(blocks):
        if block > 0:
            body += [
                nn.BatchNorm2d(channels),
                nn.ReLU(),
                convolution(channels, channels // 2, 1),
                nn.AvgPool2d(2),
            ]
            channels //= 2
        body += [DenseLayer(channels + n * growth, growth) for n in range(layers)]
        channels += layers * growth
    model = nn.Sequential(
        *stem,
        *body,
        nn.BatchNorm2d(channels),
        nn.ReLU(),
        *pooled(nn.Linear(channels, CLASSES)),
    )
    initialise_(model, nn.init.kaiming_normal_, nn.Conv2d)
    return model


def vgg(convolutions: tuple[int, ...], *, norm: bool) -> nn.Module:
    """Stages of 3×3 convolutions with max-pooling after each [Simonyan 2014, arXiv:1409.1556].

    The classifier's hidden layers are 512 wide. Initialisation as in PyTorch's model zoo.

    Args:
        convolutions: In each of the five stages.
        norm: Whether batch norm stands after each convolution, which keeps its bias.
    """
    layers: list[nn.Module] = []
    channels = 3
    for count, width in zip(convolutions, (64, 128, 256, 512, 512), strict=True):
        for _ in range(count):
            layers.append(nn.Conv2d(channels, width, 3, padding=1))
            layers += [nn.BatchNorm2d(width)] if norm else []
            layers.append(nn.ReLU())
            channels = width
        layers.append(nn.MaxPool2d(2))
    hidden = [nn.Linear(512, 512), nn.ReLU(), nn.Dropout()]
    hidden += [nn.Linear(512, 512), nn.ReLU(), nn.Dropout()]
    model = nn.Sequential(*layers, nn.Flatten(), *hidden, nn.Linear(512, CLASSES))
    initialise_(model, he_fan_out_, nn.Conv2d)
    initialise_(model, normal_(0.01), nn.Linear)
    return model


def inverted_residual(
    in_channels: int,
    out_channels: int,
    stride: int,
    *,
    expansion: int = 6,
    kernel: int = 3,
    activation: Callable[[], nn.Module],
    squeeze_excite: bool,
) -> nn.Module:
    """Expand by 1×1, filter every channel alone, project [Sandler 2018, arXiv:1801.04381]."""
    hidden = expansion * in_channels
    expand = [*conv_norm(in_channels, hidden, 1), activation()] if expansion > 1 else []
    gate = (
        [SqueezeExcite(hidden, in_channels // 4, activation=activation)] if squeeze_excite else []
    )
    branch = nn.Sequential(
        *expand,
        *conv_norm(hidden, hidden, kernel, stride, groups=hidden),
        activation(),
        *gate,
        *conv_norm(hidden, out_channels, 1),
    )
    return Residual(branch) if stride == 1 and in_channels == out_channels else branch


def mobile_network(
    activation: Callable[[], nn.Module], *, squeeze_excite: bool, kernel: int = 3
) -> nn.Module:
    """MobileNetV2 [Sandler 2018, arXiv:1801.04381] or EfficientNet [Tan 2019, arXiv:1905.11946].

    Args:
        activation: ReLU6 for the former, SiLU for the latter.
        squeeze_excite: Whether blocks are gated, as the latter's are.
        kernel: Of the last stage; 5 in the latter.
    """
    block = partial(inverted_residual, activation=activation, squeeze_excite=squeeze_excite)
    model = nn.Sequential(
        *conv_norm(3, 64, 3, 2),
        activation(),
        block(64, 64, 1, expansion=1),
        block(64, 96, 2),
        block(96, 96, 1),
        block(96, 128, 2, kernel=kernel),
        block(128, 128, 1, kernel=kernel),
        *conv_norm(128, 512, 1),
        activation(),
        *pooled(nn.Dropout(0.2), nn.Linear(512, CLASSES)),
    )
    initialise_(model, he_fan_out_, nn.Conv2d)
    bound = CLASSES**-0.5
    uniform = partial(nn.init.uniform_, a=-bound, b=bound)
    initialise_(model, uniform if squeeze_excite else normal_(0.01), nn.Linear)
    return model


class Inception(nn.Module):
    """Concatenate a 1×1, a 3×3, a 5×5 and a pooling branch [Szegedy 2014, arXiv:1409.4842]."""

    def __init__(self, in_channels: int, width: int):
        super().__init__()
        unit = _conv_norm_relu
        self.branches = nn.ModuleList(
            (
                nn.Sequential(*unit(in_channels, width, 1)),
                nn.Sequential(*unit(in_channels, width, 1), *unit(width, 2 * width, 3)),
                nn.Sequential(*unit(in_channels, width, 1), *unit(width, width, 5)),
                nn.Sequential(nn.MaxPool2d(3, stride=1, padding=1), *unit(in_channels, width, 1)),
            )
        )

    def forward(self, x: Tensor) -> Tensor:
        """Images ``[N, 5 * width, H, W]`` from ``[N, C, H, W]``."""
        return torch.cat([branch(x) for branch in self.branches], dim=1)


def _conv_norm_relu(in_channels: int, out_channels: int, kernel: int) -> list[nn.Module]:
    return [*conv_norm(in_channels, out_channels, kernel), nn.ReLU()]


def inception(width: int = 64) -> nn.Module:
    """GoogLeNet with batch norm [Ioffe 2015, arXiv:1502.03167], without auxiliary heads."""
    return nn.Sequential(
        *imagenet_stem(64),
        *_conv_norm_relu(64, 64, 1),
        *_conv_norm_relu(64, 192, 3),
        Inception(192, width),
        Inception(5 * width, width),
        nn.MaxPool2d(3, stride=2, padding=1),
        Inception(5 * width, 2 * width),
        *pooled(nn.Dropout(0.2), nn.Linear(10 * width, CLASSES)),
    )


def convnext_block(width: int, layer_scale: float | None) -> Residual:
    """A depthwise 7×7 convolution and a wide layer for every pixel."""
    return Residual(
        nn.Sequential(
            nn.Conv2d(width, width, 7, padding=3, groups=width),
            Permute(0, 2, 3, 1),
            nn.LayerNorm(width, eps=1e-6),
            nn.Linear(width, 4 * width),
            nn.GELU(),
            nn.Linear(4 * width, width),
            *([] if layer_scale is None else [Gain(layer_scale, width)]),
            Permute(0, 3, 1, 2),
        )
    )


def _channel_norm(width: int) -> list[nn.Module]:
    """Layer norm over the channels of every pixel."""
    return [Permute(0, 2, 3, 1), nn.LayerNorm(width, eps=1e-6), Permute(0, 3, 1, 2)]


def convnext(layer_scale: float | None, width: int = 96) -> nn.Module:
    """ConvNeXt with two stages of two blocks [Liu 2022, arXiv:2201.03545].

    Args:
        layer_scale: What the learned factors of every branch's channels start from: 1e-6 in the
            publication; None for none.
        width: Channels of the first stage.
    """
    model = nn.Sequential(
        nn.Conv2d(3, width, 4, 4),
        *_channel_norm(width),
        *(convnext_block(width, layer_scale) for _ in range(2)),
        *_channel_norm(width),
        nn.Conv2d(width, 2 * width, 2, 2),
        *(convnext_block(2 * width, layer_scale) for _ in range(2)),
        *pooled(nn.LayerNorm(2 * width, eps=1e-6), nn.Linear(2 * width, CLASSES)),
    )
    initialise_(model, truncated_normal_(0.02), nn.Conv2d, nn.Linear)
    return model


def dcgan_discriminator(width: int = 64) -> nn.Module:
    """Strided convolutions to one logit, no norm in the first [Radford 2015, arXiv:1511.06434]."""
    layers: list[nn.Module] = [nn.Conv2d(3, width, 4, 2, 1, bias=False), nn.LeakyReLU(0.2)]
    for channels in (width, 2 * width):
        layers += [
            nn.Conv2d(channels, 2 * channels, 4, 2, 1, bias=False),
            nn.BatchNorm2d(2 * channels),
            nn.LeakyReLU(0.2),
        ]
    layers += [nn.Conv2d(4 * width, 1, SIDE // 8, bias=False), nn.Flatten(0)]
    model = nn.Sequential(*layers)
    initialise_(model, normal_(0.02), nn.Conv2d)
    initialise_(model, partial(nn.init.normal_, mean=1.0, std=0.02), nn.BatchNorm2d)
    return model


def real_or_fake(size: int, generator: torch.Generator) -> Batch:
    """Standard normal images, each called real (1) or fake (0) at random."""
    x, classes = images(size, generator)
    return x, (classes % 2).to(x.dtype)


def adversarial_loss(model: nn.Module, batch: Batch) -> Tensor:
    """Mean binary cross entropy of one logit for every image."""
    x, target = batch
    return F.binary_cross_entropy_with_logits(model(x), target)


BUILDS: dict[str, Callable[[], nn.Module]] = {
    "densenet": densenet,
    "vgg16_batch_norm": partial(vgg, (2, 2, 3, 3, 3), norm=True),
    "vgg11": partial(vgg, (1, 1, 2, 2, 2), norm=False),
    "mobilenet_v2": partial(mobile_network, nn.ReLU6, squeeze_excite=False),
    "efficientnet": partial(mobile_network, nn.SiLU, squeeze_excite=True, kernel=5),
    "inception": inception,
    "convnext": partial(convnext, 1e-6),
    "convnext_without_layer_scale": partial(convnext, None),
}

FULL_DENSENET121 = Architecture(
    "densenet121 with 32 x 32 maps",
    partial(densenet, blocks=(6, 12, 24, 16), large_maps=True),
    images,
    cross_entropy,
)
CONVOLUTIONAL = (
    *(Architecture(name, build, images, cross_entropy) for name, build in BUILDS.items()),
    Architecture("dcgan_discriminator", dcgan_discriminator, real_or_fake, adversarial_loss),
)
