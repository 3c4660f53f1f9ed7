r"""Batch renormalisation: batch norm whose training output agrees with its evaluation.

Symbols: μ_B, σ_B²: mean and biased variance of the batch, μ, σ²: running mean and variance, r, d:
corrections of scale and mean, γ, β: ``weight`` and ``bias``.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from equipoise.layers._statistics import (
    channel_statistics,
    check_values,
    cumulative_share,
    refuse_empty,
)
from equipoise.numerics.precision import at_least_float32


@dataclass(frozen=True, slots=True)
class RenormSchedule:
    r"""Limits r_max and d_max as functions of the number of batches seen.

    Plain batch norm (1 and 0) for ``warmup`` batches, then each limit grows linearly and
    reaches its final value at ``r_steps`` and ``d_steps``. The defaults are the paper's, for
    ImageNet; scale them down for shorter training, see :meth:`scaled`.

    Attributes:
        warmup: Batches with ``r_max = 1``, ``d_max = 0``.
        r_max: Final limit of the scale's correction, at least 1; may be infinite.
        r_steps: Batches after which ``r_max`` is final, at least ``warmup``.
        d_max: Final limit of the mean's correction, at least 0; may be infinite.
        d_steps: Batches after which ``d_max`` is final, at least ``warmup``.

    Raises:
        ValueError: If a limit or a number of steps is out of its range.

    Examples:
        >>> limits = RenormSchedule().limits(torch.tensor([5000, 15000, 25000, 40000]))
        >>> [[round(value, 3) for value in limit.tolist()] for limit in limits]
        [[1.0, 1.571, 2.143, 3.0], [0.0, 2.5, 5.0, 5.0]]

    References:
        [ioffe2017], section 4 (experiments).
    """

    warmup: int = 5_000
    r_max: float = 3.0
    r_steps: int = 40_000
    d_max: float = 5.0
    d_steps: int = 25_000

    def __post_init__(self) -> None:
        if not (self.r_max >= 1 and self.d_max >= 0):
            raise ValueError(
                f"r_max must be at least 1 and d_max at least 0; got r_max={self.r_max}, "
                f"d_max={self.d_max}. r_max=1 with d_max=0 is batch norm."
            )
        if not 0 <= self.warmup <= min(self.r_steps, self.d_steps):
            raise ValueError(
                "need 0 <= warmup <= r_steps and warmup <= d_steps; got "
                f"warmup={self.warmup}, r_steps={self.r_steps}, d_steps={self.d_steps}. "
                "RenormSchedule.constant(r_max, d_max) has no schedule."
            )

    @classmethod
    def constant(cls, r_max: float = 3.0, d_max: float = 5.0) -> RenormSchedule:
        """The same limits from the first batch on."""
        return cls(warmup=0, r_max=r_max, r_steps=0, d_max=d_max, d_steps=0)

    def scaled(self, factor: float) -> RenormSchedule:
        """The same limits, with all numbers of batches multiplied by ``factor``.

        Examples:
            >>> RenormSchedule().scaled(0.01)
            RenormSchedule(warmup=50, r_max=3.0, r_steps=400, d_max=5.0, d_steps=250)
        """
        warmup, r_steps, d_steps = (
            round(steps * factor) for steps in (self.warmup, self.r_steps, self.d_steps)
        )
        return RenormSchedule(warmup, self.r_max, r_steps, self.d_max, d_steps)

    def limits(self, step: Tensor, dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor]:
        """``r_max`` and ``d_max`` after ``step`` batches, computed on its device."""
        return (
            self._ramp(step, dtype, 1.0, self.r_max, self.r_steps),
            self._ramp(step, dtype, 0.0, self.d_max, self.d_steps),
        )

    def _ramp(
        self, step: Tensor, dtype: torch.dtype, start: float, end: float, steps: int
    ) -> Tensor:
        limit = torch.full_like(step, start, dtype=dtype)
        if steps > self.warmup and end < math.inf:
            share = (step.to(dtype) - self.warmup) / (steps - self.warmup)
            limit = start + (end - start) * share.clamp(min=0)
        return torch.where(step >= steps, end, limit)


class _BatchRenorm(nn.modules.batchnorm._BatchNorm):
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
        schedule: RenormSchedule | None = None,
    ):
        super().__init__(
            num_features, eps, momentum, affine, track_running_stats, device=device, dtype=dtype
        )
        self.schedule = RenormSchedule() if schedule is None else schedule

    def forward(self, x: Tensor) -> Tensor:
        """Renormalise in training; evaluation is batch norm's own."""
        if not (self.training and self.track_running_stats):
            return super().forward(x)
        # PyTorch does not annotate this method, here and below.
        self._check_input_dim(x)  # type: ignore[no-untyped-call]
        refuse_empty(type(self).__name__, x)
        count = check_values(x)
        mean, var, seen = self.running_mean, self.running_var, self.num_batches_tracked
        assert mean is not None
        assert var is not None
        assert seen is not None
        r_max, d_max = self.schedule.limits(seen, torch.promote_types(mean.dtype, torch.float32))
        seen.add_(1)
        share = cumulative_share(seen, mean) if self.momentum is None else self.momentum
        with torch.no_grad():
            mu_B, var_B = channel_statistics(x)
            sigma = (at_least_float32(var) + self.eps).sqrt()
            r_max, d_max = r_max.to(mu_B), d_max.to(mu_B)
            r = ((var_B + self.eps).sqrt() / sigma).clamp(1 / r_max, r_max).to(mean.dtype)
            d = ((mu_B - mean) / sigma).clamp(-d_max, d_max).to(mean.dtype)
            # Biased above, unbiased here: BatchNorm mixes the two, so a drop-in must.
            mean.copy_(mu_B * share + mean * (1 - share))
            var.copy_(var_B * (count / (count - 1)) * share + var * (1 - share))
        # γ(r n + d) + β = (γ r) n + (γ d + β): batch_norm's fused kernel does the rest.
        scale = r if self.weight is None else self.weight * r
        shift = d if self.weight is None else self.weight * d
        if self.bias is not None:
            shift = shift + self.bias
        return F.batch_norm(x, None, None, scale, shift, training=True, eps=self.eps)

    def extra_repr(self) -> str:
        """PyTorch's line, and the schedule."""
        return f"{super().extra_repr()}, schedule={self.schedule}"  # type: ignore[no-untyped-call]


