r"""Means and variances over the rows of a layer's feature matrix.

A convolution is a linear layer of the im2col matrix: one row per sample and output position, one
column per input channel and kernel tap. Its column statistics are either those of the channel,
one for all taps (the paper's Algorithm 3), or exact.

The plain :math:`E[h^2] - \mu^2` in float32 is 19 % wrong at :math:`\mu/\sigma = 10^3`. On a CPU,
rows in one piece of memory are read twice, for the mean and for the variance about it, by batch
norm's own kernel: no temporary, half the time of sums. On a GPU one kernel reads them once, by
Welford's recurrence. Elsewhere sums of :math:`h - c` and :math:`(h - c)^2` with c near the mean
lose nothing either, in eight kernels.
"""

from __future__ import annotations

import math
import threading
from dataclasses import dataclass
from typing import TypeAlias

import torch
import torch.nn.functional as F
from torch import Tensor, nn

Layer: TypeAlias = nn.Linear | nn.Conv1d | nn.Conv2d | nn.Conv3d

# Elements worked on at once: a temporary that stays in the second-level cache of a CPU
# (measured: 2^16 and 2^17 are the fastest), and large enough to fill a GPU.
_CHUNK = {"cpu": 2**17}
_CHUNK_ELSEWHERE = 2**23
_MOST_BUFFERS = 16
# Rows that batch norm's kernel takes at once. It adds them up one after the other: means are wrong
# by at most half of 2⁻²⁴ times the rows, which is 2e-5, if all rows are alike (measured: 2e-6).
_ROWS = 512
_buffers = threading.local()


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
        """Geometry of a layer; ``exact`` matters to kernels with several taps only."""
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

    def moments(
        self, module: Layer, h: Tensor, output: Tensor, shift: Tensor | None, *, by_sample: bool
    ) -> Moments:
        """Moments of one batch.

        Args:
            module: The layer that was called.
            h: Its input, with or without a batch dimension.
            output: Its output, for the number of output positions.
            shift: Near the mean, of shape ``[length]`` and of the type of the statistics; the
                batch's own mean if there is none.
            by_sample: Whether N counts samples rather than rows of a linear layer.
        """
        if self.spatial == 0:
            return _linear(h, shift, by_sample=by_sample)
        batched = h if h.dim() == self.spatial + 2 else h.unsqueeze(0)
        positions = math.prod(output.shape[output.dim() - self.spatial :])
        return _convolution(self, module, batched, positions, shift)


@dataclass(slots=True)
class Moments:
    """What one or several batches contribute to one layer's statistics.

    Args:
        mean: Of shape ``[length]``.
        variance: About this mean, biased; of the same shape.
        rows: Number of rows that these are of.
        samples: N, the rows that the loss averages over.
        positions: Output positions, summed over the samples.
    """

    mean: Tensor
    variance: Tensor
    rows: int
    samples: int
    positions: int

    def add(self, other: Moments) -> None:
        """Add another batch."""
        both = self.rows + other.rows
        self.mean, self.variance = _together(
            (self.mean, self.variance), (other.mean, other.variance), other.rows / both
        )
        self.rows = both
        self.samples += other.samples
        self.positions += other.positions


def _together(
    a: tuple[Tensor, Tensor], b: tuple[Tensor, Tensor], share: float
) -> tuple[Tensor, Tensor]:
    """Mean and variance of two sets of rows, of which the second makes up a share."""
    apart = b[0] - a[0]
    mean = torch.add(a[0], apart, alpha=share)
    variance = torch.lerp(a[1], b[1], share)
    return mean, variance.addcmul_(apart, apart, value=share * (1 - share))


def statistics_type(dtype: torch.dtype) -> torch.dtype:
    """Float64 for float64, else float32: bfloat16 arithmetic is 6 % off in a variance."""
    return torch.float64 if dtype == torch.float64 else torch.float32


