r"""Batch norm over the samples of all processes, differentiable to any order.

Symbols: x: this process's share ``[N, C, *]`` of the joint batch, n: values per channel of all
shares, μ, σ²: mean and biased variance of the joint batch, γ, β: ``weight`` and ``bias``.

The processes' statistics are merged by Chan's formula,

.. math:: \mu = \sum_r \frac{n_r}{n} \mu_r, \qquad
          n \sigma^2 = \sum_r n_r \sigma_r^2 + n_r (\mu_r - \mu)^2,

and not from sums of squares, whose difference loses every digit where :math:`\mu \gg \sigma`.
"""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor

from equipoise.layers.functional.normalisation import channel_statistics

_RAISED = (
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
    r"""Normalise a share by the statistics of the joint batch.

    .. math:: y = \gamma\,\frac{x - \mu}{\sqrt{\sigma^2 + \varepsilon}} + \beta

    Every process must call it, and later its backward pass, equally often: each is one
    collective operation. The gradient with respect to x is that of the sum of all processes'
    losses; those with respect to γ and β are this process's part, for whoever averages
    gradients to add up.

    Args:
        x: This process's share, ``[N, C, *]``; N may differ between processes and be 0.
        weight: γ, ``[C]``.
        bias: β, ``[C]``.
        eps: Added to every variance.
        process_group: Who shares the batch; all processes by default.

    Returns:
        The output, typed as x; μ, σ² and n, in float32 or better.

    Raises:
        ValueError: On every process, if the joint batch has one value per channel.

    References:
        Chan, Golub and LeVeque (1983), equation 2.1.
    """
    found = _BatchNorm.apply(x, weight, bias, eps, process_group)  # type: ignore[no-untyped-call]  # torch's
    y, mean, var, count = found
    return y, mean, var, count


class _BatchNorm(torch.autograd.Function):
    """One collective forward and one backward; keeps x, and nothing else of its size."""

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
        # μ and σ² are outputs, so a second derivative finds its way through them as well.
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
    """Add up what all processes have, differentiably."""
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
    # Only here may the joint batch be that small; elsewhere nobody waits for the device.
    if values <= 1 and float(count) <= 1:
        raise ValueError(_RAISED.format(count=float(count)))
    shares = counts / count
    mean = (shares * means).sum(0)
    var = (shares * (variances + (means - mean).square())).sum(0)
    return mean, var, count


def _broadcast(x: Tensor) -> tuple[int, ...]:
    return (1, -1, *(1,) * (x.ndim - 2))
