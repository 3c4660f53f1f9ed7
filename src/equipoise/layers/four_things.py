"""Batch norm with the four improvements of Summers and Dinneen.

The layers implement 1. inference example weighing, 2. ghost batches and 4. groups of channels
combined with few samples; :func:`gamma_beta_penalty` is 3. decay of γ towards 1 and of β towards
0. Formulas are those of the paper and of its authors' program. The two differ in one point: the
program never applies its decay, because it does not pass it on.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from equipoise.instrument.normalisers import kind_of
from equipoise.layers._statistics import (
    channel_statistics,
    check_values,
    cumulative_share,
    laid_out_like,
    refuse_empty,
    virtual_batches,
)
from equipoise.numerics.checks import check_size, check_within
from equipoise.numerics.precision import at_least_float32


class _FourThings(nn.modules.batchnorm._NormBase):
    """Base of the 1d, 2d and 3d layers.

    Not a ``_BatchNorm``: with groups or an example's weight, evaluation is not batch norm's, so
    tools that fold or synchronise batch norms must leave it alone.
    """

    _dims: tuple[int, ...]

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
        groups: int | None = None,
        virtual_batch_size: int | None = None,
        example_weight: float = 0.0,
    ):
        groups = num_features if groups is None else groups
        check_size(groups=groups)
        if num_features % groups:
            raise ValueError(
                f"groups must divide the channels; got {groups} groups for {num_features} "
                "channels. math.gcd(groups, num_features) does."
            )
        check_example_weight(example_weight)
        if virtual_batch_size is not None:
            check_size(virtual_batch_size=virtual_batch_size)
        super().__init__(
            num_features, eps, momentum, affine, track_running_stats, device=device, dtype=dtype
        )
        self.groups = groups
        self.virtual_batch_size = virtual_batch_size
        self.example_weight = example_weight

    def forward(self, x: Tensor) -> Tensor:
        """Group samples and channels in training; weigh the example in evaluation."""
        self._check_input_dim(x)
        if not self.training and self.running_mean is not None and self.running_var is not None:
            return self._weigh_example(x, self.running_mean, self.running_var)
        refuse_empty(type(self).__name__, x)
        y = self._normalise_cells(x)
        if self.training and self.track_running_stats:
            self._update(x)
        return y

    def _normalise_cells(self, x: Tensor) -> Tensor:
        """Normalise each virtual batch of samples times each group of channels."""
        values = x.shape[1] // self.groups * math.prod(x.shape[2:])
        sizes = virtual_batches(x.shape[0], self.virtual_batch_size, values)
        check_values(x, sizes[-1] * values)
        size = sizes[0]
        whole = sum(s for s in sizes if s == size)
        parts = [self._as_group_norm(x[:whole], size)]
        if whole < x.shape[0]:
            parts.append(self._as_group_norm(x[whole:], sizes[-1]))
        return laid_out_like(torch.cat(parts) if len(parts) > 1 else parts[0], x)

    def _as_group_norm(self, x: Tensor, size: int) -> Tensor:
        """Samples of a virtual batch become positions: group_norm's fused kernel does the rest."""
        batches = x.reshape(-1, size, *x.shape[1:]).transpose(1, 2)  # [batches, C, size, *]
        y = F.group_norm(batches.flatten(2), self.groups, self.weight, self.bias, self.eps)
        return y.reshape(batches.shape).transpose(1, 2).flatten(0, 1)

    def _weigh_example(self, x: Tensor, running_mean: Tensor, running_var: Tensor) -> Tensor:
        r"""Normalise each example by a mixture of its own moments and the running ones.

        The variance of a mixture loses no digits to a difference of squares:

        .. math:: \sigma^2 = \alpha s_x^2 + (1 - \alpha) s^2
                  + \alpha (1 - \alpha) (\mathrm{E}_x[x] - m_x)^2 .
        """
        if not x.numel():
            return x.clone()  # moments of nothing come with a warning
        groups = self.groups
        values = at_least_float32(x).reshape(
            x.shape[0], groups, x.shape[1] // groups, *x.shape[2:]
        )
        means = at_least_float32(running_mean).reshape(groups, -1)
        between, m = torch.var_mean(means, 1, correction=0)
        s2 = at_least_float32(running_var).reshape(groups, -1).mean(1) + between
        if self.example_weight:
            a = self.example_weight
            own_s2, own_m = torch.var_mean(values, list(range(2, values.ndim)), correction=0)
            s2 = a * own_s2 + (1 - a) * s2 + a * (1 - a) * (own_m - m).square()
            m = a * own_m + (1 - a) * m
        ones = (1,) * (values.ndim - 2)
        m, s2 = m.reshape(-1, groups, *ones), s2.reshape(-1, groups, *ones)
        y = ((values - m) * (s2 + self.eps).rsqrt()).flatten(1, 2)
        if self.weight is not None:
            y = y * at_least_float32(self.weight).reshape(-1, *ones[1:])
        if self.bias is not None:
            y = y + at_least_float32(self.bias).reshape(-1, *ones[1:])
        return laid_out_like(y.to(x.dtype), x)

    @torch.no_grad()
    def _update(self, x: Tensor) -> None:
        mean, var, seen = self.running_mean, self.running_var, self.num_batches_tracked
        assert mean is not None
        assert var is not None
        assert seen is not None
        seen.add_(1)
        a = cumulative_share(seen, mean) if self.momentum is None else self.momentum
        batch_mean, batch_var = channel_statistics(x)
        # Equal to averaging E[x] and E[x²], which is right for every batch size. Batch norm's
        # variance within a batch is always 0 at batch size 1.
        spread = batch_var + (1 - a) * (batch_mean - mean).square()
        var.copy_(a * spread + (1 - a) * var)
        mean.copy_(a * batch_mean + (1 - a) * mean)

    def _check_input_dim(self, x: Tensor) -> None:
        if x.ndim not in self._dims or x.shape[1] != self.num_features:
            wanted = " or ".join(f"{dim}D" for dim in self._dims)
            raise ValueError(
                f"expected {wanted} input with {self.num_features} channels in dimension 1 "
                f"(got {x.ndim}D input of shape {tuple(x.shape)})"
            )

    def extra_repr(self) -> str:
        """PyTorch's line, groups, virtual batch size and example weight."""
        # PyTorch does not annotate this method.
        torchs: str = super().extra_repr()  # type: ignore[no-untyped-call]
        return (
            f"{torchs}, groups={self.groups}, "
            f"virtual_batch_size={self.virtual_batch_size}, example_weight={self.example_weight}"
        )


