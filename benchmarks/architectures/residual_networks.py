"""Residual convolutional networks, with batch norm or without any norm."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor, nn

from architectures._architecture import CLASSES, Architecture, cross_entropy, images
from architectures._parts import (
    Gain,
    Residual,
    SqueezeExcite,
    Times,
    conv_norm,
    convolution,
    he_fan_out_,
    imagenet_stem,
    initialise_,
    normal_,
    pooled,
)

Block = Callable[[int, int, int], nn.Module]  # of input channels, output channels and stride


def basic_block(in_channels: int, out_channels: int, stride: int) -> Residual:
    """Two 3×3 convolutions [He 2015, arXiv:1512.03385]."""
    return Residual(
        nn.Sequential(
            *conv_norm(in_channels, out_channels, 3, stride),
            nn.ReLU(),
            *conv_norm(out_channels, out_channels, 3),
        ),
        shortcut=_projection(in_channels, out_channels, stride),
        after=nn.ReLU(),
    )


def preactivation_block(in_channels: int, out_channels: int, stride: int) -> Residual:
    """Norm and ReLU before each of two 3×3 convolutions [He 2016, arXiv:1603.05027]."""
    changes = stride != 1 or in_channels != out_channels
    return Residual(
        nn.Sequential(
            *conv_norm(in_channels, out_channels, 3, stride),
            nn.ReLU(),
            convolution(out_channels, out_channels, 3),
        ),
        before=nn.Sequential(nn.BatchNorm2d(in_channels), nn.ReLU()),
        shortcut=convolution(in_channels, out_channels, 1, stride) if changes else None,
    )


def bottleneck_block(
    in_channels: int,
    out_channels: int,
    stride: int,
    *,
    narrowing: int = 4,
    groups: int = 1,
    squeeze_excite: bool = False,
) -> Residual:
    """1×1, 3×3 and 1×1 convolutions, grouped or gated on request.

    Plain [He 2015, arXiv:1512.03385], ResNeXt with groups [Xie 2016, arXiv:1611.05431], gated by
    squeeze and excitation with reduction 16 [Hu 2017, arXiv:1709.01507].
    """
    hidden = out_channels // narrowing
    gate = [SqueezeExcite(out_channels, out_channels // 16)] if squeeze_excite else []
    return Residual(
        nn.Sequential(
            *conv_norm(in_channels, hidden, 1),
            nn.ReLU(),
            *conv_norm(hidden, hidden, 3, stride, groups=groups),
            nn.ReLU(),
            *conv_norm(hidden, out_channels, 1),
            *gate,
        ),
        shortcut=_projection(in_channels, out_channels, stride),
        after=nn.ReLU(),
    )


def _projection(in_channels: int, out_channels: int, stride: int) -> nn.Module | None:
    if stride == 1 and in_channels == out_channels:
        return None
    return nn.Sequential(*conv_norm(in_channels, out_channels, 1, stride))


def _stages(
    block: Block, in_channels: int, widths: tuple[int, ...], depth: int | tuple[int, ...]
) -> list[nn.Module]:
    """Stages of ``depth`` blocks; every stage but the first halves the resolution."""
    depths = (depth,) * len(widths) if isinstance(depth, int) else depth
    blocks = []
    for stage, (width, count) in enumerate(zip(widths, depths, strict=True)):
        for number in range(count):
            stride = 2 if stage > 0 and number == 0 else 1
            blocks.append(block(in_channels, width, stride))
            in_channels = width
    return blocks


def resnet(block: Block, widths: tuple[int, ...], depth: int | tuple[int, ...] = 2) -> nn.Module:
    """Stem with max-pooling, stages, global mean, linear head [He 2015, arXiv:1512.03385]."""
    model = nn.Sequential(
        *imagenet_stem(64),
        *_stages(block, 64, widths, depth),
        *pooled(nn.Linear(widths[-1], CLASSES)),
    )
    initialise_(model, he_fan_out_, nn.Conv2d)
    return model


def preactivation_resnet(widths: tuple[int, ...] = (64, 128, 256, 512)) -> nn.Module:
    """ResNet-18's pre-activation twin with half its blocks and the stem for small images."""
    model = nn.Sequential(
        convolution(3, 64, 3),
        *_stages(preactivation_block, 64, widths, 1),
        nn.BatchNorm2d(widths[-1]),
        nn.ReLU(),
        *pooled(nn.Linear(widths[-1], CLASSES)),
    )
    initialise_(model, he_fan_out_, nn.Conv2d)
    return model


