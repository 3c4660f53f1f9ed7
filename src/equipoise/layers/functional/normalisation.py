r"""Batch norm and its relatives for small batches.

Symbols: x: input ``[N, C, *]`` with positions ``*``, μ_B, σ_B²: mean and biased variance of a
batch, μ, σ²: running mean and variance, γ, β: ``weight`` and ``bias``, both ``[C]``.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
import torch.nn.functional as F
from torch import Tensor


def batch_renorm(
    x: Tensor,
    running_mean: Tensor,
    running_var: Tensor,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    *,
    r_max: Tensor | float,
    d_max: Tensor | float,
    momentum: Tensor | float = 0.1,
    eps: float = 1e-5,
) -> Tensor:
    r"""Batch renormalisation in training; updates the running statistics in place.

    .. math:: y = \gamma\Big(\frac{x - \mu_B}{\sigma_B}\, r + d\Big) + \beta, \quad
        r = \operatorname{clip}_{[1/r_{\max}, r_{\max}]} \frac{\sigma_B}{\sigma}, \quad
        d = \operatorname{clip}_{[-d_{\max}, d_{\max}]} \frac{\mu_B - \mu}{\sigma},

    with :math:`\varepsilon` inside both roots. No gradient flows through r and d, and both use
    the statistics from before the update.

    Args:
        x: Input ``[N, C, *]``, with more than one value per channel.
        running_mean: ``[C]``, replaced by :math:`(1 - m)\mu + m\mu_B`.
        running_var: ``[C]``, likewise with the unbiased variance, as ``batch_norm`` does it.
        weight: γ, ``[C]``.
        bias: β, ``[C]``.
        r_max: Largest correction of the scale, at least 1.
        d_max: Largest correction of the mean in standard deviations, at least 0.
        momentum: Weight m of the present batch, in [0, 1].
        eps: Added to every variance, above 0.

    Returns:
        The output, shaped and typed as the input.

    Raises:
        ValueError: If there is one value per channel.

    Examples:
        Without a limit the running statistics normalise, as they will in evaluation:

        >>> x = torch.tensor([[1.0], [3.0]], dtype=torch.float64)
        >>> mean, var = torch.zeros(1).double(), torch.full((1,), 4.0).double()
        >>> y = batch_renorm(x, mean, var, r_max=1e9, d_max=1e9, eps=1e-12)
        >>> [round(value, 9) for value in y.flatten().tolist()]
        [0.5, 1.5]

    References:
        [ioffe2017], Algorithm 1.
    """
    count = check_values(x)
    kind = running_mean.dtype
    with torch.no_grad():
        mu_B, var_B = channel_statistics(x)
        sigma = (_at_least_float32(running_var) + eps).sqrt()
        r_limit, d_limit = (torch.as_tensor(limit).to(mu_B) for limit in (r_max, d_max))
        r = ((var_B + eps).sqrt() / sigma).clamp(1 / r_limit, r_limit).to(kind)
        d = ((mu_B - running_mean) / sigma).clamp(-d_limit, d_limit).to(kind)
        # Biased above, unbiased here: BatchNorm mixes the two, so a drop-in must.
        running_mean.copy_(mu_B * momentum + running_mean * (1 - momentum))
        unbiased = var_B * (count / (count - 1))
        running_var.copy_(unbiased * momentum + running_var * (1 - momentum))
    # γ(r n + d) + β = (γ r) n + (γ d + β): batch_norm's fused kernel does the rest.
    scale = r if weight is None else weight * r
    shift = d if weight is None else weight * d
    if bias is not None:
        shift = shift + bias
    return F.batch_norm(x, None, None, scale, shift, training=True, eps=eps)


def batch_group_norm(
    x: Tensor,
    groups: int,
    virtual_batch_size: int | None = None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    *,
    eps: float = 1e-5,
) -> Tensor:
    r"""Normalise over virtual batches of samples times groups of channels.

    .. math:: y = \gamma\,\frac{x - \mu_{bg}}{\sqrt{\sigma_{bg}^2 + \varepsilon}} + \beta,

    mean and biased variance over the samples of virtual batch b, the channels of group g and
    all positions. Batch norm is ``groups = C`` with one virtual batch, ghost batch norm
    ``groups = C`` with several, group norm is one sample per virtual batch.

    Args:
        x: Input ``[N, C, *]``.
        groups: Groups of channels; must divide C.
        virtual_batch_size: Samples normalised together, None for all. See
            :func:`virtual_batches` for a batch that is no multiple.
        weight: γ, ``[C]``.
        bias: β, ``[C]``.
        eps: Added to every variance.

    Returns:
        The output, shaped and typed as the input.

    Raises:
        ValueError: If a normalised group has a single value.

    Examples:
        >>> x = torch.tensor([[1.0, 3.0], [5.0, 9.0]])
        >>> batch_group_norm(x, groups=1, virtual_batch_size=1).round(decimals=3).tolist()
        [[-1.0, 1.0], [-1.0, 1.0]]
        >>> batch_group_norm(x, groups=2).round(decimals=3).tolist()
        [[-1.0, -1.0], [1.0, 1.0]]

    References:
        [summers2020], section 3.4; [hoffer2017], Algorithm 1.
    """
    values = x.shape[1] // groups * math.prod(x.shape[2:])
    sizes = virtual_batches(x.shape[0], virtual_batch_size, values)
    check_values(x, sizes[-1] * values)
    size = sizes[0]
    whole = sum(s for s in sizes if s == size)
    parts = [_as_group_norm(x[:whole], size, groups, weight, bias, eps)]
    if whole < x.shape[0]:
        parts.append(_as_group_norm(x[whole:], sizes[-1], groups, weight, bias, eps))
    return like(torch.cat(parts) if len(parts) > 1 else parts[0], x)


def _as_group_norm(
    x: Tensor, size: int, groups: int, weight: Tensor | None, bias: Tensor | None, eps: float
) -> Tensor:
    """Samples of a virtual batch become positions: group_norm's fused kernel does the rest."""
    batches = x.reshape(-1, size, *x.shape[1:]).transpose(1, 2)  # [batches, C, size, *]
    y = F.group_norm(batches.flatten(2), groups, weight, bias, eps)
    return y.reshape(batches.shape).transpose(1, 2).flatten(0, 1)


