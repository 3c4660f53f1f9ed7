r"""Noise whose own distribution moves, for experiments on what batch norm is good for.

Symbols: a: activations ``[N, C, *]``, j: channel, i: sample and position, μ_j, σ_j: mean and
scale of a channel's noise in this pass, m_ij, s_ij: shift and factor of one activation.
"""

from __future__ import annotations

import torch
from torch import Tensor

from equipoise.layers.functional.normalisation import like


def activation_noise(
    a: Tensor,
    *,
    mean_limit: float = 0.5,
    scale_limit: float = 1.25,
    mean_spread: float = 0.1,
    scale_spread: float = 0.1,
    generator: torch.Generator | None = None,
) -> Tensor:
    r"""Scale and shift every activation at random, about a random mean and scale per channel.

    .. math:: y_{ij} = s_{ij} a_{ij} + m_{ij}, \quad
        m_{ij} \sim U(\mu_j - r_\mu, \mu_j + r_\mu), \quad
        s_{ij} \sim \mathcal{N}(\sigma_j, r_\sigma^2), \quad
        \mu_j \sim U(-n_\mu, n_\mu), \quad \sigma_j \sim U(1, n_\sigma) .

    All is drawn anew in every call: :math:`\mu_j, \sigma_j` once per channel, :math:`m_{ij},
    s_{ij}` once per sample and position. Draws are in single precision and in the order of the
    indices, so a seed gives the same noise for every type and memory layout.

    Args:
        a: Activations ``[N, C, *]`` of floating type.
        mean_limit: n_μ, at least 0: the largest mean of a channel's noise.
        scale_limit: n_σ, at least 1: the largest scale of a channel.
        mean_spread: r_μ, at least 0: half the width of the shifts about their mean.
        scale_spread: r_σ, at least 0: standard deviation of the factors about their scale.
        generator: Source of the noise, on the activations' device; PyTorch's own if None.

    Returns:
        Noisy activations, shaped, typed and laid out as ``a``.

    Raises:
        ValueError: If a constant is out of its range, or ``a`` has no channels.
        TypeError: If ``a`` is not of floating type.

    Examples:
        Of a constant 0 only the shifts remain, here without a spread:

        >>> y = activation_noise(torch.zeros(3, 2), mean_spread=0.0)
        >>> bool((y == y[0]).all()), bool((y.abs() <= 0.5).all())
        (True, True)

    References:
        [santurkar2018], Algorithm 1, which does not say whether :math:`r_\sigma` is a variance
        or a deviation; here it is a deviation.
    """
    check_noise(mean_limit, scale_limit, mean_spread, scale_spread)
    _check_activations(a)
    mu, sigma = torch.rand(2, a.shape[1], device=a.device, generator=generator)
    m = torch.rand(a.shape, device=a.device, generator=generator)
    s = torch.randn(a.shape, device=a.device, generator=generator)
    per_channel = (-1, *(1,) * (a.ndim - 2))
    mu = (2 * mu - 1) * mean_limit
    sigma = 1 + (scale_limit - 1) * sigma
    m.mul_(2 * mean_spread).add_((mu - mean_spread).reshape(per_channel))
    s.mul_(scale_spread).add_(sigma.reshape(per_channel))
    # Half precision would round scales to steps of 1/128; single precision rounds once, at last.
    wide = torch.promote_types(a.dtype, torch.float32)
    y = torch.addcmul(like(m, a).to(wide), like(s, a).to(wide), a.to(wide))
    return y.to(a.dtype)


def check_noise(
    mean_limit: float, scale_limit: float, mean_spread: float, scale_spread: float
) -> None:
    """Refuse constants that describe no distribution.

    Raises:
        ValueError: Naming the constant, its value and its range.
    """
    given = {
        "mean_limit": (mean_limit, 0),
        "scale_limit": (scale_limit, 1),
        "mean_spread": (mean_spread, 0),
        "scale_spread": (scale_spread, 0),
    }
    for name, (value, least) in given.items():
        if not least <= value < float("inf"):
            raise ValueError(
                f"{name} must be a finite number of at least {least}, which means no noise; got "
                f"{value}."
            )


def _check_activations(a: Tensor) -> None:
    if not a.is_floating_point():
        raise TypeError(f"noise needs activations of floating type; got {a.dtype}.")
    if a.ndim < 2:
        raise ValueError(
            f"expected at least 2D input [N, C, *] (got {a.ndim}D input): noise has a mean and "
            "a scale per channel. Add a dimension for the batch."
        )