def _linear(h: Tensor, shift: Tensor | None, *, by_sample: bool) -> Moments:
    samples = h.size(0) if h.dim() > 1 else 1
    if h.is_nested:  # samples of several lengths: their rows, one below the other
        h = h.values().view(-1, h.size(-1))
    elif h.layout is not torch.strided:
        h = h.to_dense()
    if h.dim() == 1:
        h = h.unsqueeze(0)
    features = h.shape[-1]
    rows = h.numel() // features
    if _is_one_piece(h):
        mean, variance = _of_rows(h if h.dim() == 2 else h.view(rows, features), rows)
    elif _is_on_gpu(h):
        mean, variance = _by_welford(h if h.dim() == 2 else h.flatten(0, -2))
    else:
        if shift is None:
            shift = _finite(h.mean(tuple(range(h.dim() - 1)), dtype=statistics_type(h.dtype)))
        sums = _shifted_sums(h, shift, keep=(h.dim() - 1,))
        mean, variance = _from_sums(shift, *sums, rows)
    counted = samples if by_sample else rows
    return Moments(mean, variance, rows, counted, counted)


def _is_one_piece(h: Tensor) -> bool:
    """Whether batch norm's kernel is the fastest: rows of memory, on a CPU."""
    return h.is_cpu and type(h) in (Tensor, nn.Parameter) and h.is_contiguous()


def _is_on_gpu(h: Tensor) -> bool:
    """Whether one kernel of Welford's takes the least time."""
    small = h.numel() < 2**31  # batch norm's kernel counts in 32 bits
    return h.is_cuda and small and type(h) in (Tensor, nn.Parameter)


