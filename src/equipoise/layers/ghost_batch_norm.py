"""Ghost batch norm: statistics over virtual batches, smaller than the batch."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from equipoise.layers._statistics import check_values, refuse_empty, virtual_batches
from equipoise.numerics.checks import check_size


class _GhostBatchNorm(nn.modules.batchnorm._BatchNorm):
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
        virtual_batch_size: int = 32,
    ):
        check_size(virtual_batch_size=virtual_batch_size)
        super().__init__(
            num_features, eps, momentum, affine, track_running_stats, device=device, dtype=dtype
        )
        self.virtual_batch_size = virtual_batch_size

    def forward(self, x: Tensor) -> Tensor:
        """Normalise each virtual batch in training; evaluation is batch norm's own."""
        if not self.training:
            return super().forward(x)
        # PyTorch does not annotate this method, here and below.
        self._check_input_dim(x)  # type: ignore[no-untyped-call]
        refuse_empty(type(self).__name__, x)
        positions = math.prod(x.shape[2:])
        sizes = virtual_batches(len(x), self.virtual_batch_size, positions)
        check_values(x, sizes[-1] * positions)
        return torch.cat([self._normalise(part) for part in torch.split(x, sizes)])

    def _normalise(self, x: Tensor) -> Tensor:
        mean, var, factor = None, None, self.momentum or 0.0
        if self.track_running_stats:
            mean, var, seen = self.running_mean, self.running_var, self.num_batches_tracked
            assert seen is not None
            seen.add_(1)
            if self.momentum is None:
                factor = 1.0 / float(seen)
        return F.batch_norm(x, mean, var, self.weight, self.bias, True, factor, self.eps)

    def extra_repr(self) -> str:
        """PyTorch's line, and the size of the virtual batches."""
        torchs: str = super().extra_repr()  # type: ignore[no-untyped-call]
        return f"{torchs}, virtual_batch_size={self.virtual_batch_size}"


class GhostBatchNorm1d(_GhostBatchNorm, nn.BatchNorm1d):
    r"""Ghost batch norm of a 2D or 3D input.

    In training the batch is cut, in order, into virtual batches of ``virtual_batch_size``
    samples, and each is normalised by its own statistics,

    .. math:: y = \gamma\,\frac{x - \mu_b}{\sqrt{\sigma_b^2 + \varepsilon}} + \beta .

    The last virtual batch holds the remaining samples; a remainder with one value per channel
    joins the virtual batch before it. The running statistics (unbiased, as in batch norm) see
    the virtual batches one after the other, so one step moves them as far as that many steps,
    and ``num_batches_tracked`` counts virtual batches. Evaluation is batch norm's.

    Args:
        num_features: Channels C.
        eps: Added to every variance, above 0.
        momentum: Weight of each virtual batch in the running statistics; None for their
            cumulative average.
        affine: Whether to learn γ and β.
        track_running_stats: Without them evaluation uses the statistics of its whole batch.
        device: Where parameters and statistics live.
        dtype: Their type.
        virtual_batch_size: Samples normalised together, at least 1.

    Shape:
        - Input: ``[N, C]`` or ``[N, C, L]``.
        - Output: the same.

    Raises:
        ValueError: If ``virtual_batch_size`` is not positive, or in training where the batch
            is empty or a virtual batch has one value per channel.

    Note:
        ``nn.SyncBatchNorm.convert_sync_batchnorm`` takes the layer for a batch norm and would
        undo its very purpose; statistics across processes are not wanted here.

    Examples:
        >>> x = torch.tensor([[0.0], [2.0], [10.0], [30.0]])
        >>> GhostBatchNorm1d(1, virtual_batch_size=2)(x).round().tolist()
        [[-1.0], [1.0], [-1.0], [1.0]]

    References:
        [hoffer2017], Algorithm 1.
    """


class GhostBatchNorm2d(_GhostBatchNorm, nn.BatchNorm2d):
    r"""Ghost batch norm of images.

    Formula, arguments, training and evaluation: see :class:`GhostBatchNorm1d`; statistics are
    over the samples of a virtual batch and all positions.

    Shape:
        - Input: ``[N, C, H, W]``.
        - Output: the same.

    References:
        [hoffer2017], Algorithm 1.
    """


class GhostBatchNorm3d(_GhostBatchNorm, nn.BatchNorm3d):
    r"""Ghost batch norm of volumes.

    Formula, arguments, training and evaluation: see :class:`GhostBatchNorm1d`; statistics are
    over the samples of a virtual batch and all positions.

    Shape:
        - Input: ``[N, C, D, H, W]``.
        - Output: the same.

    References:
        [hoffer2017], Algorithm 1.
    """
