"""Every rule against measurement: random weights, the operation, random weights, a loss.

Six networks of 64 features each. Their covariances, position by position, are averaged and
compared with predictions in standard errors; finite width may add 2 %.
"""

import math
from functools import cache, partial

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from equipoise.instrument.recording.tracer import trace
from equipoise.theory.propagation import latent
from equipoise.theory.propagation.backward import backward
from equipoise.theory.propagation.exchangeable import Exchangeable
from equipoise.theory.propagation.forward import Forward
from equipoise.theory.propagation.propagate import propagate
from equipoise.theory.propagation.rules import pooling
from equipoise.theory.propagation.rules.arithmetic import products, sums
from equipoise.theory.propagation.rules.attention import outputs, scores, softmax
from equipoise.theory.propagation.rules.positions import features, resampling
from equipoise.theory.propagation.rules.windows import Window
from equipoise.theory.propagation.tensors import features_last
from equipoise.theory.propagation.values.covariances import arranged, from_covariance
from equipoise.theory.propagation.values.gradients import Gradient
from equipoise.theory.propagation.values.moments import Moments
from support.modules import Apply

C = 64
NETWORKS = 6
FINITE_WIDTH = 0.02


def drawn(*shape, seed=1):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


@cache
def rows(samples=32):
    """Vectors with a common part."""
    return drawn(samples, C) + 0.5 * drawn(1, C, seed=2)


@cache
def tokens(samples=8, length=10):
    """Positions of one length that are alike within a sample, and between samples."""
    common = 0.7 * drawn(samples, 1, C, seed=2) + 0.5 * drawn(1, length, C, seed=3)
    return C**0.5 * F.normalize(drawn(samples, length, C) + common, dim=2)


@cache
def images(side=6, samples=8):
    common = 0.7 * drawn(samples, C, 1, 1, seed=2) + 0.5 * drawn(1, C, side, side, seed=3)
    return drawn(samples, C, side, side) + common


def projected(model, batch):
    """A loss whose gradient does not depend on the outputs."""
    x, weights = batch
    return (model(x) * weights).sum()


def transposed():
    return Apply(lambda x: x.transpose(1, 2))


def linear(*middle, width=C):
    """Vectors or tokens through modules that every network makes anew."""
    return lambda: nn.Sequential(
        nn.Linear(C, width), *(make() for make in middle), nn.Linear(width, width)
    )


def convolutional(*middle, out=C):
    """The same for images."""
    return lambda: nn.Sequential(
        nn.Conv2d(C, C, 1, bias=False),
        *(make() for make in middle),
        nn.Conv2d(out, C, 1, bias=False),
    )


def conv(*arguments, **options):
    return lambda: nn.Conv2d(C, C, *arguments, **options)


class Doubled(nn.Linear):
    def forward(self, x):
        return torch.addmm(self.bias, x, self.weight.t(), alpha=2)


def conv_of(inputs, outputs):
    return lambda: nn.Conv2d(inputs, outputs, 3, padding=1)


def mask():
    """Every other token."""
    return torch.arange(10)[:, None] % 2 == 0


def affine(layer):
    nn.init.uniform_(layer.weight, 0.5, 1.5)
    nn.init.normal_(layer.bias, 0, 0.3)
    return layer


def delta(layer, first=0):
    """Taps at the centre, and those before."""
    with torch.no_grad():
        layer.weight[:, :, 2] = layer.weight[:, :, 1, 2] = 0
        if not first:
            layer.weight[:, :, 0] = layer.weight[:, :, 1, 0] = 0
        layer.weight.mul_(2)
    return layer


def biased(layer, size=-1.5):
    nn.init.constant_(layer.bias, size)
    return layer


def evaluated_batch_norm():
    layer = affine(nn.BatchNorm1d(C)).eval()
    layer.running_mean.normal_(0, 0.3)
    layer.running_var.uniform_(0.5, 2)
    return layer


class PostActivationBlock(nn.Module):
    """Adds to a stream that is never negative."""

    def __init__(self):
        super().__init__()
        self.layer, self.norm = nn.Conv2d(C, C, 3, padding=1), nn.BatchNorm2d(C)

    def forward(self, x):
        x = torch.relu(x)
        return torch.relu(self.norm(self.layer(x)) + x)


class Gate(nn.Module):
    def __init__(self):
        super().__init__()
        self.gate, self.value = nn.Linear(C, C), nn.Linear(C, C)

    def forward(self, x):
        return torch.sigmoid(self.gate(x)) * self.value(x)


class SqueezeExcitation(nn.Module):
    def __init__(self):
        super().__init__()
        self.squeeze, self.excite = nn.Linear(C, C), nn.Linear(C, C)

    def forward(self, x):
        pooled = torch.relu(x).mean((2, 3))
        gate = torch.sigmoid(self.excite(torch.relu(self.squeeze(pooled))))
        return x * gate[:, :, None, None]


class Highway(nn.Module):
    """A gate for what is new, and the rest of it for what was."""

    def __init__(self):
        super().__init__()
        self.gate, self.new = biased(nn.Linear(C, C), -0.5), nn.Linear(C, C)

    def forward(self, x):
        gate = torch.sigmoid(self.gate(x))
        return gate * torch.relu(self.new(x)) + (1 - gate) * x


class Recurrence(nn.Module):
    """States that a gate moves towards a candidate, step by step, as a minimal GRU does."""

    def __init__(self):
        super().__init__()
        self.gate, self.new = nn.Linear(C, C), nn.Linear(C, C)

    def forward(self, x):
        gate, new = torch.sigmoid(2 * self.gate(x)), self.new(x)
        states = [new[:, 0]]
        for t in range(1, x.shape[1]):
            states.append((1 - gate[:, t]) * states[-1] + gate[:, t] * new[:, t])
        return torch.stack(states, 1)


class Decay(nn.Module):
    """An average over earlier tokens, of every feature with a decay of its own."""

    def __init__(self):
        super().__init__()
        self.rate = nn.Parameter(torch.randn(C))

    def forward(self, x):
        keep, states = torch.sigmoid(self.rate), [x[:, 0]]
        for t in range(1, x.shape[1]):
            states.append(keep * states[-1] + (1 - keep) * x[:, t])
        return torch.stack(states, 1)


class Experts(nn.Module):
    """Experts weighed by a softmax of a few logits, all of them computed."""

    def __init__(self):
        super().__init__()
        self.gate = nn.Linear(C, 8)
        self.experts = nn.ModuleList(nn.Linear(C, C) for _ in range(8))

    def forward(self, x):
        weights = (3 * self.gate(x)).softmax(-1)
        found = torch.stack([torch.relu(expert(x)) for expert in self.experts], 2)
        return (found * weights[..., None]).sum(2)


class OneGate(nn.Module):
    """One number for all features of a token."""

    def __init__(self):
        super().__init__()
        self.hidden, self.gate = nn.Linear(C, C), nn.Linear(C, 1)

    def forward(self, x):
        return x * torch.sigmoid(2 * self.gate(torch.relu(self.hidden(x))))


class Mixer(nn.Linear):
    """A matrix from the left, as einsum has it."""

    def forward(self, x):
        return torch.einsum("ts,nsc->ntc", self.weight, x)


