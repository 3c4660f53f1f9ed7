r"""The preconditioner P of one layer, from the statistics of its inputs.

Explicit float64 matrices, for measurements and checks; training uses the maps in ``bnp``.

Symbols: H: inputs of a layer, one row per sample and output position; e: the column of ones;
Ĥ = [e, H]; P = UD: the preconditioner, U centres, D scales; Ĝ = ĤP; μ, σ²: mean and biased
variance of H's columns; σ̃² = σ² + ε₁ max σ² + ε₂; g: a gradient with respect to the bias and the
weights of one output unit.

References:
    [lange2022], equations (12) and (15), (19) to (22).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.modules.conv import _ConvNd

from equipoise.instrument.unfold import unfold
from equipoise.numerics.options import named_options

# A deviation of four roundings of the mean is the rounding of a constant column.
_CONSTANT = 4.0


@dataclass(frozen=True, slots=True)
class ColumnStatistics:
    """Mean and biased variance of the columns of a feature matrix, both of shape ``[n]``."""

    mean: Tensor
    variance: Tensor

    @property
    def second_moment(self) -> Tensor:
        """E[h²], which takes the variance's place where there is no bias to centre with."""
        return self.variance + self.mean.square()


@dataclass(frozen=True, slots=True)
class Preconditioner:
    r"""The matrix P = UD, which centres and scales the columns of [e, H].

    .. math:: U = \begin{bmatrix}1 & -\mu^T\\ 0 & I\end{bmatrix}, \qquad
              D = \begin{bmatrix}1 & 0\\ 0 & \mathrm{diag}(1/\tilde\sigma)\end{bmatrix}

    Parameters and gradients have shape ``[n + 1, units]``, the bias first; without a bias they
    have ``n`` rows and P is D alone.

    Args:
        mean: μ, shape ``[n]``; zero without a bias.
        scale: σ̃, shape ``[n]``, positive.
        bias: Whether the layer has a bias, so that there is a column of ones.
    """

    mean: Tensor
    scale: Tensor
    bias: bool = True

    def matrix(self) -> Tensor:
        """P as a matrix, ``[n + 1, n + 1]``, or ``[n, n]`` without a bias."""
        return self.apply(
            torch.eye(
                len(self.scale) + self.bias, dtype=self.scale.dtype, device=self.scale.device
            )
        )

    def scaling(self) -> Tensor:
        """Diagonal of D, with the leading 1 of the bias."""
        lead = self.scale.new_ones(int(self.bias))
        return torch.cat([lead, 1 / self.scale])

    def apply(self, parameters: Tensor) -> Tensor:
        """P z: parameters of the normalised features as parameters of the raw ones."""
        weight = parameters[self.bias :] / self.scale[:, None]
        return torch.cat([parameters[: self.bias] - self.mean @ weight, weight])

    def apply_transpose(self, gradient: Tensor) -> Tensor:
        """Pᵀ g: gradients with respect to z."""
        lead = gradient[: self.bias]
        centred = gradient[self.bias :] - self.mean[:, None] * lead.sum(0)
        return torch.cat([lead, centred / self.scale[:, None]])

    def precondition(self, gradient: Tensor) -> Tensor:
        """P Pᵀ g, what replaces the gradient; without the factor 1/q²."""
        return self.apply(self.apply_transpose(gradient))

    def normalise(self, features: Tensor) -> Tensor:
        r"""Ĝ = ĤP for extended features Ĥ; centres before it scales, so no digits are lost."""
        columns = (features[:, self.bias :] - self.mean) / self.scale
        return torch.cat([features[:, : self.bias], columns], 1)


def extended(features: Tensor, *, bias: bool = True) -> Tensor:
    """Ĥ = [e, H] in float64, or H alone without a bias.

    Examples:
        >>> extended(torch.tensor([[2.0], [4.0]]))
        tensor([[1., 2.],
                [1., 4.]], dtype=torch.float64)
    """
    features = features.detach().double()
    return torch.cat([features.new_ones(len(features), int(bias)), features], 1)


def column_statistics(features: Tensor) -> ColumnStatistics:
    """Mean and biased variance of every column, in float64.

    Examples:
        >>> column_statistics(torch.tensor([[1.0], [3.0]])).variance
        tensor([1.], dtype=torch.float64)
    """
    features = features.detach().double()
    mean = features.mean(0)
    return ColumnStatistics(mean, (features - mean).square().mean(0))


