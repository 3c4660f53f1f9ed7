r"""Noisy batch norm: batch norm whose outputs' distribution is kept unstable on purpose.

Symbols: a: activations ``[N, C, *]``, j: channel, i: sample and position, μ_j, σ_j: mean and
scale of a channel's noise in this pass, m_ij, s_ij: shift and factor of one activation.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from equipoise.layers._statistics import check_values, laid_out_like, refuse_empty
from equipoise.numerics.checks import check_within


class _Noisy(nn.Module):
    """The noise and its constants, which the layers of this file share."""

    mean_limit: float
    scale_limit: float
    mean_spread: float
    scale_spread: float
    generator: torch.Generator | None

    def _set_noise(
        self,
        mean_limit: float,
        scale_limit: float,
        mean_spread: float,
        scale_spread: float,
        generator: torch.Generator | None,
    ) -> None:
        given = {
            "mean_limit": (mean_limit, 0),
            "scale_limit": (scale_limit, 1),
            "mean_spread": (mean_spread, 0),
            "scale_spread": (scale_spread, 0),
        }
        for name, (value, least) in given.items():
            check_within(name, value, f"[{least}, inf)", f"{least} means no noise.")
        self.mean_limit = mean_limit
        self.scale_limit = scale_limit
        self.mean_spread = mean_spread
        self.scale_spread = scale_spread
        self.generator = generator

    def _add_noise(self, a: Tensor) -> Tensor:
        """Scale and shift every activation at random; typed and laid out as ``a``.

        Draws are in single precision and in the order of the indices, so a seed gives the same
        noise for every type and memory layout.
        """
        _check_activations(a)
        # The compiler draws tensors of dynamic shapes only where no generator is named.
        source: dict[str, Any] = {} if self.generator is None else {"generator": self.generator}
        mu, sigma = torch.rand(2, a.shape[1], device=a.device, **source)
        m = torch.rand(a.shape, device=a.device, **source)
        s = torch.randn(a.shape, device=a.device, **source)
        per_channel = (-1, *(1,) * (a.ndim - 2))
        mu = (2 * mu - 1) * self.mean_limit
        sigma = 1 + (self.scale_limit - 1) * sigma
        m.mul_(2 * self.mean_spread).add_((mu - self.mean_spread).reshape(per_channel))
        s.mul_(self.scale_spread).add_(sigma.reshape(per_channel))
        # Half precision would round scales to steps of 1/128; here only the result is rounded.
        wide = torch.promote_types(a.dtype, torch.float32)
        y = torch.addcmul(laid_out_like(m, a).to(wide), laid_out_like(s, a).to(wide), a.to(wide))
        return y.to(a.dtype)

    def _noise_repr(self) -> str:
        return (
            f"mean_limit={self.mean_limit}, scale_limit={self.scale_limit}, "
            f"mean_spread={self.mean_spread}, scale_spread={self.scale_spread}"
        )


def _check_activations(a: Tensor) -> None:
    if not a.is_floating_point():
        raise TypeError(f"noise needs activations of floating type; got {a.dtype}.")
    if a.ndim < 2:
        raise ValueError(
            f"expected at least 2D input [N, C, *] (got {a.ndim}D input): noise has a mean and "
            "a scale per channel. Add a dimension for the batch."
        )


class ActivationNoise(_Noisy):
    r"""The noise of :class:`NoisyBatchNorm1d` by itself, for networks without batch norm.

    In training :math:`y_{ij} = s_{ij} a_{ij} + m_{ij}`, with the distributions given there; in
    evaluation the identity.

    Args:
        mean_limit: :math:`n_\mu`, at least 0.
        scale_limit: :math:`n_\sigma`, at least 1.
        mean_spread: :math:`r_\mu`, at least 0.
        scale_spread: :math:`r_\sigma`, at least 0; a standard deviation.
        generator: Source of the noise, on the input's device; by default PyTorch's own, as for
            dropout.

    Shape:
        - Input: ``[N, C, *]``.
        - Output: the same.

    Raises:
        ValueError: If a constant is out of its range, or in training for an input ``[C]``.

    Examples:
        >>> noise, x = ActivationNoise(), torch.ones(8, 3)
        >>> bool((noise(x) == x).any()), bool((noise.eval()(x) == x).all())
        (False, True)

    References:
        [santurkar2018], Figures 2 and 7: a network without batch norm does not train with it.
    """

    def __init__(
        self,
        *,
        mean_limit: float = 0.5,
        scale_limit: float = 1.25,
        mean_spread: float = 0.1,
        scale_spread: float = 0.1,
        generator: torch.Generator | None = None,
    ):
        super().__init__()
        self._set_noise(mean_limit, scale_limit, mean_spread, scale_spread, generator)

    def forward(self, x: Tensor) -> Tensor:
        """Add noise in training only."""
        return self._add_noise(x) if self.training else x

    def extra_repr(self) -> str:
        """The constants of the noise."""
        return self._noise_repr()


class _NoisyBatchNorm(_Noisy, nn.modules.batchnorm._BatchNorm):
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
        mean_limit: float = 0.5,
        scale_limit: float = 1.25,
        mean_spread: float = 0.1,
        scale_spread: float = 0.1,
        generator: torch.Generator | None = None,
    ):
        super().__init__(
            num_features, eps, momentum, affine, track_running_stats, device=device, dtype=dtype
        )
        self._set_noise(mean_limit, scale_limit, mean_spread, scale_spread, generator)

    def forward(self, x: Tensor) -> Tensor:
        """Normalise, and in training add noise."""
        if not self.training:
            return super().forward(x)
        # PyTorch does not annotate this method, here and below. It checks the number of values
        # only after it has counted the batch.
        self._check_input_dim(x)  # type: ignore[no-untyped-call]
        refuse_empty(type(self).__name__, x)
        check_values(x)
        return self._add_noise(super().forward(x))

    def extra_repr(self) -> str:
        """PyTorch's line, and the constants of the noise."""
        torchs: str = super().extra_repr()  # type: ignore[no-untyped-call]
        return f"{torchs}, {self._noise_repr()}"


