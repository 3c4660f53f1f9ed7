r"""Running means and variances of all layers at once, in flat tensors on one device.

Flat, because a step then costs a fixed number of small operations for any number of layers, and
because all replicas agree by one all-reduce. Nothing here waits for the device: what only the
device knows (whether sums are finite, which layers other replicas used) is decided by masks.

Without the all-reduce, replicas that share gradients but not statistics drift apart silently.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor

from equipoise.preconditioners.bnp.maps import Factors
from equipoise.preconditioners.bnp.moments import Geometry, Moments
from equipoise.preconditioners.bnp.settings import Settings

# T: tracked features of all layers, L: layers


@dataclass(slots=True)
class StepMoments:
    """Moments of one optimizer step over all layers.

    Args:
        moments: Means and variances, ``[2, T]``.
        counts: Rows behind them, samples and output positions, ``[3, L]``.
        all_used: Whether it is known, without asking the device, that every layer has rows.
    """

    moments: Tensor
    counts: Tensor
    all_used: bool


class RunningStatistics:
    """Exponential averages, exact from the first step and at every batch size.

    Args:
        geometries: Shapes of the layers' feature matrices.
        settings: Averaging constants and rules.
        device: Where the layers' weights are.
        dtype: Of the statistics.
    """

    def __init__(
        self,
        geometries: Sequence[Geometry],
        settings: Settings,
        device: torch.device,
        dtype: torch.dtype,
    ) -> None:
        self.geometries = tuple(geometries)
        self.settings = settings
        self.lengths = [g.length for g in geometries]
        self.device, self.dtype = device, dtype
        anchor = torch.empty(0, device=device, dtype=dtype)
        features, layers = sum(self.lengths), len(self.lengths)
        start = torch.stack([anchor.new_zeros(features), anchor.new_ones(features)])
        # 1 − ρᵗ, what the averages have seen. Not 0 at first, so that nothing is divided by 0.
        self.weight = anchor.new_full((features,), torch.finfo(dtype).tiny)
        self.updates = anchor.new_zeros(features)  # steps averaged in
        self.seen = [0] * layers  # steps with rows here
        self.samples = anchor.new_zeros(layers)
        self.positions = anchor.new_zeros(layers)
        self._fan_in = anchor.new_tensor([float(g.fan_in) for g in geometries])
        self.owner = _owners(self.lengths, device)  # [T] which layer a feature belongs to
        self._segment, segments = _segments(self.geometries, device)
        self._no_spread = anchor.new_zeros(segments)
        self._columns = _columns(self.geometries, device)
        self._widths = [g.channels * g.taps for g in geometries]
        # Weight of one update: the decay of one step, or of all the steps since the last one.
        self._fresh = {
            eager: anchor.new_full((), 1 - (settings.rho if eager else settings.decay))
            for eager in (True, False)
        }
        self._one = anchor.new_ones(())
        self._absolute = anchor.new_full((), settings.eps[1])
        self._started = False
        self._counted: tuple[list[tuple[int, int, int]], Tensor] | None = None
        self._centred: tuple[list[bool], Tensor] | None = None
        self._last: tuple[Tensor, Tensor] | None = None
        self._scale: Tensor | None = None  # 1/q² of the layer that a feature belongs to
        self._biases: dict[bool, list[Tensor]] = {}
        self._last_counts: Tensor | None = None
        self.replace(start)

    def by_layer(self, flat: Tensor) -> list[Tensor]:
        """Views of the layers' parts."""
        return list(flat.split_with_sizes(self.lengths))

    def join(self, parts: Sequence[Moments | None]) -> StepMoments:
        """Lay the layers' moments side by side; a layer without any contributes zeros."""
        means, variances, counts = [], [], []
        for i, part in enumerate(parts):
            if part is None:
                means.append(self.mean.new_zeros(self.lengths[i]))
                variances.append(means[-1])
                counts.append((0, 0, 0))
            else:
                means.append(part.mean)
                variances.append(part.variance)
                counts.append((part.rows, part.samples, part.positions))
                self.seen[i] += 1
        moments = torch.cat(means + variances).view(2, -1)
        # Copying numbers to a device waits for it, so they are kept while they do not change.
        if self._counted is None or self._counted[0] != counts:
            flat = torch.tensor(counts, dtype=self.dtype, device="cpu").T.contiguous()
            self._counted = (counts, flat.to(self.device))
        return StepMoments(moments, self._counted[1], None not in parts)

    def update(self, step: StepMoments, *, eager: bool) -> None:
        r"""Average one step's statistics in.

        With a the weight of the past, :math:`\mu \leftarrow \mu + (1 - a) \delta`,
        :math:`\delta = \mu_H - \mu`, and

        .. math:: \sigma^2 \leftarrow a \sigma^2 + (1 - a) (\sigma_H^2 + a \delta^2),

        the variance of the mixture, for the ``"total"`` rule; ``"batch"`` leaves
        :math:`\delta^2` out, except for one row, whose variance it is.

        Args:
            step: Moments of all layers.
            eager: Whether every step updates now, whatever ``update_every`` says.
        """
        single, used = self._count(step.counts)
        mean, variance = step.moments.unbind()
        # 1 where the variance is finite, and so the mean, else 0·∞ = NaN, made 0. As a comparison
        # it would take twice as long, because masks are slow to compute with.
        counted = torch.add(self._one, variance, alpha=0.0).nan_to_num_(0.0)
        if not step.all_used:
            counted.mul_(used)
        self.updates.add_(counted)
        share = counted.mul_(self._fresh[eager])
        self.weight.lerp_(self._one, share)
        if self.settings.bias_correction:
            share.div_(self.weight)
        change = mean - self.mean
        if self.settings.variance == "total":
            variance.addcmul_(change, torch.addcmul(change, change, share, value=-1))
        else:
            variance.copy_(torch.where(single, change.square(), variance))
        # Where the share is 0, any finite number will do.
        step.moments.nan_to_num_(0.0)
        # A new tensor: a step under way may still hold factors of the old averages.
        self._take(torch.lerp(self._averages, step.moments, share))
        self._started = self._started or step.all_used

    def replace(self, averages: Tensor) -> None:
        """Replace means and variances, ``[2, T]``, and drop what was derived from older ones."""
        self._last = self._scale = None
        self._started = False
        self._take(averages)

    def _take(self, averages: Tensor) -> None:
        self._averages = averages
        self.mean, self.variance = averages.unbind()
        self.means = self.by_layer(self.mean)

    def damped(self, centred: Sequence[bool]) -> tuple[Tensor, Tensor]:
        r"""Means to subtract and damped variances; without a trained bias 0 and second moments.

        .. math:: \tilde\sigma^2 = \sigma^2 + \varepsilon_1 \max \sigma^2 + \varepsilon_2
        """
        mean, spread = self.mean, self.variance
        if not all(centred):
            mask = self._mask(list(centred))
            spread = torch.where(mask, spread, spread + mean * mean)
            mean = torch.where(mask, mean, 0.0)
        relative, absolute = self.settings.eps
        if not relative:
            return mean, spread + absolute
        largest = torch.scatter_reduce(self._no_spread, 0, self._segment, spread, "amax")
        damping = torch.add(self._absolute, largest, alpha=relative)
        return mean, spread + damping.index_select(0, self._segment)

    def row_scale(self) -> Tensor:
        """q² of every layer; 1 as long as no rows have been seen."""
        scale = self.settings.row_scale
        samples = self.samples.clamp(min=1)
        if scale == "paper":
            q2 = torch.maximum(self._fan_in / samples, self.positions.sqrt())
        elif callable(scale):
            q2 = scale(self._fan_in, samples, self.positions)
        else:
            q2 = torch.full_like(self._fan_in, float(scale))
        q2 = torch.as_tensor(q2, dtype=self.dtype, device=self.device)
        return torch.where(self.samples > 0, q2, 1.0)

    def factors(self, centred: Sequence[bool], *, squared: bool) -> list[Factors]:
        """What each layer's maps multiply by; nothing changes before the first update."""
        mean, spread = self.damped(centred)
        if self._scale is None:
            inverse = self.row_scale().reciprocal()
            self._scale = inverse.index_select(0, self.owner)
            self._biases = {True: list(inverse.unbind()), False: list(inverse.sqrt().unbind())}
        if not self._started and self.settings.bias_correction:
            spread = torch.where(self.updates > 0, spread, 1.0)
        columns = self._scale / spread
        if 0 in self.settings.eps:
            # A constant feature's gradient is zero after centring, and has to stay zero.
            columns = torch.where(spread > 0, columns, 0.0)
        if not squared:
            columns = columns.sqrt_()
        if self._columns is not None:
            mean, columns = mean[self._columns], columns[self._columns]
            means = list(mean.split_with_sizes(self._widths))
        else:
            means = self.means if mean is self.mean else self.by_layer(mean)
        parts = zip(
            self.geometries,
            means,
            columns.split_with_sizes(self._widths),
            self._biases[squared],
            centred,
            strict=True,
        )
        return [Factors(m if c else None, d, b, g.groups) for g, m, d, b, c in parts]

    def _count(self, counts: Tensor) -> tuple[Tensor, Tensor]:
        """Whether there is a single row, and whether there are any, by feature."""
        # The same tensor as last time, unless batch sizes change or replicas are added up.
        if self._last is not None and counts is self._last_counts:
            return self._last
        self._last_counts = counts
        rows, samples, positions = counts
        used = rows > 0
        self.samples = torch.where(used, samples, self.samples)
        self.positions = torch.where(used, positions / samples.clamp(min=1), self.positions)
        self._scale = None
        self._last = (
            (rows == 1).index_select(0, self.owner),
            used.to(self.dtype).index_select(0, self.owner),
        )
        return self._last

    def _mask(self, centred: list[bool]) -> Tensor:
        if self._centred is None or self._centred[0] != centred:
            self._centred = (centred, torch.tensor(centred, device=self.device)[self.owner])
        return self._centred[1]