class BatchRenorm1d(_BatchRenorm, nn.BatchNorm1d):
    r"""Batch renormalisation of a 2D or 3D input; a drop-in for ``nn.BatchNorm1d``.

    In training,

    .. math:: y = \gamma\Big(\frac{x - \mu_B}{\sigma_B}\, r + d\Big) + \beta, \quad
        r = \operatorname{clip}_{[1/r_{\max}, r_{\max}]} \frac{\sigma_B}{\sigma}, \quad
        d = \operatorname{clip}_{[-d_{\max}, d_{\max}]} \frac{\mu_B - \mu}{\sigma},

    with the batch's statistics :math:`\mu_B, \sigma_B`, the running ones :math:`\mu, \sigma`
    from before the update, and no gradient through r and d. Where nothing is clipped this is
    :math:`\gamma (x - \mu) / \sigma + \beta`, which is also what evaluation computes; with
    ``r_max = 1`` and ``d_max = 0`` it is batch norm.

    The state is batch norm's, key by key, so checkpoints go both ways; ``schedule`` is read at
    ``num_batches_tracked``, and a training that is resumed continues it. The paper averages
    standard deviations, with momentum 0.01; here unbiased variances are averaged, as batch norm
    does, because the deviation of a small batch is too small on average: with two samples 0.56
    of the truth, which evaluation would divide by.

    Args:
        num_features: Channels C.
        eps: Added to every variance, above 0.
        momentum: Weight of the present batch in the running statistics; None for their
            cumulative average.
        affine: Whether to learn γ and β.
        track_running_stats: Without them there is nothing to renormalise to: the layer is
            then ``nn.BatchNorm1d`` without them.
        device: Where parameters and statistics live.
        dtype: Their type.
        schedule: Limits r_max and d_max over the batches seen, by default the paper's. May be
            replaced at any time by setting the attribute.

    Shape:
        - Input: ``[N, C]`` or ``[N, C, L]``.
        - Output: the same.

    Raises:
        ValueError: In training with one value per channel, as batch size 1 without positions:
            x equals its batch's mean, so y would not depend on x other than through d, through
            which no gradient flows.

    Note:
        In training the output depends on the running statistics, hence on the order of forward
        passes. Activation checkpointing repeats a forward pass after the update and so
        differentiates a slightly different function.

    Examples:
        >>> x = torch.tensor([[0.0], [2.0]])
        >>> BatchRenorm1d(1, schedule=RenormSchedule.constant(1.0, 0.0))(x).round().tolist()
        [[-1.0], [1.0]]
        >>> layer = BatchRenorm1d(1, schedule=RenormSchedule.constant(10.0, 10.0))
        >>> layer(x).round().tolist()  # by the running mean 0 and variance 1
        [[0.0], [2.0]]

    References:
        [ioffe2017], Algorithm 1.
    """


class BatchRenorm2d(_BatchRenorm, nn.BatchNorm2d):
    r"""Batch renormalisation of images; a drop-in for ``nn.BatchNorm2d``.

    Formula, arguments, training and evaluation: see :class:`BatchRenorm1d`; statistics are
    over samples and positions.

    Shape:
        - Input: ``[N, C, H, W]``.
        - Output: the same.

    References:
        [ioffe2017], Algorithm 1 and section 3.
    """


class BatchRenorm3d(_BatchRenorm, nn.BatchNorm3d):
    r"""Batch renormalisation of volumes; a drop-in for ``nn.BatchNorm3d``.

    Formula, arguments, training and evaluation: see :class:`BatchRenorm1d`; statistics are
    over samples and positions.

    Shape:
        - Input: ``[N, C, D, H, W]``.
        - Output: the same.

    References:
        [ioffe2017], Algorithm 1 and section 3.
    """
