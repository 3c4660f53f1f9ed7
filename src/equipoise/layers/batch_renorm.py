"""Batch renormalisation: batch norm whose training output agrees with its evaluation."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from equipoise.layers import functional
from equipoise.layers.schedule import RenormSchedule


class _BatchRenorm(nn.modules.batchnorm._BatchNorm):
    """What the three dimensions share; each takes its shape check from PyTorch's class."""

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
        functional.check_values(x)
        mean, var, seen = self.running_mean, self.running_var, self.num_batches_tracked
        assert mean is not None
        assert var is not None
        assert seen is not None
        r_max, d_max = self.schedule.limits(seen, torch.promote_types(mean.dtype, torch.float32))
        seen.add_(1)
        return functional.batch_renorm(
            x,
            mean,
            var,
            self.weight,
            self.bias,
            r_max=r_max,
            d_max=d_max,
            momentum=functional.cumulative(seen, mean) if self.momentum is None else self.momentum,
            eps=self.eps,
        )

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