class NoisyBatchNorm1d(_NoisyBatchNorm, nn.BatchNorm1d):
    r"""Batch norm of a 2D or 3D input, followed in training by noise that never settles.

    For :math:`a = \gamma\,\frac{x - \mu_B}{\sigma_B} + \beta`, batch norm's output, the layer
    gives

    .. math:: y_{ij} = s_{ij} a_{ij} + m_{ij}, \quad
        m_{ij} \sim U(\mu_j - r_\mu, \mu_j + r_\mu), \quad
        s_{ij} \sim \mathcal{N}(\sigma_j, r_\sigma^2), \quad
        \mu_j \sim U(-n_\mu, n_\mu), \quad \sigma_j \sim U(1, n_\sigma)

    for channel j and sample or position i, all drawn anew in every pass. For
    :math:`\gamma = 1, \beta = 0` and a large batch the batch's mean then varies between passes
    with variance :math:`n_\mu^2 / 3 = \tfrac1{12}`, and its variance is on average
    :math:`\tfrac13 (1 + n_\sigma + n_\sigma^2) + r_\sigma^2 + \tfrac13 r_\mu^2 = 1.2842`.

    Networks train with it almost as fast as with batch norm, so a stable distribution of layer
    inputs is not what makes batch norm work. Running statistics are those of x, untouched by the
    noise, and evaluation is batch norm's, as is the state.

    Args:
        num_features: Channels C.
        eps: Added to every variance, above 0.
        momentum: Weight of the present batch in the running statistics; None for their
            cumulative average.
        affine: Whether to learn γ and β.
        track_running_stats: Without them evaluation uses the statistics of its batch.
        device: Where parameters and statistics live.
        dtype: Their type.
        mean_limit: :math:`n_\mu`, at least 0.
        scale_limit: :math:`n_\sigma`, at least 1.
        mean_spread: :math:`r_\mu`, at least 0.
        scale_spread: :math:`r_\sigma`, at least 0; a standard deviation.
        generator: Source of the noise, on the input's device; by default PyTorch's own, as for
            dropout.

    Shape:
        - Input: ``[N, C]`` or ``[N, C, L]``.
        - Output: the same.

    Raises:
        ValueError: If a constant is out of its range, or in training with one value per
            channel or none.

    Note:
        A ``generator`` of its own is copied and pickled with the layer, but is not part of its
        ``state_dict``, is not rewound by tools that replay PyTorch's random state, and splits
        the graph of ``torch.compile``. ``nn.SyncBatchNorm.convert_sync_batchnorm`` takes the
        layer for a batch norm and would remove the noise.

    Examples:
        >>> layer, x = NoisyBatchNorm1d(3), torch.randn(8, 3)
        >>> bool((layer(x) == layer(x)).any())  # no two passes agree
        False
        >>> quiet = {"mean_limit": 0, "scale_limit": 1, "mean_spread": 0, "scale_spread": 0}
        >>> torch.equal(NoisyBatchNorm1d(3, **quiet)(x), nn.BatchNorm1d(3)(x))
        True

    References:
        [santurkar2018], section 2.1 and Algorithm 1, which does not say whether
        :math:`r_\sigma` is a variance or a deviation; here it is a deviation.
    """


class NoisyBatchNorm2d(_NoisyBatchNorm, nn.BatchNorm2d):
    r"""Noisy batch norm of images.

    Formula, arguments, training and evaluation: see :class:`NoisyBatchNorm1d`; statistics are
    over samples and positions, and every position has noise of its own.

    Shape:
        - Input: ``[N, C, H, W]``.
        - Output: the same.

    References:
        [santurkar2018], section 2.1 and Algorithm 1.
    """


class NoisyBatchNorm3d(_NoisyBatchNorm, nn.BatchNorm3d):
    r"""Noisy batch norm of volumes.

    Formula, arguments, training and evaluation: see :class:`NoisyBatchNorm1d`; statistics are
    over samples and positions, and every position has noise of its own.

    Shape:
        - Input: ``[N, C, D, H, W]``.
        - Output: the same.

    References:
        [santurkar2018], section 2.1 and Algorithm 1.
    """