class FourThingsBatchNorm1d(_FourThings):
    r"""Batch norm with four things, of a 2D or 3D input.

    In training, statistics are over the ``virtual_batch_size`` samples of a virtual batch, the
    C / ``groups`` channels of a group, and all positions:

    .. math:: y = \gamma\,\frac{x - \mu_{bg}}{\sqrt{\sigma_{bg}^2 + \varepsilon}} + \beta .

    In evaluation the running moments are mixed with those of the one example,

    .. math:: \mu = \alpha\,\mathrm{E}_x[x] + (1 - \alpha)\, m_x, \quad
              \sigma^2 = \alpha\,\mathrm{E}_x[x^2] + (1 - \alpha)\, m_{x^2} - \mu^2 ,

    averaged over the channels of a group, with the example weight α. The paper advises virtual
    batches for medium and large batches, groups for tiny ones, and to choose α by validation
    after training. With the defaults the output is batch norm's.

    Virtual batches are as in :class:`~equipoise.layers.GhostBatchNorm1d`. The running
    statistics average E[x] and E[x²] of the whole batch, so ``running_var`` is the biased
    variance *including* that between batches, right at every batch size; batch norm averages
    unbiased variances within batches. The keys of the state are batch norm's.

    Args:
        num_features: Channels C.
        eps: Added to every variance.
        momentum: Weight of the present batch in the running statistics; None for their
            cumulative average.
        affine: Whether to learn γ and β.
        track_running_stats: Without them evaluation does what training does.
        device: Where parameters and statistics live.
        dtype: Their type.
        groups: Groups of channels; must divide C. None for C groups of one channel.
        virtual_batch_size: Samples normalised together; None for all.
        example_weight: α in [0, 1], used in evaluation only. May be set after training.

    Shape:
        - Input: ``[N, C]`` or ``[N, C, L]``.
        - Output: the same.

    Raises:
        ValueError: If ``groups`` does not divide C, ``example_weight`` is out of its range, or
            in training where a statistic has one value: batch size 1 without positions works
            with fewer than C groups only.

    Examples:
        >>> x = torch.tensor([[1.0, 3.0]])
        >>> FourThingsBatchNorm1d(2, groups=1)(x).round().tolist()  # one sample is enough
        [[-1.0, 1.0]]

    References:
        [summers2020], sections 3.1, 3.2 and 3.4, and github.com/ceciliaresearch/
        four_things_batch_norm.
    """

    _dims = (2, 3)


