"""Synchronised batch norm: statistics over the batches of all processes, on any device."""

from __future__ import annotations

import copy
from typing import Any, Self

import torch
import torch.distributed as dist
from torch import Tensor, nn

from equipoise.layers import functional
from equipoise.layers.functional.synchronised import synchronised_batch_norm


class _SynchronisedBatchNorm(nn.modules.batchnorm._BatchNorm):
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
            functional.check_values(x)  # PyTorch counts the batch before it refuses it
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
        share = functional.cumulative(seen, mean) if self.momentum is None else self.momentum
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
