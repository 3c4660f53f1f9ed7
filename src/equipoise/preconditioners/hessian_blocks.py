r"""The Hessian of one output unit's bias and weights, before and after preconditioning.

A layer computes :math:`a = \hat H\hat w` for each of its units, and the loss is a function of a:

.. math:: \nabla^2_{\hat w}\mathcal L = \hat H^T S \hat H, \qquad
          \nabla^2_z\mathcal L = P^T\hat H^T S \hat H P = \hat G^T S \hat G .

Everything here is an explicit float64 matrix: what theory talks about, not what training does.

Symbols: H: inputs of a layer, one row per sample and output position; e: the column of ones;
Ĥ = [e, H]; S: second derivatives of the loss with respect to a; P = UD: the preconditioner, U
centres, D scales; Ĝ = ĤP; μ, σ²: mean and biased variance of H's columns; σ̃² = σ² + ε₁ max σ²
+ ε₂; g: a gradient with respect to ŵ.

References:
    [lange2022], Propositions 2 and 9, Theorem 3.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd, _ConvTransposeNd

from equipoise.instrument.unfold import unfold

# A deviation of four roundings of the mean is the rounding of a constant column.
_CONSTANT = 4.0


@dataclass(frozen=True, slots=True)
class Statistics:
    """Mean and biased variance of the columns of a feature matrix, both of shape ``[n]``."""

    mean: Tensor
    variance: Tensor

    @property
    def second_moment(self) -> Tensor:
        """E[h²], the scale that counts where there is no bias to centre with."""
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
        return self.apply(torch.eye(len(self.scale) + self.bias).to(self.scale))

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


@dataclass(frozen=True, slots=True)
class HessianBlock:
    r"""Factors of :math:`\nabla^2_{\hat w}\mathcal L = \hat H^TS\hat H` for one output unit.

    Args:
        features: Ĥ, shape ``[samples · positions, columns]``.
        curvature: The diagonal blocks of S, shape ``[samples, positions, positions]``.
        bias: Whether the first column of Ĥ is the bias's column of ones.
        rounding: Unit roundoff of the type in which features and curvature were computed.
    """

    features: Tensor
    curvature: Tensor
    bias: bool
    rounding: float

    def matrix(self) -> Tensor:
        """ĤᵀSĤ."""
        return weighted_gram(self.features, self.curvature)

    def preconditioned(self, preconditioner: Preconditioner) -> Tensor:
        """ĜᵀSĜ."""
        return weighted_gram(preconditioner.normalise(self.features), self.curvature)

    def statistics(self) -> Statistics:
        """Mean and variance of the features, without the column of ones."""
        return column_statistics(self.features[:, self.bias :])


def extended(features: Tensor, *, bias: bool = True) -> Tensor:
    """Ĥ = [e, H] in float64, or H alone without a bias.

    Examples:
        >>> extended(torch.tensor([[2.0], [4.0]]))
        tensor([[1., 2.],
                [1., 4.]], dtype=torch.float64)
    """
    features = features.detach().double()
    return torch.cat([features.new_ones(len(features), int(bias)), features], 1)


def weighted_gram(features: Tensor, curvature: Tensor) -> Tensor:
    """ĤᵀSĤ for S in diagonal blocks ``[samples, positions, positions]``."""
    blocks = features.reshape(*curvature.shape[:2], -1)
    return torch.einsum("ipa,ipq,iqb->ab", blocks, curvature, blocks)


def column_statistics(features: Tensor) -> Statistics:
    """Mean and biased variance of every column, in float64.

    Examples:
        >>> column_statistics(torch.tensor([[1.0], [3.0]])).variance
        tensor([1.], dtype=torch.float64)
    """
    features = features.detach().double()
    mean = features.mean(0)
    return Statistics(mean, (features - mean).square().mean(0))


def preconditioner(
    statistics: Statistics, *, eps: tuple[float, float] = (0.0, 0.0), bias: bool = True
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
        >>> im2col(nn.Conv1d(1, 1, 2), torch.tensor([[[1.0, 2.0, 3.0]]]))
        tensor([[1., 2.],
                [2., 3.]], dtype=torch.float64)
    """
    return unfold(conv, inputs.detach().double())[group]


def tap_statistics(
    conv: _ConvNd, inputs: Tensor, *, exact: bool = True, group: int = 0
) -> Statistics:
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
        >>> tap_statistics(nn.Conv1d(1, 1, 2), torch.tensor([[[1.0, 2.0, 6.0]]])).mean
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
        return Statistics(*columns)
    mean = inputs.mean(0, keepdim=True)
    variance = (inputs - mean).square().mean(0, keepdim=True)
    over_positions = column_statistics(im2col(conv, mean, group=group))
    within = im2col(conv, variance, group=group).mean(0)
    return Statistics(over_positions.mean, within + over_positions.variance)


