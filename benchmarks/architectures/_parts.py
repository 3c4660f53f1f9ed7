"""Blocks that architectures of several families are put together from."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Residual(nn.Module):
    r"""One residual block for all families.

    .. math:: y = \text{after}(s + \text{branch}(\text{before}(x)))

    The shortcut :math:`s` is x itself without ``shortcut``, and otherwise that module of
    ``before(x)``, as in networks with pre-activation.
    """

    def __init__(
        self,
        branch: nn.Module,
        *,
        before: nn.Module | None = None,
        shortcut: nn.Module | None = None,
        after: nn.Module | None = None,
    ):
        super().__init__()
        self.before = nn.Identity() if before is None else before
        self.branch = branch
        self.shortcut = shortcut
        self.after = nn.Identity() if after is None else after

    def forward(self, x: Tensor) -> Tensor:
        """Add the branch to the shortcut."""
        entered = self.before(x)
        skip = x if self.shortcut is None else self.shortcut(entered)
        y: Tensor = self.after(skip + self.branch(entered))
        return y


class SqueezeExcite(nn.Module):
    """Gate every channel by a sigmoid of all channels' means [Hu 2017, arXiv:1709.01507]."""

    def __init__(
        self,
        channels: int,
        hidden: int,
        *,
        activation: Callable[[], nn.Module] = nn.ReLU,
    ):
        super().__init__()
        self.gate = nn.Sequential(
            nn.AdaptiveAvgPool2d(1),
            nn.Conv2d(channels, hidden, 1),
            activation(),
            nn.Conv2d(hidden, channels, 1),
            nn.Sigmoid(),
        )

    def forward(self, x: Tensor) -> Tensor:
        """Multiply ``[N, C, H, W]`` by gates ``[N, C, 1, 1]``."""
        gate: Tensor = self.gate(x)
        return x * gate


class Permute(nn.Module):
    """Reorder dimensions."""

    def __init__(self, *order: int):
        super().__init__()
        self.order = order

    def forward(self, x: Tensor) -> Tensor:
        """Return x with its dimensions in ``order``."""
        return x.permute(self.order)


class Times(nn.Module):
    """Multiply by a constant."""

    def __init__(self, factor: float):
        super().__init__()
        self.factor = factor

    def forward(self, x: Tensor) -> Tensor:
        """Return ``factor * x``."""
        return x * self.factor


class Gain(nn.Module):
    """Multiply by a learned parameter of the given shape, the same everywhere at first."""

    def __init__(self, initial: float, *shape: int):
        super().__init__()
        self.weight = nn.Parameter(torch.full(shape, initial))

    def forward(self, x: Tensor) -> Tensor:
        """Return ``weight * x``."""
        return self.weight * x


class CausalConv1d(nn.Conv1d):
    """A convolution along time whose outputs do not see later inputs."""

    def forward(self, x: Tensor) -> Tensor:
        """Keep the length of ``[N, C, T]`` by zeros before its beginning."""
        return super().forward(F.pad(x, (self.dilation[0] * (self.kernel_size[0] - 1), 0)))


def convolution(
    in_channels: int, out_channels: int, kernel: int, stride: int = 1, *, groups: int = 1
) -> nn.Conv2d:
    """A convolution without bias that keeps the size if stride is 1."""
    return nn.Conv2d(
        in_channels,
        out_channels,
        kernel,
        stride,
        padding=kernel // 2,
        groups=groups,
        bias=False,
    )


def conv_norm(
    in_channels: int, out_channels: int, kernel: int, stride: int = 1, *, groups: int = 1
) -> list[nn.Module]:
    """The same convolution, and batch norm."""
    return [
        convolution(in_channels, out_channels, kernel, stride, groups=groups),
        nn.BatchNorm2d(out_channels),
    ]


def imagenet_stem(width: int) -> list[nn.Module]:
    """A 7×7 convolution, batch norm, ReLU and max-pooling: a quarter of the resolution."""
    return [*conv_norm(3, width, 7, 2), nn.ReLU(), nn.MaxPool2d(3, stride=2, padding=1)]


def pooled(*head: nn.Module) -> list[nn.Module]:
    """Global average pooling and what follows it."""
    return [nn.AdaptiveAvgPool2d(1), nn.Flatten(), *head]


def initialise_(
    model: nn.Module, weight: Callable[[Tensor], object], *kinds: type[nn.Module]
) -> None:
    """Draw the weights of all modules of these kinds in place, and set their biases to 0."""
    for module in model.modules():
        if isinstance(module, kinds):
            assert isinstance(module.weight, Tensor)
            weight(module.weight)
            if isinstance(getattr(module, "bias", None), Tensor):
                nn.init.zeros_(module.bias)  # type: ignore[arg-type]


def he_fan_out_(weight: Tensor) -> Tensor:
    """The normal initialisation of residual networks [He 2015, arXiv:1502.01852]."""
    return nn.init.kaiming_normal_(weight, mode="fan_out", nonlinearity="relu")


def normal_(std: float) -> Callable[[Tensor], Tensor]:
    """An initialiser that draws from a centred normal distribution."""
    return lambda weight: nn.init.normal_(weight, std=std)


def truncated_normal_(std: float) -> Callable[[Tensor], Tensor]:
    """An initialiser that draws from a centred normal distribution cut at ±2.

    The cut is PyTorch's default, in absolute terms, which vision transformers inherit: it
    changes nothing at the small ``std`` in use.
    """
    return lambda weight: nn.init.trunc_normal_(weight, std=std)