class Bilinear(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second, self.last = (nn.Linear(C, C) for _ in range(3))
        self.both = nn.Bilinear(C, C, C, bias=False)

    def forward(self, x):
        return self.last(self.both(torch.relu(self.first(x)), torch.tanh(self.second(x))))


class Folded(nn.Module):
    """Weights for what a window has in all its pixels, and windows put together again."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4 * C, 4 * C)

    def forward(self, x):
        windows = F.unfold(x, 2, stride=2).transpose(1, 2)
        return F.fold(torch.relu(self.layer(windows)).transpose(1, 2), x.shape[2:], 2, stride=2)


def warped(x):
    """Sampled along circles."""
    radius, angle = torch.linspace(0.1, 0.9, 5)[:, None], torch.linspace(-3, 3, 4)
    grid = torch.stack([radius * angle.cos(), radius * angle.sin()], 2)
    return F.grid_sample(x, grid.expand(len(x), -1, -1, -1), align_corners=False)


def blurred(x):
    taps = torch.tensor([1.0, 2.0, 1.0])
    kernel = (taps[:, None] * taps / 16).expand(C, 1, 3, 3)
    return F.conv2d(x, kernel, stride=2, padding=1, groups=C)


def normed_heads(x):
    """Root mean squares of two heads, written as arithmetic."""
    heads = x.unflatten(2, (2, -1))
    return (heads * heads.square().mean(3, keepdim=True).add(1e-6).rsqrt()).flatten(2)


def unit_heads(x):
    return F.normalize(x.unflatten(2, (2, -1)), dim=3).flatten(2)


def responses(x):
    """Channels by their norm over positions, as of all channels."""
    size = x.norm(p=2, dim=(2, 3), keepdim=True)
    return x * (size / (size.mean(1, keepdim=True) + 1e-6)) + x


def generalised_mean(x):
    return F.avg_pool2d(x.clamp(min=1e-6).pow(3), x.shape[2:]).pow(1 / 3)


class Dense(nn.Module):
    """Concatenates features of two laws, then normalises them."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Conv2d(C, C // 2, 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(C + C // 2)

    def forward(self, x):
        return torch.relu(self.norm(torch.cat([torch.relu(x), self.layer(x)], 1)))


class ClassToken(nn.Module):
    def __init__(self):
        super().__init__()
        self.token, self.place = (nn.Parameter(torch.randn(1, n, C)) for n in (1, 11))
        self.layer = nn.Linear(C, C)

    def forward(self, x):
        x = torch.cat([self.token.expand(len(x), -1, -1), x], 1) + self.place
        return torch.relu(self.layer(x))


def halves_multiplied(x):
    first, second = x.chunk(2, 1)
    return torch.relu(first) * torch.tanh(second)


def heads_turned(x):
    """The halves of eight heads exchanged, as rotary positions do."""
    first, second = x.unflatten(2, (8, -1)).chunk(2, 3)
    return torch.cat([-second, first], 3).flatten(2)


def patches(x):
    """``b c (h 2) (w 2) -> b (h w) (2 2 c)``."""
    x = x.reshape(8, C, 3, 2, 3, 2).permute(0, 2, 4, 3, 5, 1)
    return x.reshape(8, 9, 4 * C)


CASES = {
    "averages with a divisor of their own": (
        convolutional(lambda: Apply(lambda x: F.avg_pool2d(x, 2, divisor_override=3))),
        images(),
    ),
    "rows and their averages": (
        convolutional(lambda: Apply(lambda x: x + x.mean(3, keepdim=True))),
        images(),
    ),
    # Linear layers.
    "linear with bias": (linear(lambda: nn.Linear(C, C)), rows()),
    "linear with one bias for all": (
        linear(lambda: biased(nn.Linear(C, C)), nn.Sigmoid, lambda: nn.Linear(C, C)),
        rows(),
    ),
    "layer norm behind one bias for all": (
        linear(lambda: biased(nn.Linear(C, C)), lambda: nn.LayerNorm(C), nn.ReLU),
        rows(),
    ),
    "tokens": (linear(nn.ReLU, lambda: nn.Linear(C, C)), tokens()),
    "flatten": (
        lambda: nn.Sequential(
            nn.Conv2d(C, C, 1, bias=False), nn.ReLU(), nn.Flatten(), nn.Linear(36 * C, C)
        ),
        images(),
    ),
    "linear to more positions": (
        linear(transposed, lambda: nn.Linear(10, 40), transposed, nn.ReLU),
        tokens(),
    ),
    "linear over positions": (
        linear(transposed, lambda: nn.Linear(10, 10), transposed, nn.ReLU),
        tokens(),
    ),
    "patches": (
        lambda: nn.Sequential(Apply(patches), nn.Linear(4 * C, C), nn.ReLU(), nn.Linear(C, C)),
        images(),
    ),
    # Convolutions.
    "zero padding": (convolutional(conv(3, padding=1), nn.ReLU), images()),
    "all taps but one are zero": (
        convolutional(lambda: delta(nn.Conv2d(C, C, 3, padding=1)), nn.Tanh, conv(1)),
        images(),
    ),
    "taps that are masked": (
        convolutional(lambda: delta(nn.Conv2d(C, C, 3, padding=1), 4), nn.ReLU, conv(1)),
        images(),
    ),
    "masked taps of a transposed convolution": (
        convolutional(lambda: delta(nn.ConvTranspose2d(C, C, 3, 2, 1), 4), nn.ReLU, conv(1)),
        images(),
    ),
    "one bias for all": (
        convolutional(lambda: biased(nn.Conv2d(C, C, 3, padding=1)), nn.Sigmoid, conv(1)),
        images(),
    ),
    "no padding": (convolutional(conv(3)), images()),
    "stride, dilation and groups": (
        convolutional(conv(3, padding=2, stride=2, dilation=2, groups=4)),
        images(),
    ),
    "depthwise": (convolutional(conv(3, padding=1, groups=C)), images()),
    "uneven kernel": (convolutional(conv((1, 5), padding=(0, 2))), images()),
    "transposed": (
        convolutional(lambda: nn.ConvTranspose2d(C, C, 3, padding=1, stride=2, output_padding=1)),
        images(4),
    ),
    "transposed with groups": (
        convolutional(lambda: nn.ConvTranspose2d(C, C // 2, 4, 2, 1, groups=4), out=C // 2),
        images(3),
    ),
    "one dimension": (
        lambda: nn.Sequential(
            transposed(), nn.Conv1d(C, C, 1), nn.ReLU(), nn.Conv1d(C, C, 3, padding=1)
        ),
        tokens(),
    ),
    "three dimensions": (
        lambda: nn.Sequential(nn.Conv3d(C, C, 1), nn.ReLU(), nn.Conv3d(C, C, 3, padding=1)),
        drawn(4, C, 3, 3, 3),
    ),
    # Normalisers.
    "batch norm": (
        convolutional(conv(3, padding=1), lambda: nn.BatchNorm2d(C), nn.ReLU),
        images(),
    ),
    "batch norm of few rows": (linear(lambda: nn.BatchNorm1d(C), nn.ReLU), rows(6)),
    "batch norm of few positions": (
        convolutional(lambda: nn.BatchNorm2d(C), nn.ReLU),
        images(2, 3),
    ),
    "batch norm with a large eps": (
        convolutional(lambda: nn.BatchNorm2d(C, eps=0.5), nn.ReLU),
        images(),
    ),
    "batch norm with weights": (
        convolutional(lambda: affine(nn.BatchNorm2d(C)), nn.ReLU),
        images(),
    ),
    "batch norm of tokens": (
        linear(transposed, lambda: nn.BatchNorm1d(C), transposed, nn.ReLU),
        tokens(),
    ),
    "batch norm in evaluation": (linear(evaluated_batch_norm, nn.ReLU), rows()),
    "RMS norm": (linear(lambda: nn.RMSNorm(C), nn.GELU), tokens()),
    "layer norm": (linear(lambda: nn.LayerNorm(4 * C), nn.GELU, width=4 * C), tokens()),
    "layer norm of a mean": (
        linear(nn.Softplus, lambda: nn.LayerNorm(4 * C), nn.Tanh, width=4 * C),
        tokens(),
    ),
    "layer norm over maps": (
        convolutional(lambda: nn.LayerNorm([C, 6, 6]), nn.ReLU),
        images(),
    ),
    "group norm": (convolutional(lambda: nn.GroupNorm(8, C), nn.ReLU), images()),
    "group norm of few numbers": (
        convolutional(lambda: nn.GroupNorm(16, C), nn.ReLU),
        images(2),
    ),
    "instance norm": (convolutional(lambda: nn.InstanceNorm2d(C), nn.ReLU), images()),
    "instance norm of nine positions": (
        convolutional(lambda: nn.InstanceNorm2d(C, affine=True), nn.ReLU),
        images(3),
    ),
    # Pointwise functions.
    "gelu": (linear(nn.GELU), rows()),
    "tanh of softplus": (linear(nn.Softplus, nn.Tanh), rows()),
    "hardtanh of a leaky ReLU": (linear(lambda: nn.LeakyReLU(0.2), nn.Hardtanh), rows()),
    "square": (linear(lambda: Apply(torch.square)), rows()),
    "a function added to its argument": (linear(lambda: Apply(lambda x: x + x.relu())), rows()),
    "swish written out": (linear(lambda: Apply(lambda x: x * x.sigmoid())), rows()),
    "batch norm of an even function": (
        linear(lambda: Apply(torch.abs), lambda: nn.BatchNorm1d(C)),
        rows(),
    ),
    "affine": (linear(lambda: Apply(lambda x: 3 * x - 1), nn.ReLU), rows()),
    "squares of a ReLU, averaged": (
        linear(nn.ReLU, lambda: Apply(torch.square), lambda: Apply(lambda x: x.mean(1))),
        tokens(),
    ),
    "features of several sizes": (
        linear(lambda: Apply(lambda x: x * torch.linspace(0.1, 1, C))),
        rows(),
    ),
    "native dropout": (
        linear(nn.ReLU, lambda: Apply(lambda x: torch.native_dropout(x, 0.3, True)[0])),
        tokens(),
    ),
    "fused RMS norm": (
        linear(lambda: Apply(lambda x: torch.ops.aten._fused_rms_norm(x, [C], None, 1e-6)[0])),
        tokens(),
    ),
    "dropout": (convolutional(nn.ReLU, lambda: nn.Dropout(0.3)), images()),
    # Sums and products.
    "post-activation block": (convolutional(PostActivationBlock), images()),
    "gate": (linear(Gate), tokens()),
    "gated linear unit": (
        lambda: nn.Sequential(nn.Linear(C, 2 * C), nn.GLU(), nn.Linear(C, C)),
        tokens(),
    ),
    "chosen by sign": (
        linear(lambda: Apply(lambda x: torch.where(x > 0, x, 0.1 * x - 1))),
        rows(),
    ),
    "masked tokens": (
        linear(nn.ReLU, lambda: Apply(lambda x: torch.where(mask(), x, torch.zeros(())))),
        tokens(),
    ),
    "squeeze and excitation": (convolutional(SqueezeExcitation), images()),
    "highway": (linear(Highway), rows()),
    "gated recurrence": (linear(Recurrence), tokens(length=6)),
    "decays of features": (linear(Decay, nn.Tanh), tokens(length=6)),
    "a softmax over tokens": (linear(lambda: Apply(lambda x: x * (3 * x).softmax(1))), tokens()),
    "logarithms of sums over earlier tokens": (
        linear(lambda: Apply(lambda x: x.logcumsumexp(1))),
        tokens(),
    ),
    "the larger of two": (
        linear(lambda: Apply(lambda x: torch.maximum(x, x.mean(1, keepdim=True)))),
        tokens(),
    ),
    "a quotient of sums": (
        linear(lambda: Apply(lambda x: x / (1 + x.square().mean(1, keepdim=True)))),
        tokens(),
    ),
    "norms over positions": (
        convolutional(lambda: nn.BatchNorm2d(C), nn.ReLU, lambda: Apply(responses)),
        images(3, 64),
    ),
    "root mean squares of heads": (linear(lambda: Apply(normed_heads), nn.ReLU), tokens()),
    "heads of length 1": (linear(lambda: Apply(unit_heads)), tokens()),
    "random slopes": (linear(nn.RReLU, lambda: nn.Linear(C, C), nn.ReLU), rows()),
    # Positions.
    "pooling by squares": (
        convolutional(lambda: nn.BatchNorm2d(C), nn.Tanh, lambda: nn.LPPool2d(2, 6)),
        images(),
    ),
    "generalised mean": (
        convolutional(lambda: nn.BatchNorm2d(C), nn.ReLU, lambda: Apply(generalised_mean)),
        images(),
    ),
    "bilinear layer": (Bilinear, tokens(length=4)),
    "a matrix from the left": (
        linear(nn.ReLU, lambda: Mixer(10, 10, bias=False), nn.ReLU),
        tokens(),
    ),
    "folded windows": (convolutional(Folded), images()),
    "sampled on a grid": (convolutional(nn.ReLU, lambda: Apply(warped)), images()),
    "max pooling": (
        convolutional(lambda: nn.BatchNorm2d(C), nn.Tanh, lambda: nn.MaxPool2d(2)),
        images(),
    ),
    "max pooling of overlapping windows": (
        convolutional(
            lambda: nn.BatchNorm2d(C), lambda: nn.LeakyReLU(0.1), lambda: nn.MaxPool2d(3, 2, 1)
        ),
        images(),
    ),
    "average pooling": (convolutional(nn.ReLU, lambda: nn.AvgPool2d(3, 2, 1)), images()),
    "global pooling": (convolutional(nn.ReLU, lambda: nn.AdaptiveAvgPool2d(1)), images()),
    "mean over tokens": (linear(nn.ReLU, lambda: Apply(lambda x: x.mean(1))), tokens()),
    "upsampling": (convolutional(nn.ReLU, lambda: nn.Upsample(scale_factor=2)), images(3)),
    "bilinear upsampling": (
        convolutional(nn.ReLU, lambda: nn.Upsample(scale_factor=2, mode="bilinear")),
        images(3),
    ),
    "bicubic and smaller": (
        convolutional(nn.ReLU, lambda: Apply(lambda x: F.interpolate(x, size=4, mode="bicubic"))),
        images(),
    ),
    "linear in one dimension": (
        linear(
            transposed, nn.ReLU, lambda: nn.Upsample(scale_factor=2, mode="linear"), transposed
        ),
        tokens(length=5),
    ),
    "reflected borders": (
        lambda: nn.Sequential(conv(3, padding=1, padding_mode="reflect")(), conv(1)()),
        images(4),
    ),
    "circular borders": (
        lambda: nn.Sequential(conv(3, padding=1, padding_mode="circular")(), nn.ReLU(), conv(1)()),
        images(4),
    ),
    "circular padding of a ReLU": (
        convolutional(nn.ReLU, lambda: nn.CircularPad2d((1, 2, 0, 1)), conv(3), nn.ReLU),
        images(4),
    ),
    "a blur": (convolutional(nn.ReLU, lambda: Apply(blurred), nn.ReLU), images()),
    "tokens mixed by a convolution": (
        linear(nn.ReLU, lambda: biased(nn.Conv1d(10, 12, 1), 1.0), nn.ReLU),
        tokens(),
    ),
    "replicated borders": (convolutional(lambda: nn.ReplicationPad2d(2), nn.ReLU), images(3)),
    "adaptive average": (convolutional(nn.ReLU, lambda: nn.AdaptiveAvgPool2d((4, 3))), images()),
    "average without padding": (
        convolutional(lambda: nn.AvgPool2d(3, 2, 1, count_include_pad=False)),
        images(),
    ),
    "average with incomplete windows": (
        convolutional(lambda: nn.AvgPool2d(4, 4, ceil_mode=True)),
        images(),
    ),
    "flipped and rolled": (
        convolutional(lambda: Apply(lambda x: x.flip(3).roll((1, 2), (2, 3)) + x)),
        images(4),
    ),
    "sums over earlier tokens": (linear(nn.ReLU, lambda: Apply(lambda x: x.cumsum(1))), tokens()),
    "chosen tokens": (
        linear(lambda: Apply(lambda x: x.index_select(1, torch.tensor([0, 3, 3, 7]))), nn.ReLU),
        tokens(),
    ),
    "repeated tokens": (linear(nn.ReLU, lambda: Apply(lambda x: x.repeat(1, 2, 1))), tokens()),
    "one token expanded": (
        linear(nn.ReLU, lambda: Apply(lambda x: x.mean(1, keepdim=True).expand(-1, 4, -1))),
        tokens(),
    ),
    "unfolded patches": (
        lambda: nn.Sequential(
            nn.Conv2d(C, C, 1),
            nn.Unfold(3, stride=2, padding=1),
            transposed(),
            nn.Linear(9 * C, C),
        ),
        images(4),
    ),
    "pixel shuffle": (
        convolutional(lambda: nn.PixelShuffle(2), conv_of(C // 4, C), nn.ReLU),
        images(3),
    ),
    "pixel unshuffle": (
        convolutional(lambda: nn.PixelUnshuffle(2), conv_of(4 * C, C), nn.ReLU),
        images(4),
    ),
    "channel shuffle": (convolutional(lambda: nn.ChannelShuffle(4), nn.ReLU), images(3)),
    "adaptive maximum": (
        convolutional(lambda: nn.BatchNorm2d(C), nn.Tanh, lambda: nn.AdaptiveMaxPool2d(2)),
        images(),
    ),
    "largest of two features": (
        linear(
            lambda: nn.Linear(C, C),
            lambda: Apply(lambda x: x.unflatten(1, (-1, 2)).amax(2)),
            lambda: nn.Linear(C // 2, C),
        ),
        rows() + 3 * drawn(1, C, seed=2),
    ),
    "largest token": (linear(nn.Tanh, lambda: Apply(lambda x: x.amax(1))), tokens()),
    "maxout": (
        lambda: nn.Sequential(
            nn.Linear(C, 2 * C),
            Apply(lambda x: x.unflatten(1, (C, 2)).max(2).values),
            nn.Linear(C, C),
        ),
        rows(),
    ),
    "padding after a ReLU": (convolutional(nn.ReLU, lambda: nn.ZeroPad2d(1)), images()),
    "padding": (convolutional(lambda: nn.ZeroPad2d((1, 0, 2, 1))), images()),
    "slice of positions": (
        convolutional(lambda: Apply(lambda x: x[:, :, 1:5, ::2]), nn.ReLU),
        images(),
    ),
    "differences of tokens": (
        linear(nn.ReLU, lambda: Apply(lambda x: x[:, 1:] - x[:, :-1])),
        tokens(),
    ),
    "tokens less their mean": (
        linear(nn.ReLU, lambda: Apply(lambda x: x - x.mean(1, keepdim=True))),
        tokens(),
    ),
    "tokens and those before": (
        linear(lambda: Apply(lambda x: x + F.pad(x, (0, 0, 1, 0))[:, :-1]), nn.ReLU),
        tokens(),
    ),
    "one token": (linear(nn.ReLU, lambda: Apply(lambda x: x[:, 0])), tokens()),
    "halves of the features": (
        convolutional(lambda: Apply(halves_multiplied), out=C // 2),
        images(),
    ),
    "concatenated features": (convolutional(Dense, out=C + C // 2), images()),
    "concatenated parts of heads": (linear(lambda: Apply(heads_turned), nn.ReLU), tokens()),
    "concatenated positions": (linear(ClassToken), tokens()),
    "concatenated with an empty cache": (
        linear(lambda: Apply(lambda x: torch.cat([torch.tensor([]), x], -2)), nn.ReLU),
        tokens(),
    ),
}


def network(build, x, seed, shape=None):
    """A model and a batch, so that gradients of outputs are independent and of size 1."""
    torch.manual_seed(seed)
    model = build()
    if shape is None:
        with torch.no_grad():
            shape = model(x).shape
    return model, (x, torch.randn(shape))


def averages(tensor, like):
    """Products of elements at two positions, averaged over features and samples."""
    x = features_last(tensor, like.layout)  # [samples, positions, features]
    flat, summed = x.swapaxes(0, 1).reshape(x.shape[1], -1), x.sum(0)
    same, total = (of @ of.T / x[:, 0].size for of in (flat, summed))
    order = [atom for atom in like.layout.with_role("position") if atom.size > 1]
    pairs = Exchangeable(same, (total - same) / (len(x) - 1), len(x))
    return arranged(pairs, order, like.order)


def covariances(graph):
    """Predicted and measured ones by site and direction, gradients of weights, what failed."""
    forward = Forward(graph)
    for node in graph.nodes:
        forward.step(node)
    back = backward(graph, forward)
    gradients, weights = back.gradients, back.weights
    found = {}
    for node in graph.nodes:
        for index, value in enumerate(forward.values[node.number]):
            if not isinstance(value, Moments) or node.number in forward.reasons:
                continue
            site = f"{node.module} {node.name}"
            while (site, "forward") in found:
                site += "'"
            found[site, "forward"] = value.covariance, averages(node.outputs[index], value)
            gradient, actual = gradients.get(id(value)), node.gradients[index]
            if gradient is not None and actual is not None:
                found[site, "backward"] = gradient.pairs, averages(actual, value)
    inside = {node.number for node in graph.nodes if node.module}
    unpredicted = (forward.reasons, forward.notes, back.reasons)
    return found, weights, {why[number] for why in unpredicted for number in why.keys() & inside}


def mean_squares(model, graph):
    """Of the gradients of all matrices of weights, which the traced pass had."""
    kinds = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.ConvTranspose2d, nn.Bilinear)
    layers = (name for name, m in model.named_modules() if isinstance(m, kinds))
    return {name: graph.weights[name] for name in (f"{layer}.weight" for layer in layers)}


class Comparison:
    """Predictions and measurements of several networks."""

    def __init__(self, build, x):
        self.pairs, self.weights, self.reasons = [], [], set()
        with torch.random.fork_rng(devices=[]):
            shape = None
            for seed in range(NETWORKS):
                model, batch = network(build, x, seed, shape)
                shape = batch[1].shape
                graph = trace(model, batch, projected)
                pairs, weights, reasons = covariances(graph)
                self.reasons |= reasons
                self.pairs.append(pairs)
                self.weights.append((weights, mean_squares(model, graph)))

    def misses(self, way=None):
        """Sites where predictions are further from measurements than noise explains."""
        errors = {
            f"{site} {direction}": dict(
                unexplained([pairs[site, direction] for pairs in self.pairs])
            )
            for site, direction in self.pairs[0]
            if way in (None, direction)
        }
        return {site: found for site, found in errors.items() if found}


def unexplained(networks):
    """Kinds of errors that are larger than noise and finite width, and how large they are.

    Errors are predicted less measured, in parts of the measured mean square. A level is an error
    that all pairs of positions share; the pattern is the rest.
    """
    same, diff = (
        np.array([(getattr(p, b) - getattr(m, b)) / m.mean_diagonal for p, m in networks])
        for b in ("same", "diff")
    )
    other = ~np.eye(same.shape[1], dtype=bool)
    blocks = {"size": same[:, ~other], "same": same[:, other], "diff": diff.reshape(len(diff), -1)}
    for name, errors in blocks.items():
        if not errors.size:
            continue
        level = errors.mean(1)
        if abs(level.mean()) > 4 * standard_error(level) + FINITE_WIDTH:
            yield name, level.mean()
        pattern = errors - level[:, None]
        rest, noise = (np.sqrt((a**2).mean()) for a in (pattern.mean(0), standard_error(pattern)))
        if rest > (1.2 + 3 / errors.shape[1] ** 0.5) * noise + FINITE_WIDTH / 2:
            yield f"pattern of {name}", rest


def standard_error(draws):
    return draws.std(0, ddof=1) / len(draws) ** 0.5


@pytest.fixture(scope="class", params=CASES)
def comparison(request):
    return Comparison(*CASES[request.param])


class TestRules:
    def test_everything_is_predicted(self, comparison):
        assert comparison.reasons == set()

    def test_covariances_of_values_and_gradients(self, comparison):
        assert comparison.misses() == {}

    def test_gradients_of_weights(self, comparison):
        for predicted, actual in comparison.weights:
            assert predicted.keys() == actual.keys()
        ratios = np.array([[math.log(p[n] / a[n]) for n in a] for p, a in comparison.weights])
        assert (abs(ratios.mean(0)) < 4 * standard_error(ratios) + 2 * FINITE_WIDTH).all()


class TestTwins:
    """Theories that leave out one thing are told from measurement."""

    def test_borders(self, monkeypatch):
        """On a circle every position reads nine others."""

        def circular(window, pairs, sizes=None):
            pairs = pairs.reshape(window.inputs * 2)
            for axis, k in enumerate(window.kernel):
                both, reach = (axis, len(window.kernel) + axis), range(-(k // 2), k // 2 + 1)
                pairs = sum(np.roll(pairs, (shift, shift), both) for shift in reach)
            return pairs.reshape(math.prod(window.outputs), -1)

        monkeypatch.setattr(Window, "gathered", circular)
        monkeypatch.setattr(Window, "scattered", circular)
        found = Comparison(*CASES["zero padding"]).misses()
        assert found["1 convolution forward"]["size"] > 0.2
        assert found["1 convolution forward"]["pattern of same"] > 0.05
        assert found["0 convolution backward"]["size"] > 0.2

    def test_which_element_is_selected(self, monkeypatch):
        """E φ'² = ½ instead of nearly 1: the largest of a window is seldom negative."""
        largest, flat = pooling._largest, np.ones_like(latent.nodes()[0])
        monkeypatch.setattr(pooling, "_largest", lambda *given: (largest(*given)[0], flat))
        found = Comparison(*CASES["max pooling of overlapping windows"]).misses()
        assert found["1 native_batch_norm backward"]["size"] < -0.4
        assert "2 leaky_relu backward" not in found

    def test_streams_that_are_never_negative(self, monkeypatch):
        """A Gaussian of the same second moments, without a mean, loses 30 % in the next ReLU."""

        def gaussian(layout, order, covariance, mean, _):
            return from_covariance(layout, order, covariance, 0 * mean)

        monkeypatch.setattr(sums, "from_covariance", gaussian)
        found = Comparison(*CASES["post-activation block"]).misses("forward")
        assert "1 add forward" not in found
        assert found["1 relu' forward"]["size"] == pytest.approx(-0.3, abs=0.05)

    def test_neighbours_that_have_a_common_source(self, monkeypatch):
        """Tokens have more in common with those before them than independent ones would."""
        monkeypatch.setattr(sums, "common_source", lambda a, b: None)
        monkeypatch.setattr(sums, "of_dependent", lambda a, b, function: None)
        found = Comparison(*CASES["differences of tokens"]).misses()
        assert found["2 sub forward"]["size"] > 0.2

    def test_what_positions_are_read(self, monkeypatch):
        """Interpolation that copied the nearest pixel would keep all variance."""

        def nearest(x, order, matrix, layout, places):
            return mapped(x, order, np.eye(x.positions)[matrix.argmax(1)], layout, places)

        mapped = resampling.mapped
        monkeypatch.setattr(resampling, "mapped", nearest)
        found = Comparison(*CASES["bilinear upsampling"]).misses("forward")
        assert found["2 upsample_bilinear2d forward"]["size"] > 0.1

    def test_features_that_become_positions_are_independent(self, monkeypatch):
        monkeypatch.setattr(features, "kron", lambda a, b: np.kron(a, np.ones_like(b)))
        found = Comparison(*CASES["pixel shuffle"]).misses("forward")
        assert found["2 convolution forward"]["same"] > 0.1

    def test_softmax_weights_that_differ(self, monkeypatch):
        """Averages over all tokens forget what large logits add."""
        monkeypatch.setattr(softmax, "_row", lambda variance, n: (1.0, 1.0, 1.0))
        build = linear(lambda: Attention(causal=False, gain=2.5))
        found = Comparison(build, tokens()).misses("forward")
        (site,) = (site for site in found if "scaled_dot_product" in site)
        assert found[site]["size"] < -0.05


class TestGates:
    """A gate before a rectified sum meets gradients that know what it multiplies."""

    def test_of_a_stream_that_is_never_negative(self):
        assert ratio_of_gates() == pytest.approx(1, abs=0.12)

    def test_not_of_a_gaussian_sum(self, monkeypatch):
        def of_variances(weight, output, like, other):
            return float((like.std**2).mean() / (output.std**2).mean())

        monkeypatch.setattr(sums, "_share_of_latent", of_variances)
        assert ratio_of_gates() < 0.85


class GatedBlock(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem, self.layer = (nn.Conv2d(C, 2 * C, 1) for _ in range(2))
        self.norms = nn.ModuleList(nn.BatchNorm2d(2 * C) for _ in range(2))
        self.gate = nn.Linear(2 * C, 2 * C)

    def forward(self, x):
        stream = torch.relu(self.norms[0](self.stem(x)))
        branch = self.norms[1](self.layer(x))
        gate = torch.sigmoid(self.gate(branch.mean((2, 3))))[:, :, None, None]
        return torch.relu(stream + gate * branch).mean((2, 3))


def ratio_of_gates():
    """Mean square of a gate's gradient, predicted over measured."""
    x = drawn(8, C, 6, 6)
    comparison = Comparison(lambda: nn.Sequential(GatedBlock(), nn.Linear(2 * C, C)), x)
    ratios = []
    for pairs in comparison.pairs:
        site = next(s for s, way in pairs if s.endswith("sigmoid") and way == "backward")
        predicted, measured = pairs[site, "backward"]
        ratios.append(predicted.mean_diagonal / measured.mean_diagonal)
    return float(np.mean(ratios))


class GatedDecay(nn.Module):
    """What a gated recurrence multiplies its input with: a root of what is left by its decay."""

    def __init__(self):
        super().__init__()
        self.gate, self.value = nn.Linear(C, C), nn.Linear(C, C)
        self.rate = nn.Parameter(torch.linspace(0.9, 0.999, C).logit())

    def forward(self, x):
        decay = torch.exp(8 * torch.sigmoid(self.gate(x)) * F.logsigmoid(self.rate))
        return torch.sqrt(1 - decay**2) * self.value(x)


def test_bounds_hold_behind_products_with_parameters():
    """Decays are below 1, so that the root is finite, and parameters have their own law."""
    torch.manual_seed(0)
    graph = trace(linear(GatedDecay)(), (tokens(), drawn(8, 10, C)), projected)
    inside = [site for site in propagate(graph).sites if site.module == "1"]
    assert {"sqrt", "exp"} <= {site.operation for site in inside if site.is_predicted}
    for site in inside:
        assert site.second_moment == pytest.approx(site.measured_second_moment, rel=0.1)


class Windowed(nn.Module):
    """A stream of tokens beside what windows of them make, as in Swin."""

    def __init__(self):
        super().__init__()
        self.before, self.layer, self.after = (nn.Linear(C, C) for _ in range(3))

    def forward(self, x):
        x = self.before(x).tanh()
        windows = x.view(-1, 2, 3, 2, 3, C).transpose(2, 3).reshape(-1, 9, C)
        y = self.layer(windows * torch.linspace(0.2, 2, 9)[:, None])
        y = y.view(-1, 2, 2, 3, 3, C).transpose(2, 3).reshape(x.shape)
        return self.after(torch.relu(x + y))


def test_gradients_find_their_places_behind_windows():
    ratios = []
    for seed in range(3):
        torch.manual_seed(seed)
        place = torch.linspace(0.1, 3, 36)[:, None]
        graph = trace(Windowed(), (tokens(8, 36), place * drawn(8, 36, C)), projected)
        forward = Forward(graph)
        for node in graph.nodes:
            forward.step(node)
        assert len(forward.reasons) == 1  # the sum that is the loss
        back = backward(graph, forward)
        assert not back.reasons
        value = next(v[0] for v in forward.values.values() if isinstance(v[0], Moments))
        predicted = back.gradients[id(value)].pairs.diagonal
        measured = next(n for n in graph.nodes if n.name == "addmm").gradients[0]
        ratios.append(predicted / measured.view(8, 36, C).square().mean((0, 2)).numpy())
    assert np.abs(np.log(np.mean(ratios, 0))).max() < 0.3


class TestLocalResponseNorm:
    """Divisors are averages over independent channels, and a maximum behind knows its input."""

    @staticmethod
    def sites():
        found = []
        for seed in range(3):
            torch.manual_seed(seed)
            norm = lambda: nn.LocalResponseNorm(5, 0.5, 0.75, 2.0)  # noqa: E731
            model = convolutional(nn.ReLU, norm, lambda: nn.MaxPool2d(2))()
            graph = trace(model, (drawn(8, C, 4, 4), drawn(8, C, 2, 2)), projected)
            found.append([site for site in propagate(graph).sites if site.module])
        return list(zip(*found, strict=True))

    def test_moments_and_gradients(self):
        for own in self.sites():
            assert all(site.is_predicted for site in own)
            ratios = [
                np.log([s.second_moment, s.gradient])
                - np.log([s.measured_second_moment, s.measured_gradient])
                for s in own
                if s.measured_gradient
            ]
            assert np.abs(np.mean(ratios or [[0, 0]], 0)).max() < 0.2, own[0].operation

    def test_gradients_of_divisors_are_small_if_dividends_are_any(self, monkeypatch):
        alone = lambda pairs, *_: Gradient(pairs)  # noqa: E731
        monkeypatch.setattr(products, "_of_factor", alone)
        power = next(own for own in self.sites() if own[0].operation == "pow")
        ratio = np.mean([math.log(site.gradient / site.measured_gradient) for site in power])
        assert ratio < -0.5


class TestBorders:
    """A 3 × 3 kernel on 2 × 2 maps: 4 taps inside, 2 shared by neighbours, 1 by opposites."""

    def test_correlations_of_neighbours_are_halved(self):
        x = drawn(32, C, 2, 2) + drawn(32, C, 1, 1, seed=2)
        torch.manual_seed(0)
        model = nn.Sequential(nn.Conv2d(C, C, 3, padding=1, bias=False))
        found, *_ = covariances(trace(model, (x, torch.ones(())), projected))
        before = np.einsum("ncp,ncq->pq", *[x.flatten(2).double().numpy()] * 2) / (32 * C)
        variance, c = np.diagonal(before).mean(), before[~np.eye(4, dtype=bool)].mean()
        assert c / variance == pytest.approx(0.5, abs=0.05)
        for covariance in found["0 convolution", "forward"]:
            after = covariance.same / covariance.mean_diagonal
            assert after[0, 1] == pytest.approx(c / variance / 2, abs=0.05)
            assert after[0, 3] == pytest.approx(c / variance / 4, abs=0.05)


class Attention(nn.Module):
    """Two heads, fused or written out."""

    def __init__(self, *, causal=False, explicit=False, gain=1.2, bias=None, dropout=0.0):
        super().__init__()
        self.query, self.key, self.value = (nn.Linear(C, C, bias=False) for _ in range(3))
        for layer in (self.query, self.key, self.value):
            nn.init.normal_(layer.weight, 0, gain / C**0.5)
        self.causal, self.explicit, self.bias, self.dropout = causal, explicit, bias, dropout

    def forward(self, x):
        layers = (self.query, self.key, self.value)
        q, k, v = (layer(x).unflatten(2, (2, C // 2)).transpose(1, 2) for layer in layers)
        if not self.explicit:
            out = F.scaled_dot_product_attention(
                q, k, v, attn_mask=self.bias, dropout_p=self.dropout, is_causal=self.causal
            )
        else:
            logits = q @ k.transpose(2, 3) / (C // 2) ** 0.5
            if self.bias is not None:
                logits = logits + self.bias
            if self.causal:
                later = torch.ones(logits.shape[2:], dtype=torch.bool).triu(1)
                logits = logits.masked_fill(later, -math.inf)
            out = F.dropout(logits.softmax(3), self.dropout) @ v
        return out.transpose(1, 2).flatten(2)


def slopes():
    """A bias for what is near, another in each head."""
    distance = abs(torch.arange(10)[:, None] - torch.arange(10))
    return -torch.tensor([1.0, 0.2])[:, None, None] * distance


ATTENTION = {
    "all": {},
    "causal": {"causal": True},
    "a bias in each head": {"bias": slopes()},
    "dropout": {"dropout": 0.5},
}


@cache
def compared_attention(name, *, explicit):
    return Comparison(linear(lambda: Attention(explicit=explicit, **ATTENTION[name])), tokens())


@pytest.mark.parametrize("name", ATTENTION)
class TestAttention:
    @pytest.mark.parametrize("explicit", [False, True], ids=["fused", "explicit"])
    def test_outputs_and_gradients_of_keys_and_values(self, name, explicit):
        comparison = compared_attention(name, explicit=explicit)
        assert comparison.misses("forward") == {}
        missed = comparison.misses("backward")
        assert [site for site in missed if "1.key" in site or "1.value" in site] == []
        ratios = [p["1.value.weight"] / a["1.value.weight"] for p, a in comparison.weights]
        assert np.mean(ratios) == pytest.approx(1, abs=0.1)

    def test_gradients_of_weights(self, name):
        """Those of keys grow with the tokens' random products, of variance 1/C."""
        comparison = compared_attention(name, explicit=False)
        for weight, shared in (("query", 0), ("key", 10 / C)):
            of_it = f"1.{weight}.weight"
            predicted, actual = np.mean([(p[of_it], a[of_it]) for p, a in comparison.weights], 0)
            assert predicted * (1 + shared) == pytest.approx(actual, rel=0.15)

    def test_both_forms_are_predicted_alike(self, name):
        torch.manual_seed(0)
        model, outputs = linear(lambda: Attention(**ATTENTION[name]))(), []
        for explicit in (False, True):
            model[1].explicit = explicit
            graph = trace(model, (tokens(), drawn(8, 10, C)), projected)
            outputs.append(covariances(graph)[0]["2 addmm", "forward"][0])
        np.testing.assert_allclose(outputs[0].same, outputs[1].same, rtol=1e-6)


class Readers(nn.Module):
    """A few learned queries that read many tokens, as Perceiver's latents do."""

    def __init__(self):
        super().__init__()
        self.queries = nn.Parameter(torch.randn(6, C))
        self.key, self.value = (nn.Linear(C, C, bias=False) for _ in range(2))

    def forward(self, x):
        q, k, v = self.queries.expand(len(x), -1, -1), self.key(x), self.value(x)
        heads = [tensor.unsqueeze(1) for tensor in (q, k, v)]
        return F.scaled_dot_product_attention(*heads).squeeze(1)


def spreads():
    """Variance over queries of what they read, predicted over measured."""
    ratios = []
    for seed in range(3):
        torch.manual_seed(seed)
        graph = trace(Readers(), (torch.randn(4, 256, C), drawn(4, 6, C)), projected)
        forward = Forward(graph)
        for node in graph.nodes:
            forward.step(node)
        node = next(node for node in graph.nodes if "attention" in node.name)
        measured = node.outputs[0].detach().var(2, correction=0).mean()
        ratios.append(forward.values[node.number][0].covariance.spread / float(measured))
    return math.exp(np.mean(np.log(ratios)))


class TestReaders:
    """Keys that are alike have values that are alike: outputs differ more, by 1 + S/C."""

    def test_outputs_differ_as_measured(self):
        assert spreads() == pytest.approx(1, abs=0.15)

    def test_less_if_keys_and_values_had_nothing_in_common(self, monkeypatch):
        alone = lambda head: head.weights.averaged(head.values)  # noqa: E731
        monkeypatch.setattr(outputs._Head, "averaged", alone)
        assert spreads() == pytest.approx(1 / (1 + 256 / C), rel=0.2)


class ChannelsFirst(nn.Module):
    """One head, whose values stand before the transposed weights, as in U-Nets."""

    def __init__(self, *, first):
        super().__init__()
        self.query, self.key, self.value = (nn.Linear(C, C) for _ in range(3))
        self.last, self.first = nn.Linear(C, C), first

    def forward(self, x):
        q, k, v = self.query(x), self.key(x), self.value(x)
        a = (q @ k.transpose(1, 2) / C**0.5).softmax(2)
        out = torch.einsum("nts,ncs->nct", a, v.mT).mT if self.first else a @ v
        return self.last(out)


def test_values_may_come_before_transposed_weights():
    found = []
    for first in (False, True):
        torch.manual_seed(0)
        graph = trace(ChannelsFirst(first=first), (tokens(), drawn(8, 10, C)), projected)
        found.append({weight.name: weight.gradient for weight in propagate(graph).weights})
    assert found[0]["query.weight"] > 0
    assert found[1] == pytest.approx(found[0], rel=1e-9)


class GroupedQueries(nn.Module):
    """Four heads of queries, two of keys and values, in each of the ways that people write it."""

    def __init__(self, way):
        super().__init__()
        self.query = nn.Linear(C, C, bias=False)
        self.key, self.value = (nn.Linear(C, C // 2, bias=False) for _ in range(2))
        self.way = way

    def forward(self, x):
        layers = (self.query, self.key, self.value)
        q, k, v = (layer(x).unflatten(2, (-1, C // 4)).transpose(1, 2) for layer in layers)
        if self.way == "einsum":
            q = q.unflatten(1, (2, 2))
            logits = torch.einsum("bkgtd,bksd->bkgts", q, k) / (C // 4) ** 0.5
            later = torch.ones(logits.shape[3:], dtype=torch.bool).triu(1)
            weights = logits.masked_fill(later, -math.inf).softmax(4)
            out = torch.einsum("bkgts,bksd->bkgtd", weights, v).flatten(1, 2)
        else:
            if self.way == "repeated":
                k, v = (x.repeat_interleave(2, 1) for x in (k, v))
            elif self.way == "expanded":
                k, v = (x[:, :, None].expand(-1, -1, 2, -1, -1).flatten(1, 2) for x in (k, v))
            grouped = self.way == "enable_gqa"
            out = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=grouped)
        return out.transpose(1, 2).flatten(2)


@pytest.mark.parametrize("way", ["einsum", "repeated", "expanded", "enable_gqa"])
def test_heads_that_share_keys_and_values(way):
    """Their gradients add up: of two heads they are twice those of one."""
    comparison = Comparison(linear(lambda: GroupedQueries(way)), tokens())
    sites = [site for site, _ in comparison.pairs[0]]
    assert any("scaled_dot_product" in site or "bmm" in site for site in sites)
    assert comparison.misses("forward") == {}
    for weight in ("1.key.weight", "1.value.weight"):
        ratios = [p[weight] / a[weight] for p, a in comparison.weights]
        assert np.mean(ratios) == pytest.approx(1, abs=0.15)


class TestManyTokens:
    """Keys and values are made of one stream, whose random products they share.

    A query's gradient meets the squares of all products of T tokens, each of variance 1/C.
    """

    @pytest.mark.parametrize("gain", [0.3, 1.2])
    @pytest.mark.parametrize("length", [16, 128])
    def test_gradients_of_queries_grow_with_tokens_over_features(self, length, gain):
        assert ratio_of_queries(length, gain) == pytest.approx(1, abs=0.1)

    def test_keys_and_values_of_two_streams(self, monkeypatch):
        """Data and a layer have 1/C each; the average over 8 samples has an 8th of data's."""
        monkeypatch.setattr(Moments, "__init__", without_scatter(Moments.__init__))
        assert 1 / ratio_of_queries(128, gain=0.3) == pytest.approx(
            (1 + 2 * 128 / C) / (1 + 128 / C / 8), rel=0.1
        )


def without_scatter(make):
    def made(self, *arguments, scatter=0.0, **keywords):
        make(self, *arguments, **keywords)

    return made


def ratio_of_queries(length, gain):
    """Mean square of the gradient of queries of unlike tokens, predicted over measured."""
    x = C**0.5 * F.normalize(drawn(8, length, C), dim=2)
    comparison = Comparison(linear(partial(Attention, gain=gain)), x)
    ratios = [p["1.query.weight"] / a["1.query.weight"] for p, a in comparison.weights]
    return float(np.mean(ratios))


class TestAttentionTwins:
    def test_a_bias_that_is_a_mask(self, monkeypatch):
        """All keys are seen, so that nothing would be left of it."""
        monkeypatch.setattr(scores, "biased", lambda scores, bias, shape: scores)
        found = Comparison(linear(lambda: Attention(bias=slopes())), tokens()).misses("forward")
        assert any(abs(error) > 0.05 for site in found.values() for error in site.values())

    def test_dropout_that_is_none(self, monkeypatch):
        monkeypatch.setattr(scores, "_noise", lambda call: 0.0)
        found = Comparison(linear(lambda: Attention(dropout=0.5)), tokens()).misses("forward")
        assert any(error < -0.03 for site in found.values() for error in site.values())


class TestScores:
    """What happens to scores between the two products is taken into account, or refused."""

    @staticmethod
    def reasons(change):
        class Changed(Attention):
            def forward(self, x):
                layers = (self.query, self.key, self.value)
                q, k, v = (layer(x).unflatten(2, (2, -1)).transpose(1, 2) for layer in layers)
                return (change(q @ k.transpose(2, 3)) @ v).transpose(1, 2).flatten(2)

        model, batch = network(linear(Changed), tokens(), 0)
        sites = propagate(trace(model, batch, projected)).sites
        return [s.reason for s in sites if s.reason and s.module == "1"]

    @pytest.mark.parametrize(
        ("change", "reason"),
        [
            (lambda a: a.softmax(2), "_softmax of attention scores"),
            (lambda a: a.tanh().softmax(3), "tanh of attention scores"),
            (lambda a: a.softmax(3) * torch.linspace(0, 1, 10), "mul of attention weights"),
            (lambda a: a.softmax(3) * 0.5, "mul of attention weights"),
            (lambda a: (a + drawn(8, 1, 10, 10)).softmax(3), "differs between samples"),
            (
                lambda a: a.masked_fill(torch.eye(10) > 0, 1.0).softmax(3),
                "masked_fill of attention",
            ),
            (lambda a: a.masked_fill(torch.eye(10) > 0, 0.0).softmax(3), "numbers that differ"),
            (lambda a: (a * drawn(10)).softmax(3), "numbers that differ"),
        ],
    )
    def test_unknown_changes_are_named(self, change, reason):
        found = self.reasons(change)
        assert found
        assert reason in found[0]

    @pytest.mark.parametrize(
        "change",
        [
            lambda a: a.masked_fill(torch.ones(10, 10).triu(1) > 0, -math.inf).softmax(3),
            lambda a: torch.where(torch.ones(10, 10).tril() > 0, a, -1e9).softmax(3),
            lambda a: (a / 4 + slopes().expand(8, 2, 10, 10)).softmax(3),
        ],
    )
    def test_known_ones_are_not(self, change):
        assert self.reasons(change) == []


class Windows(Attention):
    """Two windows of five tokens, of which the second hides its first two from the others."""

    def forward(self, x):
        layers = (self.query, self.key, self.value)
        # [samples, windows, heads, tokens, features]
        q, k, v = (
            layer(x).unflatten(2, (2, C // 2)).unflatten(1, (2, 5)).transpose(2, 3)
            for layer in layers
        )
        first = torch.arange(5) < 2
        hidden = torch.stack([torch.zeros(5, 5), -1e9 * (first != first[:, None])])
        weights = (q @ k.transpose(3, 4) / (C // 2) ** 0.5 + hidden[:, None]).softmax(4)
        return (weights @ v).transpose(2, 3).flatten(3).flatten(1, 2)


def test_windows_have_masks_of_their_own():
    found = Comparison(linear(Windows), tokens())
    assert ("1 bmm", "forward") in found.pairs[0]
    assert found.misses("forward") == {}
    covariance = found.pairs[0]["1 bmm", "forward"][0].same
    assert covariance.shape == (10, 10)


def test_attention_of_a_layer_with_a_mask():
    """``nn.MultiheadAttention`` adds its mask and multiplies in one operation."""

    class Layer(nn.MultiheadAttention):
        def forward(self, x):
            mask = nn.Transformer.generate_square_subsequent_mask(10)
            return super().forward(x, x, x, attn_mask=mask)[0]

    build = linear(lambda: Layer(C, 2, batch_first=True))
    found = Comparison(build, tokens())
    assert ("1 baddbmm", "backward") not in found.pairs[0]  # nothing is said of scores
    assert ("1 bmm", "forward") in found.pairs[0]
    assert found.misses("forward") == {}


class TestArguments:
    """Forms of one operator have different arguments, in different orders."""

    def test_batch_norm_without_running_statistics(self):
        """Its ε stands where another form has the momentum."""
        form, eps = torch.ops.aten._native_batch_norm_legit.no_stats, 0.4
        found = []
        for norm in (
            Apply(lambda x: form(x, None, None, True, 0.1, eps)[0]),
            nn.BatchNorm1d(C, eps=eps, affine=False),
        ):
            model, batch = network(linear(lambda n=norm: n, nn.ReLU), rows(), 0)
            sites = propagate(trace(model, batch, projected)).sites
            found.append([(s.second_moment, s.gradient) for s in sites if s.module == "2"])
        assert found[0] == found[1] != []

    @pytest.mark.parametrize(
        ("build", "x", "reason"),
        [
            (linear(lambda: Doubled(C, C)), rows(), "two terms have factors"),
        ],
    )
    def test_what_no_rule_takes_into_account_is_refused(self, build, x, reason):
        model, batch = network(build, x, 0)
        sites = propagate(trace(model, batch, projected)).sites
        assert [s.module for s in sites if reason in s.reason] == ["1"]


@pytest.mark.parametrize("function", [nn.Hardswish, nn.LogSigmoid, nn.Softsign])
def test_functions_that_pytorch_does_not_call_pointwise(function):
    build = linear(function, lambda: nn.Linear(C, C), function)
    model, batch = network(build, rows(), 0)
    assert not any(site.reason for site in propagate(trace(model, batch, projected)).sites[:-2])
    assert not Comparison(build, rows()).misses()


class TestPointwise:
    @staticmethod
    def prelu(slopes):
        """The site behind a PReLU of given slopes."""
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(C, C), nn.PReLU(C), nn.Linear(C, C))
        model[1].weight.data = slopes
        sites = propagate(trace(model, (rows(), drawn(32, C)), projected)).sites
        return next(site for site in sites if site.operation == "_prelu_kernel")

    def test_equal_slopes_are_one_function(self):
        site = self.prelu(torch.full((C,), 0.3))
        assert site.second_moment == pytest.approx(site.measured_second_moment, rel=0.1)

    def test_slopes_that_differ_are_refused(self):
        """The first alone would be off by a factor of two."""
        site = self.prelu(torch.linspace(0, 1.4, C))
        assert site.second_moment is None
        assert "constants differ" in site.reason

    def test_functions_of_one_latent_are_multiplied_point_by_point(self):
        """x σ(x) is silu(x), whose factors are not independent."""
        sizes = []
        for function in (F.silu, lambda x: x * torch.sigmoid(x)):
            model, batch = network(linear(lambda f=function: Apply(f)), rows(), 0)
            sites = propagate(trace(model, batch, projected)).sites
            sizes.append([s.second_moment for s in sites if s.module == "2"])
        assert sizes[0] == pytest.approx(sizes[1], rel=1e-6)


@pytest.mark.parametrize("common", [1, 3, 9])
def test_maxima_of_windows_with_elements_in_common(common):
    v = np.random.default_rng(common).standard_normal((200_000, 18 - common))
    products = np.prod([m - m.mean() for m in (v[:, :9].max(1), v[:, -9:].max(1))], 0)
    found = pooling._covariance_of_largest(9, 9, common)
    assert found == pytest.approx(products.mean(), abs=4 * products.std() / len(v) ** 0.5)


@pytest.mark.parametrize("count", [1, 2, 9, 64])
@pytest.mark.parametrize("rho", [-0.5, 0.3, 0.9])
def test_maxima_of_two_samples(count, rho):
    generator = np.random.default_rng(count)
    v, w = generator.standard_normal((2, 50_000, count))
    w = rho * v + (1 - rho**2) ** 0.5 * w
    products = np.prod([m - m.mean() for m in (v.max(1), w.max(1))], 0)
    found = pooling._covariance_between(count, np.array(rho))
    assert found == pytest.approx(products.mean(), abs=4 * products.std() / len(v) ** 0.5 + 1e-4)
    again = (v.argmax(1) == w.argmax(1)).mean()
    chance = pooling._selected_again(count, rho)
    assert chance == pytest.approx(again, abs=4 * (again * (1 - again) / len(v)) ** 0.5 + 1e-4)