def hessian_block(
    layer: nn.Linear | _ConvNd,
    loss: Callable[[], Tensor],
    *,
    unit: int = 0,
    generator: torch.Generator | None = None,
) -> HessianBlock:
    r"""Features and curvature of one output unit of a layer inside any model.

    The unit's pre-activations are shifted by δ = 0 and S is the second derivative with respect
    to δ: one backward pass through the gradient per output position, for all samples at once.

    Args:
        layer: A linear layer on ``[samples, ..., features]`` or a convolution on
            ``[samples, channels, ...]``.
        loss: Runs the model once and returns its scalar loss. Samples must not share
            statistics on their way to it: put normalisation layers in evaluation mode.
        unit: Which output unit.
        generator: For the random direction that tests whether S is block diagonal; seeded with
            0 by default.

    Returns:
        The factors in float64; their digits are those of the model. Gradients in ``.grad`` are
        not touched.

    Raises:
        TypeError: If the layer is of another kind.
        ValueError: If the layer has no such unit, does not run exactly once on a batch, does not
            influence the loss, or samples influence each other's curvature.

    Examples:
        >>> layer = nn.Linear(1, 1).double()
        >>> x = torch.tensor([[1.0], [3.0]], dtype=torch.float64)
        >>> hessian_block(layer, lambda: layer(x).square().mean()).matrix()
        tensor([[ 2.,  4.],
                [ 4., 10.]], dtype=torch.float64)

    References:
        [lange2022], Propositions 2 and 9.
    """
    _check_layer(layer, unit)
    inputs, shift, value = _run_shifted(layer, loss, unit)
    curvature = _curvature(value, shift, generator)
    if isinstance(layer, _ConvNd):
        features = im2col(layer, inputs, group=unit * layer.groups // layer.out_channels)
    else:
        features = inputs.reshape(-1, inputs.shape[-1])
    bias = layer.bias is not None
    rounding = torch.finfo(inputs.dtype).eps
    return HessianBlock(extended(features, bias=bias), curvature, bias, rounding)


def _check_layer(layer: nn.Module, unit: int) -> None:
    if not isinstance(layer, nn.Linear | _ConvNd) or isinstance(layer, _ConvTransposeNd):
        raise TypeError(f"need a linear layer or a convolution, got {type(layer).__name__}.")
    units = layer.weight.shape[0]
    if not 0 <= unit < units:
        raise ValueError(f"unit must be in [0, {units}), got {unit}.")


def _run_shifted(
    layer: nn.Module, loss: Callable[[], Tensor], unit: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Inputs of the layer, the shift ``[samples, positions]`` of its unit, and the loss."""
    calls: list[tuple[Tensor, Tensor]] = []

    def hook(module: nn.Module, args: tuple[Tensor, ...], output: Tensor) -> Tensor:
        axis, ndim = (1, module.weight.ndim) if isinstance(module, _ConvNd) else (-1, 2)
        if output.ndim < ndim:
            raise ValueError(f"inputs need a batch dimension, got {tuple(args[0].shape)}.")
        one = torch.zeros(output.shape[axis], dtype=output.dtype, device=output.device)
        one[unit] = 1
        rows = output.movedim(axis, -1)  # [samples, *positions, units]
        shift = torch.zeros_like(rows[..., 0].flatten(1) if rows.ndim > 2 else rows[..., :1])
        shift.requires_grad_()
        calls.append((args[0].detach(), shift))
        return (rows + shift.reshape(*rows.shape[:-1], 1) * one).movedim(-1, axis)

    handle = layer.register_forward_hook(hook)
    try:
        with torch.enable_grad():
            value = loss()
    finally:
        handle.remove()
    if len(calls) != 1:
        raise ValueError(
            f"the layer must run exactly once in loss(), it ran {len(calls)} times; a weight used "
            "twice has no Hessian of the form ĤᵀSĤ with block-diagonal S."
        )
    if value.numel() != 1:
        raise ValueError(f"loss() must return a single number, got shape {tuple(value.shape)}.")
    return *calls[0], value


def _curvature(value: Tensor, shift: Tensor, generator: torch.Generator | None) -> Tensor:
    """Diagonal blocks of the second derivative with respect to the shift, after a check."""
    (slope,) = torch.autograd.grad(value, shift, create_graph=True, allow_unused=True)
    if slope is None:
        raise ValueError("the loss does not depend on the layer; return the loss of a run of it.")

    def second(direction: Tensor) -> Tensor:
        if not slope.requires_grad:
            return torch.zeros_like(shift, dtype=torch.float64)
        (product,) = torch.autograd.grad(
            slope, shift, direction, retain_graph=True, materialize_grads=True
        )
        return product.detach().double()

    # A block-diagonal S shows column p of every block at once.
    columns = [second(row.expand_as(shift)) for row in torch.eye(shift.shape[1]).to(shift)]
    blocks = torch.stack(columns, -1)  # [samples, positions, positions]
    generator = generator or torch.Generator().manual_seed(0)
    probe = torch.randn(shift.shape, generator=generator, dtype=torch.float64).to(shift)
    found, expected = second(probe), torch.einsum("ipq,iq->ip", blocks, probe.double())
    coupling = float((found - expected).norm()) / max(float(found.norm()), 1e-300)
    if coupling > torch.finfo(shift.dtype).eps ** 0.5:
        raise ValueError(
            "S must be block diagonal, but samples influence each other's curvature "
            f"({coupling:.1%} of it); put batch normalisation in evaluation mode."
        )
    return (blocks + blocks.mT) / 2