class FourThingsBatchNorm2d(_FourThings):
    r"""Batch norm with four things, of images.

    Formula, arguments, training and evaluation: see :class:`FourThingsBatchNorm1d`.

    Shape:
        - Input: ``[N, C, H, W]``.
        - Output: the same.

    References:
        [summers2020].
    """

    _dims = (4,)


class FourThingsBatchNorm3d(_FourThings):
    r"""Batch norm with four things, of volumes.

    Formula, arguments, training and evaluation: see :class:`FourThingsBatchNorm1d`.

    Shape:
        - Input: ``[N, C, D, H, W]``.
        - Output: the same.

    References:
        [summers2020].
    """

    _dims = (5,)


def check_example_weight(example_weight: float) -> None:
    """Refuse weights outside [0, 1].

    Raises:
        ValueError: Naming the weight.
    """
    check_within("example_weight", example_weight, "[0, 1]", "0 ignores the example.")


def gamma_beta_penalty(model: nn.Module, weight_decay: float) -> Tensor:
    r"""Weight decay of γ and β, to be added to the loss.

    .. math:: \frac\lambda2 \sum \big(\|\gamma - 1\|^2 + \|\beta\|^2\big)

    over the trainable γ and β of all normalisation layers, each once: towards what they start
    from. Every layer of a registered kind counts: PyTorch's batch, instance, group, layer and RMS
    norm, this library's, and what derives from them. An optimizer's own ``weight_decay`` pulls
    γ to 0 rather than 1: give these parameters a group without it.

    Args:
        model: Any module.
        weight_decay: λ, at least 0.

    Returns:
        The penalty, a scalar that can be differentiated; 0 without such parameters.

    Raises:
        ValueError: If ``weight_decay`` is negative.

    Examples:
        >>> layer = nn.BatchNorm1d(4)
        >>> gamma_beta_penalty(layer, 0.1).item()
        0.0
        >>> _ = nn.init.constant_(layer.weight, 3.0)
        >>> round(gamma_beta_penalty(layer, 0.1).item(), 6)  # 0.1 / 2 · 4 · (3 - 1)²
        0.8

    References:
        [summers2020], section 3.3; γ - 1 is in the authors' program.
    """
    check_within("weight_decay", weight_decay, "[0, inf)")
    terms = [(p - start).square().sum().float() for p, start in _gammas_and_betas(model)]
    if not terms:
        return torch.zeros(())
    device = terms[0].device
    return weight_decay / 2 * torch.stack([term.to(device) for term in terms]).sum()


def _gammas_and_betas(model: nn.Module) -> list[tuple[nn.Parameter, float]]:
    """Each trainable parameter once, with the value it starts from."""
    found: dict[nn.Parameter, float] = {}
    for module in model.modules():
        if kind_of(module) is not None:
            for name, start in (("weight", 1.0), ("bias", 0.0)):
                parameter = getattr(module, name, None)
                if isinstance(parameter, nn.Parameter) and parameter.requires_grad:
                    found.setdefault(parameter, start)
    return list(found.items())