def example_weighted_norm(
    x: Tensor,
    running_mean: Tensor,
    running_var: Tensor,
    groups: int,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    *,
    example_weight: float = 0.0,
    eps: float = 1e-5,
) -> Tensor:
    r"""Inference that also looks at the example at hand.

    With moments of the running statistics over the channels of a group, and of the one example
    over the group's channels and all positions,

    .. math:: \mu = \alpha\,\mathrm{E}_x[x] + (1 - \alpha)\, m_x, \quad
              \sigma^2 = \alpha\,\mathrm{E}_x[x^2] + (1 - \alpha)\, m_{x^2} - \mu^2 .

    Computed as the variance of a mixture, which loses no digits to a difference of squares:
    :math:`\sigma^2 = \alpha s_x^2 + (1-\alpha) s^2 + \alpha(1-\alpha)(\mathrm{E}_x[x] - m_x)^2`.

    Args:
        x: Input ``[N, C, *]``.
        running_mean: ``[C]``.
        running_var: ``[C]``.
        groups: Groups of channels; must divide C.
        weight: γ, ``[C]``.
        bias: β, ``[C]``.
        example_weight: α in [0, 1]. 0 with ``groups = C`` is batch norm's evaluation.
        eps: Added to every variance.

    Returns:
        The output, shaped and typed as the input.

    Examples:
        >>> x, zero, one = torch.tensor([[4.0]]), torch.zeros(1), torch.ones(1)
        >>> example_weighted_norm(x, zero, one, 1, eps=0.0).item()  # (4 - 0) / 1
        4.0
        >>> y = example_weighted_norm(x, zero, one, 1, example_weight=0.5, eps=0.0)
        >>> round(y.item(), 4)  # (4 - 2) / √(½ + ¼·16)
        0.9428

    References:
        [summers2020], section 3.1.
    """
    values = _at_least_float32(x).reshape(len(x), groups, -1, *x.shape[2:])
    means = _at_least_float32(running_mean).reshape(groups, -1)
    between, m = torch.var_mean(means, 1, correction=0)
    s2 = _at_least_float32(running_var).reshape(groups, -1).mean(1) + between
    if example_weight:
        a = example_weight
        own_s2, own_m = torch.var_mean(values, list(range(2, values.ndim)), correction=0)
        s2 = a * own_s2 + (1 - a) * s2 + a * (1 - a) * (own_m - m).square()
        m = a * own_m + (1 - a) * m
    ones = (1,) * (values.ndim - 2)
    m, s2 = m.reshape(-1, groups, *ones), s2.reshape(-1, groups, *ones)
    y = ((values - m) * (s2 + eps).rsqrt()).flatten(1, 2)
    if weight is not None:
        y = y * _at_least_float32(weight).reshape(-1, *ones[1:])
    if bias is not None:
        y = y + _at_least_float32(bias).reshape(-1, *ones[1:])
    return like(y.to(x.dtype), x)


