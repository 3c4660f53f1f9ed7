r"""Batch norm over the samples of all processes, differentiable to any order.

Symbols: x: this process's share ``[N, C, *]`` of the joint batch, n: values per channel of all
shares, μ, σ²: mean and biased variance of the joint batch, γ, β: ``weight`` and ``bias``.

The processes' statistics are merged by Chan's formula,

.. math:: \mu = \sum_r \frac{n_r}{n} \mu_r, \qquad
          n \sigma^2 = \sum_r n_r \sigma_r^2 + n_r (\mu_r - \mu)^2,

because a difference of sums of squares loses every digit where :math:`\mu \gg \sigma`.
"""

from __future__ import annotations

import copy
import math
from typing import Any, Self

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

from equipoise.layers._statistics import channel_statistics, check_values, cumulative_share


class _SynchronisedBatchNorm(nn.modules.batchnorm._BatchNorm):
    """Base of the 1d, 2d and 3d layers, which check shapes as PyTorch's classes do."""

    def __init__(
        self,
        num_features: int,
        eps: float = 1e-5,
        momentum: float | None = 0.1,
        affine: bool = True,
        track_running_stats: bool = True,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        *,
        process_group: dist.ProcessGroup | None = None,
    ):
        super().__init__(
            num_features, eps, momentum, affine, track_running_stats, device=device, dtype=dtype
        )
        self.process_group = process_group

    def forward(self, x: Tensor) -> Tensor:
        """Normalise by the joint batch in training; evaluation is batch norm's own."""
        if not self.training:
            return super().forward(x)
        # PyTorch does not annotate this method.
        self._check_input_dim(x)  # type: ignore[no-untyped-call]
        if self._alone():
            check_values(x)  # before PyTorch, which counts the batch first
            return super().forward(x)
        y, mean, var, count = synchronised_batch_norm(
            x, self.weight, self.bias, eps=self.eps, process_group=self.process_group
        )
        if self.track_running_stats:
            self._average(mean.detach(), var.detach() * (count / (count - 1)))
        return y

    def _alone(self) -> bool:
        if not (dist.is_available() and dist.is_initialized()):
            return True
        return dist.get_world_size(self.process_group) == 1

    def _average(self, mean: Tensor, unbiased: Tensor) -> None:
        seen = self.num_batches_tracked
        assert seen is not None
        seen.add_(1)
        share = cumulative_share(seen, mean) if self.momentum is None else self.momentum
        for running, new in ((self.running_mean, mean), (self.running_var, unbiased)):
            assert running is not None
            running.copy_(new * share + running * (1 - share))

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        """A copy in the same group, which itself cannot be copied."""
        memo[id(self.process_group)] = self.process_group
        twin = self.__new__(type(self))
        memo[id(self)] = twin
        twin.__dict__.update(copy.deepcopy(self.__dict__, memo))
        return twin


class SynchronisedBatchNorm1d(_SynchronisedBatchNorm, nn.BatchNorm1d):
    r"""Batch norm of a 2D or 3D input by the statistics of all processes' batches together.

    In training, with the mean :math:`\mu` and the biased variance :math:`\sigma^2` of the joint
    batch,

    .. math:: y = \gamma\,\frac{x - \mu}{\sqrt{\sigma^2 + \varepsilon}} + \beta .

    Shares of the batch may differ in size. Replicas whose gradients are averaged, as by
    ``DistributedDataParallel``, with losses that are means over equal shares, train as one
    process does on the joint batch. Running statistics are then the same on every process.

    Unlike ``nn.SyncBatchNorm`` it works on every device and backend, CPU and gloo included, has
    derivatives of any order, and checks its input's dimensions. One small all-gather per
    forward and one all-reduce per backward pass. Evaluation, and training where
    ``torch.distributed`` is not in use or the group has one process, is batch norm to the bit.
    Its state is batch norm's, key by key.

    Args:
        num_features: Channels C.
        eps: Added to every variance, above 0.
        momentum: Weight of the present batch in the running statistics; None for their
            cumulative average.
        affine: Whether to learn γ and β.
        track_running_stats: Without them evaluation uses the statistics of its own batch.
        device: Where parameters and statistics live.
        dtype: Their type.
        process_group: Who shares the batch; all processes by default.

    Shape:
        - Input: ``[N, C]`` or ``[N, C, L]``.
        - Output: the same.

    Raises:
        ValueError: In training, on every process, if the joint batch has one value per channel.

    Examples:
        >>> SynchronisedBatchNorm1d(1)(torch.tensor([[0.0], [2.0]])).round().tolist()
        [[-1.0], [1.0]]

    References:
        Ioffe and Szegedy (2015), Algorithm 1; Chan, Golub and LeVeque (1983), equation 2.1,
        for the merging of moments.
    """


class SynchronisedBatchNorm2d(_SynchronisedBatchNorm, nn.BatchNorm2d):
    r"""Batch norm of images by the statistics of all processes' batches together.

    Formula, arguments, training and evaluation: see :class:`SynchronisedBatchNorm1d`;
    statistics are over samples and positions.

    Shape:
        - Input: ``[N, C, H, W]``.
        - Output: the same.

    References:
        Ioffe and Szegedy (2015), Algorithm 1 and section 3.2.
    """


