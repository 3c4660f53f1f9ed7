"""Normalisation by average ℓp sizes: batch norm's relatives that do not fix the variance."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from equipoise.layers import functional


class LpNorm(nn.modules.batchnorm._NormBase):
    r"""Normalise every channel by its mean and its average ℓp size over the batch.

    In training, over the m samples and positions of a channel,

    .. math:: y_i = \gamma\,\frac{x_i - \mu}{d_p + \varepsilon} + \beta, \quad
        d_p = \Big(\frac1m \sum_i |x_i|^p\Big)^{1/p}, \quad d_\infty = \max_i |x_i| ,

    and in evaluation by the running averages of :math:`\mu` and :math:`d_p`. The size is taken
    *before* the mean is subtracted, so the size of the output depends on the input's mean: for
    a Gaussian channel whose mean is 10 deviations, the output's deviation is 0.1 for p = 1 and
    2 alike. The paper's point is that this trains as well as batch norm. With
    ``centered=True`` the size is that of :math:`x - \mu`, and p = 2 is batch norm but for where
    ε stands.

    :math:`d_1 \le d_2 \le d_\infty`, and at ε = 0 the output does not change when the input is
    multiplied by a positive number, for every p. :math:`d_\infty` grows with the batch, and so
    its running average holds for batches of the size trained with.

    Args:
        num_features: Channels C.
        eps: Added to every size; above 0, unless no channel is ever all zeros.
        momentum: Weight of the present batch in the running statistics; None for their
            cumulative average. Neither statistic is corrected for the size of the batch.
        affine: Whether to learn γ and β.
        track_running_stats: Without them evaluation uses the statistics of its batch.
        device: Where parameters and statistics live.
        dtype: Their type.
        p: At least 1; the paper's are 1, 2 and ``math.inf``.
        centered: Whether the size is taken after subtracting the mean.

    Shape:
        - Input: ``[N, C, *]``, with any positions or none.
        - Output: the same.

    Raises:
        ValueError: If ``p`` is below 1, or where batch statistics are over fewer than two
            values per channel.

    Note:
        "The average of their ℓp-norm" may also be read as :math:`\|x\|_p / m`. That is
        :math:`d_p\, m^{1/p - 1}`: the same for p = 1, another constant factor otherwise, which
        γ can make up for.

    Examples:
        >>> x = torch.tensor([[3.0], [-1.0]])
        >>> LpNorm(1, p=1)(x).round().flatten().tolist()  # (x - 1) / 2
        [1.0, -1.0]
        >>> (3 * LpNorm(1, p=torch.inf)(x)).round().flatten().tolist()  # (x - 1) / 3
        [2.0, -2.0]

    References:
        [santurkar2018], section 3.3 and Figures 11 to 14.
    """

    # Derived from PyTorch's base rather than nn.Module: tools take its members for normalisers
    # with channels in dimension 1. Not from `_BatchNorm`, whose members get folded into weights.

    running_size: Tensor | None

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
        p: float,
        centered: bool = False,
    ):
        functional.check_order(p)
        # The base's own statistics are a mean and a variance.
        super().__init__(num_features, eps, momentum, affine, False, device=device, dtype=dtype)
        self.p = p
        self.centered = centered
        self.track_running_stats = track_running_stats
        self.register_buffer("running_size", None)
        if track_running_stats:
            self.running_mean = torch.zeros(num_features, device=device, dtype=dtype)
            self.running_size = torch.ones(num_features, device=device, dtype=dtype)
            self.num_batches_tracked = torch.tensor(0, dtype=torch.long, device=device)

    def reset_running_stats(self) -> None:
        """Mean 0, size 1, and no batch seen."""
        if self.track_running_stats:
            mean, size, seen = self._running()
            mean.zero_()
            size.fill_(1)
            seen.zero_()

    def forward(self, x: Tensor) -> Tensor:
        """Normalise by the batch in training, by running statistics in evaluation."""
        self._check_input_dim(x)
        if self.training or self.running_mean is None or self.running_size is None:
            mean, size = self._of_batch(x)
        else:
            mean, size = self.running_mean, self.running_size
        return functional.lp_norm(x, mean, size, self.weight, self.bias, eps=self.eps)

    def _of_batch(self, x: Tensor) -> tuple[Tensor, Tensor]:
        if not functional.check_values(x):
            raise ValueError(
                f"LpNorm needs values to measure, got input size {tuple(x.shape)}. Skip empty "
                "batches, or call eval()."
            )
        mean, size = functional.lp_statistics(x, self.p, centered=self.centered)
        if self.training and self.track_running_stats:
            self._update(mean.detach(), size.detach())
        return mean, size

    @torch.no_grad()
    def _update(self, new_mean: Tensor, new_size: Tensor) -> None:
        mean, size, seen = self._running()
        seen.add_(1)
        a = functional.cumulative(seen, mean) if self.momentum is None else self.momentum
        mean.copy_(a * new_mean + (1 - a) * mean)
        size.copy_(a * new_size + (1 - a) * size)

    def _running(self) -> tuple[Tensor, Tensor, Tensor]:
        mean, size, seen = self.running_mean, self.running_size, self.num_batches_tracked
        assert mean is not None
        assert size is not None
        assert seen is not None
        return mean, size, seen

    def _check_input_dim(self, x: Tensor) -> None:
        if x.ndim < 2 or x.shape[1] != self.num_features:
            raise ValueError(
                f"expected at least 2D input with {self.num_features} channels in dimension 1 "
                f"(got {x.ndim}D input of shape {tuple(x.shape)})"
            )

    def extra_repr(self) -> str:
        """The order p, PyTorch's line, and where the size is taken."""
        # PyTorch does not annotate this method.
        torchs: str = super().extra_repr()  # type: ignore[no-untyped-call]
        return f"{torchs}, p={self.p}, centered={self.centered}"
