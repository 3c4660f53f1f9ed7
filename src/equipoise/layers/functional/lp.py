r"""Normalisation by the average ℓp size of a channel instead of its standard deviation.

Symbols: x: input ``[N, C, *]`` with positions ``*``, m: values per channel, μ: mean of a channel,
d_p: its average ℓp size, γ, β: ``weight`` and ``bias``, both ``[C]``.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from equipoise.layers.functional.normalisation import like
from equipoise.numerics.precision import at_least_float32


def lp_statistics(x: Tensor, p: float, *, centered: bool = False) -> tuple[Tensor, Tensor]:
    r"""Mean and average ℓp size of every channel.

    .. math:: \mu = \frac1m \sum_i x_i, \quad
        d_p = \Big(\frac1m \sum_i |x_i|^p\Big)^{1/p}, \quad d_\infty = \max_i |x_i| ,

    over samples and positions; with ``centered``, :math:`d_p` of :math:`x - \mu`. Both carry
    gradients; that of :math:`d_p` is 0 in a channel of zeros, and :math:`d_\infty` shares it
    equally between values of the same size.

    Args:
        x: Input ``[N, C, *]``.
        p: At least 1; ``math.inf`` for the largest value.
        centered: Whether to take the size after subtracting the mean.

    Returns:
        Mean and size, each ``[C]``, float32 or better.

    Raises:
        ValueError: If ``p`` is below 1.
        TypeError: If ``x`` is not of floating type.

    Examples:
        >>> x = torch.tensor([[3.0], [-1.0]])
        >>> [[round(v.item(), 4) for v in lp_statistics(x, p)] for p in (1, 2, math.inf)]
        [[1.0, 2.0], [1.0, 2.2361], [1.0, 3.0]]

    References:
        [santurkar2018], section 3.3.
    """
    check_order(p)
    x = at_least_float32(x)
    dims = [0, *range(2, x.ndim)]
    mean = x.mean(dims)
    if centered:
        x = x - mean.reshape(-1, *(1,) * (x.ndim - 2))
    return mean, _average_size(x, p, dims)


def lp_norm(
    x: Tensor,
    mean: Tensor,
    size: Tensor,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    *,
    eps: float = 1e-5,
) -> Tensor:
    r"""Subtract a mean and divide by a size, channel by channel.

    .. math:: y = \gamma\,\frac{x - \mu}{d + \varepsilon} + \beta .

    Args:
        x: Input ``[N, C, *]``.
        mean: μ, ``[C]``.
        size: d, ``[C]``, not negative.
        weight: γ, ``[C]``.
        bias: β, ``[C]``.
        eps: Added to every size, not under a root.

    Returns:
        The output, shaped, typed and laid out as the input.

    Examples:
        >>> x = torch.tensor([[3.0], [-1.0]])
        >>> lp_norm(x, *lp_statistics(x, 1), eps=0.0).flatten().tolist()
        [1.0, -1.0]

    References:
        [santurkar2018], section 3.3.
    """
    per_channel = (-1, *(1,) * (x.ndim - 2))
    scale = (at_least_float32(size) + eps).reciprocal()
    if weight is not None:
        scale = scale * at_least_float32(weight)
    y = at_least_float32(x) - at_least_float32(mean).reshape(per_channel)
    y = y * scale.reshape(per_channel)
    if bias is not None:
        y = y + at_least_float32(bias).reshape(per_channel)
    return like(y.to(x.dtype), x)


def check_order(p: float) -> None:
    """Refuse orders that give no norm.

    Raises:
        ValueError: If ``p`` is below 1 or not a number.
    """
    if not isinstance(p, int | float) or not p >= 1:
        raise ValueError(f"p must be a number of at least 1, and may be math.inf; got {p!r}.")


def _average_size(x: Tensor, p: float, dims: list[int]) -> Tensor:
    # Twice as fast as vector_norm, forwards and backwards together, on [128, 64, 16, 16] (CPU).
    if p == math.inf:
        return x.abs().amax(dims)
    if p == 1:
        return x.abs().mean(dims)
    # The gradient of a plain root is not a number in a channel of zeros.
    size: Tensor = torch.linalg.vector_norm(x, p, dim=dims)
    return size / math.pow(math.prod([x.shape[d] for d in dims]), 1 / p)
