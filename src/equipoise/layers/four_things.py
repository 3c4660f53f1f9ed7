"""Batch norm with the four improvements of Summers and Dinneen.

What is implemented: 1. inference example weighing, 2. ghost batches, 4. groups of channels
combined with few samples (the layers below), 3. decay of γ towards 1 and of β towards 0
(:func:`gamma_beta_penalty`). Formulas are those of the paper and of its authors' program, which
differ in one point: the program never passes its decay on, so that it regularises nothing.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from equipoise.instrument.normalisers import kind_of
from equipoise.layers import functional
from equipoise.layers._checks import check_groups, check_size, check_weight_of_example


class _FourThings(nn.modules.batchnorm._NormBase):
    """What the three dimensions share.

    Not a ``_BatchNorm``: with groups, or an example's weight, evaluation is not batch norm's,
    and tools that fold or synchronise batch norms must leave it alone.
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
        check_groups(num_features, groups)
        check_weight_of_example(example_weight)
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
            return functional.example_weighted_norm(
                x,
                self.running_mean,
                self.running_var,
                self.groups,
                self.weight,
                self.bias,
                example_weight=self.example_weight,
                eps=self.eps,
            )
        y = functional.batch_group_norm(
            x, self.groups, self.virtual_batch_size, self.weight, self.bias, eps=self.eps
        )
        if self.training and self.track_running_stats:
            self._update(x)
        return y

    @torch.no_grad()
    def _update(self, x: Tensor) -> None:
        mean, var, seen = self.running_mean, self.running_var, self.num_batches_tracked
        assert mean is not None
        assert var is not None
        assert seen is not None
        seen.add_(1)
        a = functional.cumulative(seen, mean) if self.momentum is None else self.momentum
        batch_mean, batch_var = functional.channel_statistics(x)
        # Equal to averaging E[x] and E[x²], which is exact for every batch size including 1,
        # where the variance within a batch, batch norm's, has nothing to average.
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
        """PyTorch's line, and what the four things add."""
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

    averaged over the channels of a group. The paper advises virtual batches for medium and large
    batches, groups for tiny ones, and to choose α by validation after training. With the
    defaults the output is batch norm's.

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


def gamma_beta(model: nn.Module) -> list[nn.Parameter]:
    """The γ and β of a model's normalisation layers, each once, frozen ones left out.

    Every layer of a registered kind counts: PyTorch's batch, instance, group, layer and RMS
    norm, this library's, and what derives from them. An optimizer's own ``weight_decay`` pulls
    γ to 0 rather than 1: give these parameters a group without it, and add
    :func:`gamma_beta_penalty` to the loss.

    Examples:
        >>> model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4))
        >>> [tuple(parameter.shape) for parameter in gamma_beta(model)]
        [(4,), (4,)]
    """
    pairs = _gammas_and_betas(model)
    return [parameter for parameter, _ in pairs]


def gamma_beta_penalty(model: nn.Module, weight_decay: float) -> Tensor:
    r"""Weight decay of γ and β, to be added to the loss.

    .. math:: \frac\lambda2 \sum \big(\|\gamma - 1\|^2 + \|\beta\|^2\big)

    over the parameters of :func:`gamma_beta`: towards what the layers start from.

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
    if weight_decay < 0:
        raise ValueError(f"weight_decay must be at least 0; got {weight_decay}.")
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