class SynchronisedBatchNorm3d(_SynchronisedBatchNorm, nn.BatchNorm3d):
    r"""Batch norm of volumes by the statistics of all processes' batches together.

    Formula, arguments, training and evaluation: see :class:`SynchronisedBatchNorm1d`;
    statistics are over samples and positions.

    Shape:
        - Input: ``[N, C, D, H, W]``.
        - Output: the same.

    References:
        Ioffe and Szegedy (2015), Algorithm 1 and section 3.2.
    """


_ONE_VALUE = (
    "Expected more than 1 value per channel when training, got {count:g} in all processes "
    "together: a single value has no variance. Use a larger batch."
)


def synchronised_batch_norm(
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    *,
    eps: float = 1e-5,
    process_group: dist.ProcessGroup | None = None,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Normalise a share ``[N, C, *]`` by the statistics of the joint batch.

    Every process must call it, and later its backward pass, equally often: each is one
    collective operation. N may differ between processes and be 0. The gradient with respect to
    x is that of the sum of all processes' losses; those with respect to γ and β are this
    process's part, which ``DistributedDataParallel`` adds up.

    Returns:
        The output, typed as x; μ, σ² and n, in float32 or better.

    Raises:
        ValueError: On every process, if the joint batch has one value per channel.
    """
    found = _BatchNorm.apply(x, weight, bias, eps, process_group)  # type: ignore[no-untyped-call]  # torch's
    y, mean, var, count = found
    return y, mean, var, count


class _BatchNorm(torch.autograd.Function):
    """One collective operation forward and one backward; saves x and nothing else of its size."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        weight: Tensor | None,
        bias: Tensor | None,
        eps: float,
        group: dist.ProcessGroup | None,
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        mean, var, count = _joint_statistics(x, group)
        scale, shift = (None if p is None else p.to(mean.dtype) for p in (weight, bias))
        y = F.batch_norm(x, mean, var, scale, shift, training=False, eps=eps)
        ctx.save_for_backward(x, weight, mean, var, count)
        ctx.mark_non_differentiable(count)
        ctx.eps, ctx.group = eps, group
        ctx.bias_type = None if bias is None else bias.dtype
        return y, mean, var, count

    @staticmethod
    def backward(
        ctx: Any, grad_y: Tensor, grad_mean: Tensor, grad_var: Tensor, _: Tensor
    ) -> tuple[Tensor | None, Tensor | None, Tensor | None, None, None]:
        # μ and σ² are outputs, so that second derivatives pass through them as well.
        x, weight, mean, var, count = ctx.saved_tensors
        shape, dims = _broadcast(x), [0, *range(2, x.ndim)]
        g = grad_y.to(mean.dtype)
        centred = x.to(mean.dtype) - mean.view(shape)
        deviation = (var + ctx.eps).rsqrt()
        scale = deviation if weight is None else deviation * weight.to(mean.dtype)
        first, second = g.sum(dims), (g * centred).sum(dims)
        grad_x = None
        if ctx.needs_input_grad[0]:
            mine = torch.stack([-scale * first, -scale * deviation.square() * second / 2])
            mine = mine + torch.stack([grad_mean, grad_var])
            of_mean, of_var = (total_over(mine, ctx.group) / count).unbind()
            through = of_mean.view(shape) + 2 * of_var.view(shape) * centred
            grad_x = (g * scale.view(shape) + through).to(x.dtype)
        grad_weight = None if weight is None else (second * deviation).to(weight.dtype)
        grad_bias = None if ctx.bias_type is None else first.to(ctx.bias_type)
        return grad_x, grad_weight, grad_bias, None, None


class _Total(torch.autograd.Function):
    """A sum over processes; its derivative is one again."""

    @staticmethod
    def forward(ctx: Any, values: Tensor, group: dist.ProcessGroup | None) -> Tensor:
        ctx.group = group
        total = values.clone()
        dist.all_reduce(total, group=group)
        return total

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return total_over(grad, ctx.group), None


def total_over(values: Tensor, group: dist.ProcessGroup | None) -> Tensor:
    """Sum over all processes, differentiably."""
    total: Tensor = _Total.apply(values, group)  # type: ignore[no-untyped-call]  # torch's
    return total


def _joint_statistics(x: Tensor, group: dist.ProcessGroup | None) -> tuple[Tensor, Tensor, Tensor]:
    values = math.prod(x.shape[:1] + x.shape[2:])
    if values:
        mean, var = channel_statistics(x)
    else:
        mean, var = torch.zeros(
            2, x.shape[1], dtype=torch.promote_types(x.dtype, torch.float32), device=x.device
        )
    mine = torch.cat([mean, var, mean.new_full((1,), float(values))])
    all_ranks = [torch.empty_like(mine) for _ in range(dist.get_world_size(group))]
    dist.all_gather(all_ranks, mine, group=group)
    channels = len(mean)
    means, variances, counts = torch.stack(all_ranks).tensor_split([channels, 2 * channels], dim=1)
    count = counts.sum()
    # Reading the count waits for the device, so only processes with at most one value do it.
    if values <= 1 and float(count) <= 1:
        raise ValueError(_ONE_VALUE.format(count=float(count)))
    shares = counts / count
    mean = (shares * means).sum(0)
    var = (shares * (variances + (means - mean).square())).sum(0)
    return mean, var, count


def _broadcast(x: Tensor) -> tuple[int, ...]:
    return (1, -1, *(1,) * (x.ndim - 2))