def standardise_weight(weight: Tensor, *, eps: float = 1e-5) -> Tensor:
    r"""Give every filter mean 0 and variance 1.

    .. math:: \hat W_i = \frac{W_i - \mu_i}{\sqrt{\sigma_i^2 + \varepsilon}}, \quad
              \mu_i, \sigma_i^2: \text{ mean and biased variance of filter } i .

    Args:
        weight: ``[out, ...]``; a filter is everything behind the first dimension.
        eps: Added to every variance.

    Returns:
        The standardised weight, shaped and typed as the input.

    Examples:
        >>> standardise_weight(torch.tensor([[1.0, 3.0], [0.0, 8.0]]), eps=0.0).tolist()
        [[-1.0, 1.0], [-1.0, 1.0]]

    References:
        [qiao2019]
    """
    filters = _at_least_float32(weight)
    dims = list(range(1, weight.ndim))
    variance, mean = torch.var_mean(filters, dims, correction=0, keepdim=True)
    return ((filters - mean) * (variance + eps).rsqrt()).to(weight.dtype)


def virtual_batches(samples: int, size: int | None, values: int = 1) -> list[int]:
    """Split a batch into virtual batches; the last one holds the remainder.

    A remainder of a single value has no variance: it joins the virtual batch before it.

    Args:
        samples: Samples in the batch.
        size: Samples in a virtual batch, None for all.
        values: Values that one sample adds to each statistic.

    Examples:
        >>> virtual_batches(10, 4), virtual_batches(9, 4), virtual_batches(9, 4, values=25)
        ([4, 4, 2], [4, 5], [4, 4, 1])
    """
    if size is None or samples <= size:
        return [samples]
    whole, rest = divmod(samples, size)
    sizes = [size] * whole + [rest] * (rest > 0)
    if rest * values == 1:
        sizes[-2:] = [size + rest]
    return sizes


def channel_statistics(x: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and biased variance of every channel, float32 or better, without gradient."""
    kind = torch.promote_types(x.dtype, torch.float32)
    count = math.prod(x.shape[:1] + x.shape[2:])
    mean, var = torch.zeros(2, x.shape[1], dtype=kind, device=x.device)
    if count == 1:
        return mean + x.detach().flatten(), var
    # Full momentum leaves the batch's own statistics in the buffers. The fused kernel takes a
    # third of torch.var_mean's time on [256, 64, 16, 16] and a tenth on [8192, 100] (CPU).
    F.batch_norm(x.detach(), mean, var, training=True, momentum=1.0)
    return mean, var * ((count - 1) / count)


def cumulative(batches: Tensor, statistic: Tensor) -> Tensor:
    """Weight of the latest of ``batches`` in a plain average, without synchronisation."""
    return batches.to(torch.promote_types(statistic.dtype, torch.float32)).reciprocal()


def check_values(x: Tensor, count: int | None = None) -> int:
    """Values per statistic, by default per channel; refuse a single one.

    Raises:
        ValueError: If there is one value: its normalised value is 0 whatever it is.
    """
    if count is None:
        count = math.prod(x.shape[:1] + x.shape[2:])
    if count == 1:
        raise ValueError(
            "Expected more than 1 value per channel when training, got input size "
            f"{tuple(x.shape)}: a single value has no variance. Use a larger batch or more "
            "positions, drop a last batch of one sample, or call eval()."
        )
    return count


def like(y: Tensor, x: Tensor) -> Tensor:
    """Lay ``y`` out in memory as ``x``."""
    layouts = (layout for layout in _channels_last(x) if x.is_contiguous(memory_format=layout))
    return y.contiguous(memory_format=next(layouts, torch.contiguous_format))


def _channels_last(x: Tensor) -> Iterator[torch.memory_format]:
    if x.ndim == 4:
        yield torch.channels_last
    if x.ndim == 5:
        yield torch.channels_last_3d


def _at_least_float32(x: Tensor) -> Tensor:
    """Half precision loses the statistics: float16 overflows at 256²."""
    return x.float() if x.dtype in (torch.float16, torch.bfloat16) else x