@named_options
def preconditioner(
    statistics: ColumnStatistics, *, eps: tuple[float, float] = (0.0, 0.0), bias: bool = True
) -> Preconditioner:
    r"""P from the statistics of a layer's inputs.

    .. math:: \tilde\sigma^2 = \sigma^2 + \varepsilon_1\max_j\sigma_j^2 + \varepsilon_2

    Without a bias there is nothing to centre with: μ is 0 and the second moment
    :math:`E[h^2]` takes the variance's place.

    Args:
        statistics: Of the columns of H.
        eps: :math:`(\varepsilon_1, \varepsilon_2)`, not negative; training uses (1e-2, 1e-4).
        bias: Whether the layer has a bias.

    Returns:
        P. A column without variance is zero once centred whatever its scale; where ε is 0 too,
        it is divided by 1 instead of by its rounding.

    Raises:
        ValueError: If an ε is negative.

    Examples:
        >>> P = preconditioner(column_statistics(torch.tensor([[1.0], [5.0]])))
        >>> P.matrix()  # centring by 3 and division by 2
        tensor([[ 1.0000, -1.5000],
                [ 0.0000,  0.5000]], dtype=torch.float64)

    References:
        [lange2022], equations (12) and (15).
    """
    if min(eps) < 0:
        raise ValueError(f"eps must not be negative, got {eps}.")
    variance = statistics.variance if bias else statistics.second_moment
    mean = statistics.mean if bias else torch.zeros_like(statistics.mean)
    noise = (_CONSTANT * torch.finfo(mean.dtype).eps) ** 2 * statistics.second_moment
    squared = variance + eps[0] * variance.max() + eps[1]
    return Preconditioner(mean, torch.where(squared > noise, squared, 1.0).sqrt(), bias)


def im2col(conv: _ConvNd, inputs: Tensor, *, group: int = 0) -> Tensor:
    """Matrix H of a convolution: a row per sample and output position, in float64.

    Args:
        conv: A convolution of any dimension, stride, padding and dilation.
        inputs: Shape ``[samples, channels, ...]``.
        group: Which group of input channels, each a layer of its own.

    Returns:
        Shape ``[samples · positions, channels/groups · taps]``, columns ordered as ``weight[0]``.

    Examples:
        >>> im2col(torch.nn.Conv1d(1, 1, 2), torch.tensor([[[1.0, 2.0, 3.0]]]))
        tensor([[1., 2.],
                [2., 3.]], dtype=torch.float64)
    """
    return unfold(conv, inputs.detach().double())[group]


@named_options
def tap_statistics(
    conv: _ConvNd, inputs: Tensor, *, exact: bool = True, group: int = 0
) -> ColumnStatistics:
    r"""Mean and variance of every column of a convolution's matrix, without building it.

    The batch is reduced to two maps first, :math:`m = E_i h^{(i)}` and
    :math:`v = E_i (h^{(i)} - m)^2`; over the positions u that a tap t meets,

    .. math:: \mu_t = E_u m_u, \qquad \sigma_t^2 = E_u v_u + E_u (m_u - \mu_t)^2 .

    Args:
        conv: A convolution.
        inputs: Shape ``[samples, channels, ...]``.
        exact: Every tap with the border it sees; otherwise, as the paper does, all taps of a
            channel share the statistics of the whole unpadded map.
        group: Which group of input channels.

    Returns:
        In float64, columns ordered as ``weight[0]``.

    Examples:
        >>> tap_statistics(torch.nn.Conv1d(1, 1, 2), torch.tensor([[[1.0, 2.0, 6.0]]])).mean
        tensor([1.5000, 4.0000], dtype=torch.float64)

    References:
        [lange2022], equations (19) to (22).
    """
    inputs = inputs.detach().double()
    if not exact:
        channels, taps = conv.in_channels // conv.groups, conv.weight[0, 0].numel()
        chosen = inputs[:, group * channels : (group + 1) * channels]
        of_map = column_statistics(chosen.movedim(1, -1).reshape(-1, channels))
        columns = (of_map.mean.repeat_interleave(taps), of_map.variance.repeat_interleave(taps))
        return ColumnStatistics(*columns)
    mean = inputs.mean(0, keepdim=True)
    variance = (inputs - mean).square().mean(0, keepdim=True)
    over_positions = column_statistics(im2col(conv, mean, group=group))
    within = im2col(conv, variance, group=group).mean(0)
    return ColumnStatistics(over_positions.mean, within + over_positions.variance)