class StandardisedConv2d(nn.Conv2d):
    r"""A convolution by scaled standardised weights [Brock 2021, arXiv:2101.08692].

    .. math:: \hat W = g \, (W - \mu) / \sqrt{\max(\text{fan-in} \cdot \sigma^2, \epsilon)}

    with the mean and the variance of each output's weights, and a learned gain :math:`g` for each
    output, at first 1.
    """

    def __init__(
        self, in_channels: int, out_channels: int, kernel: int, stride: int = 1, groups: int = 1
    ):
        super().__init__(
            in_channels, out_channels, kernel, stride, padding=kernel // 2, groups=groups
        )
        self.gain = nn.Parameter(torch.ones(out_channels, 1, 1, 1))
        nn.init.zeros_(self.bias)  # type: ignore[arg-type]

    def forward(self, x: Tensor) -> Tensor:
        """Convolve by the standardised weights."""
        variance, mean = torch.var_mean(self.weight, (1, 2, 3), correction=0, keepdim=True)
        fan_in = self.weight[0].numel()
        scale = self.gain * torch.rsqrt(torch.clamp(fan_in * variance, min=1e-4))
        weight = (self.weight - mean) * scale
        y: Tensor = self._conv_forward(x, weight, self.bias)
        return y


def scaled_gelu() -> nn.Module:
    """GELU, scaled to unit variance on standard normal inputs."""
    # 1 / standard deviation of GELU(z), z standard normal; from the NFNet paper's code.
    return nn.Sequential(nn.GELU(), Times(1.7015043497085571))


def normaliser_free_block(
    in_channels: int,
    out_channels: int,
    stride: int,
    *,
    before: float,
    after: float,
    gain: float,
    project: bool,
) -> Residual:
    r"""A gated bottleneck :math:`s + \alpha f(\phi(x) / \beta)` [Brock 2021, arXiv:2102.06171].

    Args:
        in_channels: Channels of the input.
        out_channels: Channels of the output, twice those of the two 3×3 convolutions.
        stride: Of the first 3×3 convolution and of the average pooling in the shortcut.
        before: The predicted standard deviation :math:`\beta` of the input.
        after: The factor :math:`\alpha` of the branch.
        gain: What the learned gain of the branch starts from.
        project: Whether the shortcut is a convolution of the scaled activation.
    """
    hidden = out_channels // 2
    groups = hidden // 128
    shrink = [nn.AvgPool2d(stride)] if stride > 1 else []
    return Residual(
        nn.Sequential(
            StandardisedConv2d(in_channels, hidden, 1),
            scaled_gelu(),
            StandardisedConv2d(hidden, hidden, 3, stride, groups),
            scaled_gelu(),
            StandardisedConv2d(hidden, hidden, 3, 1, groups),
            scaled_gelu(),
            StandardisedConv2d(hidden, out_channels, 1),
            SqueezeExcite(out_channels, out_channels // 2),
            Times(2.0),
            Gain(gain),
            Times(after),
        ),
        before=nn.Sequential(scaled_gelu(), Times(1 / before)),
        shortcut=(
            nn.Sequential(*shrink, StandardisedConv2d(in_channels, out_channels, 1))
            if project
            else None
        ),
    )


def nfnet(
    gain: float, *, widths: tuple[int, ...] = (256, 512), depth: int = 2, after: float = 0.2
) -> nn.Module:
    """NFNet-F0 with two stages [Brock 2021, arXiv:2102.06171].

    Args:
        gain: What the learned gain of every branch starts from: 0 in the publication, where no
            branch contributes at first; 1 opens the branches.
        widths: Channels of each stage.
        depth: Blocks of each stage.
        after: Factor of every branch.
    """
    layers: list[nn.Module] = [StandardisedConv2d(3, 64, 3, 2), scaled_gelu()]
    for _ in range(2):
        layers += [StandardisedConv2d(64, 64, 3), scaled_gelu()]
    layers.append(StandardisedConv2d(64, 128, 3, 2))
    channels, variance = 128, 1.0
    for stage, width in enumerate(widths):
        for number in range(depth):
            first = number == 0
            layers.append(
                normaliser_free_block(
                    channels,
                    width,
                    2 if first and stage > 0 else 1,
                    before=variance**0.5,
                    after=after,
                    gain=gain,
                    project=first,
                )
            )
            channels, variance = width, (1.0 if first else variance) + after**2
    model = nn.Sequential(
        *layers,
        StandardisedConv2d(channels, 2 * channels, 1),
        scaled_gelu(),
        *pooled(nn.Dropout(0.2), nn.Linear(2 * channels, CLASSES)),
    )
    initialise_(model, normal_(0.01), nn.Linear)
    return model


resnext_block = partial(bottleneck_block, narrowing=2, groups=32)
gated_block = partial(bottleneck_block, squeeze_excite=True)

BUILDS: dict[str, Callable[[], nn.Module]] = {
    "resnet18": partial(resnet, basic_block, (64, 128, 256, 512)),
    "resnet18_preactivation": preactivation_resnet,
    "resnet50": partial(resnet, bottleneck_block, (256, 512, 1024)),
    "resnext": partial(resnet, resnext_block, (256, 512)),
    "se_resnet": partial(resnet, gated_block, (256, 512)),
    "nfnet": partial(nfnet, 0.0),
    "nfnet_open": partial(nfnet, 1.0),
}

FULL_RESNET50 = Architecture(
    "resnet50 of 64 x 64 images",
    partial(resnet, bottleneck_block, (256, 512, 1024, 2048), (3, 4, 6, 3)),
    partial(images, side=64),
    cross_entropy,
)
RESIDUAL_NETWORKS = tuple(
    Architecture(name, build, images, cross_entropy) for name, build in BUILDS.items()
)
