r"""Random networks of the theory: their normaliser, and whether they are residual."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, TypeAlias

import torch
from torch import Tensor

from equipoise.numerics.checks import check_positive, check_whole
from equipoise.theory.batch_norm.setting import Setting

Normaliser: TypeAlias = Literal["batch norm", "layer norm", "rms norm", "group norm"]


@dataclass(frozen=True, slots=True)
class Architecture:
    """How a random network differs from linear → batch norm → activation → linear.

    Args:
        normaliser: What stands in for batch norm.
        group_size: Features per group of ``"group norm"``.
        stages: If positive, a residual stream with as many normaliser → activation → linear
            stages in every branch.
        leading: Whether a linear layer precedes the first normaliser of a branch.
        start_variance: Variance of the Gaussian samples that enter; it matters to a stream.

    Raises:
        ValueError: If the normaliser is unknown, a group size is missing or out of place, or a
            number is out of range.
    """

    normaliser: Normaliser = "batch norm"
    group_size: int | None = None
    stages: int = 0
    leading: bool = False
    start_variance: float = 1.0

    def __post_init__(self) -> None:
        known = ("batch norm", "layer norm", "rms norm", "group norm")
        if self.normaliser not in known:
            raise ValueError(
                f"normaliser must be one of {', '.join(known)}, got {self.normaliser!r}."
            )
        if (self.group_size is not None) != (self.normaliser == "group norm"):
            raise ValueError(
                f"group_size belongs to group norm alone, got {self.group_size!r} with "
                f"{self.normaliser}."
            )
        check_whole("stages", self.stages, 0)
        if self.group_size is not None:
            check_whole("group_size", self.group_size, 2)
        check_positive(start_variance=self.start_variance)


PLAIN = Architecture()


@dataclass(frozen=True, slots=True)
class Draw:
    """Draws random weights for several networks of one width at a time."""

    networks: int
    width: int
    generator: torch.Generator
    device: torch.device
    dtype: torch.dtype

    def normal(self, *shape: int, scale: float = 1.0) -> Tensor:
        """Independent normal numbers."""
        return scale * torch.randn(
            *shape, generator=self.generator, device=self.device, dtype=self.dtype
        )

    def linear(self, setting: Setting, x: Tensor) -> Tensor:
        """Multiply by fresh weights and add fresh biases."""
        weight = self.normal(
            self.networks,
            self.width,
            self.width,
            scale=math.sqrt(setting.weight_variance / self.width),
        )
        h = x @ weight
        if setting.bias_variance:
            scale = math.sqrt(setting.bias_variance)
            h = h + self.normal(self.networks, 1, self.width, scale=scale)
        return h


def forward(
    setting: Setting, architecture: Architecture, depth: int, draw: Draw
) -> tuple[list[Tensor], Tensor]:
    """Run networks on Gaussian samples.

    Returns:
        The inputs of ``depth`` normalisers, each ``[networks, B, width]`` and part of the graph,
        and the output: the last activation, or the stream after the last block.
    """
    scale = math.sqrt(architecture.start_variance)
    x = draw.normal(draw.networks, setting.batch_size, draw.width, scale=scale)
    x.requires_grad_()
    layers: list[Tensor] = []

    def record(h: Tensor) -> Tensor:
        layers.append(h)
        return respond(setting, architecture, h)

    if not architecture.stages:
        for _ in range(depth):
            x = record(draw.linear(setting, x))
        return layers, x
    while len(layers) < depth:
        branch = draw.linear(setting, x) if architecture.leading else x
        for _ in range(architecture.stages):
            branch = draw.linear(setting, record(branch))
        x = x + branch
    return layers, x


def respond(setting: Setting, architecture: Architecture, h: Tensor) -> Tensor:
    """Normalise ``[networks, B, width]`` and activate."""
    normalised = normalise(architecture, h, setting.eps)
    return setting.activation.function(setting.gamma * normalised + setting.beta)


def normalise(architecture: Architecture, h: Tensor, eps: float) -> Tensor:
    """Divide by the deviation from the mean over samples, features or groups of features."""
    if architecture.normaliser == "batch norm":
        return _standardise(h, 1, eps)
    if architecture.normaliser == "layer norm":
        return _standardise(h, -1, eps)
    if architecture.normaliser == "rms norm":
        return h * (h.square().mean(-1, keepdim=True) + eps).rsqrt()
    assert architecture.group_size is not None
    if h.shape[-1] % architecture.group_size:
        raise ValueError(
            f"width {h.shape[-1]} is not a multiple of group_size {architecture.group_size}."
        )
    grouped = h.reshape(*h.shape[:-1], -1, architecture.group_size)
    return _standardise(grouped, -1, eps).flatten(-2)


def _standardise(h: Tensor, dim: int, eps: float) -> Tensor:
    centred = h - h.mean(dim, keepdim=True)
    return centred * (centred.square().mean(dim, keepdim=True) + eps).rsqrt()
