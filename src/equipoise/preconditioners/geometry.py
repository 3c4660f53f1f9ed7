r"""What the rows and columns of a layer's feature matrix are, and their sums.

A convolution is a linear layer of the im2col matrix: one row per sample and output position, one
column per input channel and kernel tap. Its column statistics are either those of the channel,
one for all taps (the paper's Algorithm 3), or exact.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TypeAlias

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from equipoise.preconditioners.sums import Sums, shifted_sums

Layer: TypeAlias = nn.Linear | nn.Conv1d | nn.Conv2d | nn.Conv3d


@dataclass(frozen=True, slots=True)
class Geometry:
    """Shape of the feature matrix of a layer.

    Args:
        channels: Input features or channels, all groups together.
        groups: Independent sub-layers; a linear layer has one.
        taps: Kernel positions; a linear layer has one.
        spatial: Spatial dimensions.
        exact: Whether every tap has its own statistics.
    """

    channels: int
    groups: int
    taps: int
    spatial: int
    exact: bool

    @classmethod
    def of(cls, module: Layer, *, exact: bool) -> Geometry:
        """That of a layer, whose convolution taps may have statistics of their own."""
        if isinstance(module, nn.Linear):
            return cls(module.in_features, 1, 1, 0, False)
        kernel = module.kernel_size
        taps = math.prod(kernel)
        return cls(module.in_channels, module.groups, taps, len(kernel), exact and taps > 1)

    @property
    def length(self) -> int:
        """Number of means, and of variances, that are tracked."""
        return self.channels * (self.taps if self.exact else 1)

    @property
    def fan_in(self) -> int:
        """Columns of one group's feature matrix."""
        return self.channels // self.groups * self.taps

    def columns(self, values: Tensor) -> Tensor:
        """Tracked values, one for each column of all groups: ``[channels * taps]``."""
        if self.exact or self.taps == 1:
            return values
        return values.repeat_interleave(self.taps)

    def sums(
        self, module: Layer, h: Tensor, output: Tensor, shift: Tensor | None, *, by_sample: bool
    ) -> Sums:
        """Sums over one batch about ``shift``, or about the batch's own mean if there is none.

        Args:
            module: The layer that was called.
            h: Its input, with or without a batch dimension.
            output: Its output, for the number of output positions.
            shift: Of shape ``[length]``; decides the type of the sums.
            by_sample: Whether N counts samples rather than rows of a linear layer.
        """
        if isinstance(module, nn.Linear):
            return _linear(h, shift, by_sample=by_sample)
        batched = h if h.dim() == self.spatial + 2 else h.unsqueeze(0)
        positions = math.prod(output.shape[output.dim() - self.spatial :])
        return _convolution(self, module, batched, positions, shift)


def statistics_type(dtype: torch.dtype) -> torch.dtype:
    """Float64 for float64, else float32: bfloat16 arithmetic is 6 % off in a variance."""
    return torch.float64 if dtype == torch.float64 else torch.float32


def _linear(h: Tensor, shift: Tensor | None, *, by_sample: bool) -> Sums:
    if h.dim() == 1:
        h = h.unsqueeze(0)
    over = list(range(h.dim() - 1))
    if shift is None:
        shift = _finite(h.mean(over, dtype=statistics_type(h.dtype)))
    first, second = shifted_sums(h, shift, keep=(h.dim() - 1,))
    rows = math.prod(h.shape[:-1])
    samples = h.shape[0] if by_sample else rows
    return Sums(shift, first, second, rows, samples, samples)


def _convolution(
    geometry: Geometry, module: nn.Module, h: Tensor, positions: int, shift: Tensor | None
) -> Sums:
    samples, spatial = h.shape[0], list(range(2, h.dim()))
    taps = geometry.taps if geometry.exact else 1
    if shift is None:
        shift = _finite(h.mean([0, *spatial], dtype=statistics_type(h.dtype)))
        shift = shift.repeat_interleave(taps) if taps > 1 else shift
    # The taps of a channel share one map, and so one shift.
    channel = shift.view(-1, taps).mean(1) if taps > 1 else shift
    spread = channel.view(-1, *[1] * len(spatial))
    if not geometry.exact:
        first, second = shifted_sums(h, spread, keep=(1,))
        rows = samples * math.prod(h.shape[2:])
        return Sums(shift, first, second, rows, samples, samples * positions)
    first, second = shifted_sums(h, spread, keep=(1, *spatial))
    outside = (-samples * spread, samples * spread * spread)  # zeros, seen from the shift
    first, second = (
        _taps(module, sums, value) for sums, value in zip((first, second), outside, strict=True)
    )
    common = channel.repeat_interleave(taps)
    return Sums(common, first, second, samples * positions, samples, samples * positions)


def _finite(mean: Tensor) -> Tensor:
    """A shift that one overflowing batch does not spoil."""
    return torch.nan_to_num(mean, nan=0.0, posinf=0.0, neginf=0.0)


def _taps(module: nn.Module, sums: Tensor, outside: Tensor) -> Tensor:
    """Reduce maps ``[C, *positions]`` to ``[C * taps]``: for each tap, the sum over outputs.

    A tap meets input :math:`u s + t d` at output u, a product of ranges: one dimension at a time.
    """
    assert isinstance(module, nn.Conv1d | nn.Conv2d | nn.Conv3d)
    padding = _padding(module)
    if module.padding_mode == "zeros":
        sums = F.pad(sums - outside, padding) + outside
    elif any(padding):
        sums = F.pad(sums.unsqueeze(0), padding, mode=module.padding_mode).squeeze(0)
    for size, stride, dilation in zip(
        module.kernel_size, module.stride, module.dilation, strict=True
    ):
        outputs = (sums.shape[1] - dilation * (size - 1) - 1) // stride + 1
        reach = stride * (outputs - 1) + 1
        met = [
            sums[:, tap * dilation : tap * dilation + reach : stride].sum(1) for tap in range(size)
        ]
        sums = torch.stack(met, -1)  # the next dimension moves to 1, taps gather at the end
    return sums.flatten()


def _padding(module: nn.Conv1d | nn.Conv2d | nn.Conv3d) -> list[int]:
    """Padding as ``F.pad`` takes it, last dimension first."""
    if isinstance(module.padding, str):
        needed = [
            d * (k - 1) if module.padding == "same" else 0
            for d, k in zip(module.dilation, module.kernel_size, strict=True)
        ]
        sides = [(total // 2, total - total // 2) for total in needed]
    else:
        sides = [(p, p) for p in module.padding]
    return [p for side in reversed(sides) for p in side]