def _by_welford(h: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and variance of the features in dimension 1."""
    dims = [0, *range(2, h.dim())]
    if statistics_type(h.dtype) is h.dtype:
        # Batch norm's kernel has one block a channel: an image's three leave a GPU idle.
        variance, mean = torch.var_mean(h, dims, correction=0)
        return mean, variance
    # `var_mean` would round its results to half precision.
    if not h.is_contiguous():
        h = h.movedim(1, -1).reshape(-1, h.shape[1])  # a view if channels are last
    return torch.batch_norm_update_stats(h, None, None, 0.0)


def _of_rows(h: Tensor, rows: int) -> tuple[Tensor, Tensor]:
    """Mean and variance of the columns of a matrix, by the kernel of batch norm."""
    # Running statistics of momentum 0 are there for their type: it becomes that of the result.
    running = h.new_zeros(h.shape[1], dtype=torch.float32) if h.element_size() < 4 else None
    if rows <= _ROWS:
        return torch.batch_norm_update_stats(h, running, running, 0.0)
    found, seen = None, 0
    for part in torch.split(h, _ROWS):
        seen += len(part)
        moments = torch.batch_norm_update_stats(part, running, running, 0.0)
        found = moments if found is None else _together(found, moments, len(part) / seen)
    assert found is not None
    return found


def _convolution(
    geometry: Geometry, module: nn.Module, h: Tensor, positions: int, shift: Tensor | None
) -> Moments:
    samples, spatial = h.shape[0], list(range(2, h.dim()))
    outputs = samples * positions
    if not geometry.exact:
        rows = h.numel() // h.shape[1]
        if h.shape[1] > 1 and _is_one_piece(last := h.movedim(1, -1)):  # channels_last
            mean, variance = _of_rows(last.view(rows, h.shape[1]), rows)
            return Moments(mean, variance, rows, samples, outputs)
        if _is_on_gpu(h):
            return Moments(*_by_welford(h), rows, samples, outputs)
        if shift is None:
            shift = _finite(h.mean([0, *spatial], dtype=statistics_type(h.dtype)))
        sums = _shifted_sums(h, shift.view(-1, *[1] * len(spatial)), keep=(1,))
        return Moments(*_from_sums(shift, *sums, rows), rows, samples, outputs)
    taps = geometry.taps
    if shift is None:
        channel = _finite(h.mean([0, *spatial], dtype=statistics_type(h.dtype)))
    else:  # the taps of a channel share one map, and so one shift
        channel = shift.view(-1, taps).mean(1)
    spread = channel.view(-1, *[1] * len(spatial))
    first, second = _shifted_sums(h, spread, keep=(1, *spatial))
    padding = (-samples * spread, samples * spread * spread)  # sums of a padded zero
    first, second = (
        _sum_per_tap(module, sums, value)
        for sums, value in zip((first, second), padding, strict=True)
    )
    found = _from_sums(channel.repeat_interleave(taps), first, second, outputs)
    return Moments(*found, outputs, samples, outputs)


def _from_sums(shift: Tensor, first: Tensor, second: Tensor, rows: int) -> tuple[Tensor, Tensor]:
    """Mean and variance from sums of h − c and (h − c)²; the second is overwritten."""
    mean = torch.add(shift, first, alpha=1 / rows)
    variance = second.div_(rows).addcmul_(first, first, value=-1 / rows**2)
    return mean, variance.clamp_(min=0)


def _finite(mean: Tensor) -> Tensor:
    """A shift that one overflowing batch does not spoil."""
    return torch.nan_to_num(mean, nan=0.0, posinf=0.0, neginf=0.0)


def _shifted_sums(h: Tensor, shift: Tensor, *, keep: tuple[int, ...]) -> tuple[Tensor, Tensor]:
    """Sums of h − c and (h − c)² over every dimension but those kept.

    No temporary is larger than a fixed chunk or one sample.

    Args:
        h: Features with the batch in dimension 0, of any floating type.
        shift: c, broadcastable to h, in the type that the sums shall have.
        keep: Dimensions that stay; never 0.
    """
    reduced = [d for d in range(h.dim()) if d not in keep]
    at_once = _CHUNK.get(h.device.type, _CHUNK_ELSEWHERE)
    if h.numel() <= at_once:
        away = torch.sub(h, shift)
        return away.sum(reduced), away.mul_(away).sum(reduced)
    parts = min(len(h), -(-h.numel() // at_once))
    first: Tensor | None = None
    second: Tensor | None = None
    for part in h.tensor_split(parts):
        away = torch.sub(part, shift, out=_buffer(part, shift.dtype))
        sums = away.sum(reduced)
        squares = away.mul_(away).sum(reduced)
        first = sums if first is None else first.add_(sums)
        second = squares if second is None else second.add_(squares)
    assert first is not None
    assert second is not None
    return first, second


def _buffer(part: Tensor, dtype: torch.dtype) -> Tensor | None:
    """Memory to reuse: on a CPU new pages cost more than the arithmetic."""
    if part.device.type != "cpu":
        return None
    buffers: dict[tuple[torch.dtype, torch.Size], Tensor] = _buffers.__dict__.setdefault(
        "by_shape", {}
    )
    key = dtype, part.shape
    buffer = buffers.get(key)
    if buffer is None:
        if len(buffers) > _MOST_BUFFERS:
            buffers.clear()
        buffer = buffers[key] = torch.empty(part.shape, dtype=dtype, device="cpu")
    return buffer


def _sum_per_tap(module: nn.Module, sums: Tensor, padded: Tensor) -> Tensor:
    """Reduce maps ``[C, *positions]`` to ``[C * taps]``: for each tap, the sum over outputs.

    At output u a tap t meets input :math:`u s + t d`, a product of ranges: one dimension after
    the other.

    Args:
        module: The convolution.
        sums: Sums over the samples at each position.
        padded: The sums of a position that is padded with zeros.
    """
    assert isinstance(module, nn.Conv1d | nn.Conv2d | nn.Conv3d)
    padding = _padding(module)
    if module.padding_mode == "zeros":
        sums = F.pad(sums - padded, padding) + padded
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