def replicas(group: dist.ProcessGroup | None) -> int:
    """Processes that share gradients; 1 where nothing is distributed."""
    if not (dist.is_available() and dist.is_initialized()):
        return 1
    return dist.get_world_size(group)


def reduce_over(
    step: StepMoments, owner: Tensor, group: dist.ProcessGroup | None, shift: Tensor | None
) -> StepMoments:
    """Pool the rows of all replicas, by one flat all-reduce of sums.

    Args:
        step: This replica's.
        owner: Layer of each feature.
        group: The replicas.
        shift: Near the means, the same in all replicas, about which to add up. Without one, as
            before the first update, a second all-reduce finds the mean of the replicas' means.
    """
    mean, variance = step.moments
    rows = step.counts[0][owner]
    if shift is None:
        finite = torch.nan_to_num(mean, nan=0.0, posinf=0.0, neginf=0.0)
        shift = _mean_shift(finite, (rows > 0).to(mean), group)
    away = mean - shift
    first, second = rows * away, rows * (variance + away * away)
    flat = torch.cat([first, second, step.counts.flatten()])
    dist.all_reduce(flat, group=group)
    sums, counts = flat.tensor_split([2 * len(owner)])
    counts = counts.view_as(step.counts)
    first, second = sums.view(2, -1) / counts[0].clamp(min=1)[owner]
    moments = torch.stack([shift + first, (second - first * first).clamp(min=0)])
    return StepMoments(moments, counts, step.all_used)


def _mean_shift(shift: Tensor, used: Tensor, group: dist.ProcessGroup | None) -> Tensor:
    """Mean over the replicas that have used a feature."""
    both = torch.cat([shift * used, used])
    dist.all_reduce(both, group=group)
    total, users = both.chunk(2)
    return total / users.clamp(min=1)


def _owners(lengths: Sequence[int], device: torch.device) -> Tensor:
    repeats = torch.tensor(lengths, device="cpu")
    return torch.repeat_interleave(repeats).to(device)


def _segments(geometries: Sequence[Geometry], device: torch.device) -> tuple[Tensor, int]:
    """Which group of which layer a feature belongs to, and the number of groups."""
    lengths = [g.length // g.groups for g in geometries for _ in range(g.groups)]
    return _owners(lengths, device), len(lengths)


def _columns(geometries: Sequence[Geometry], device: torch.device) -> Tensor | None:
    """Which feature each column of the weights multiplies; None if they are the same."""
    repeats = [1 if g.exact else g.taps for g in geometries for _ in range(g.length)]
    if max(repeats) == 1:
        return None
    return torch.repeat_interleave(torch.tensor(repeats, device="cpu")).to(device)
