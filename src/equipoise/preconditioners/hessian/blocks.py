r"""The Hessian of one output unit's bias and weights, before and after preconditioning.

A layer computes :math:`a = \hat H\hat w` for each of its units, and the loss is a function of a:

.. math:: \nabla^2_{\hat w}\mathcal L = \hat H^T S \hat H, \qquad
          \nabla^2_z\mathcal L = P^T\hat H^T S \hat H P = \hat G^T S \hat G .

Explicit float64 matrices, for measurements and checks; training uses the maps in ``bnp``.

Symbols: Ĥ = [e, H]: inputs of the layer behind a column of ones, one row per sample and output
position; S: second derivatives of the loss with respect to a; P: the preconditioner; Ĝ = ĤP.

References:
    [lange2022], Propositions 2 and 9, Theorem 3.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd, _ConvTransposeNd

from equipoise.numerics.options import named_options
from equipoise.preconditioners.hessian.preconditioner import (
    ColumnStatistics,
    Preconditioner,
    column_statistics,
    extended,
    im2col,
)


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

    def statistics(self) -> ColumnStatistics:
        """Mean and variance of the features, without the column of ones."""
        return column_statistics(self.features[:, self.bias :])


def weighted_gram(features: Tensor, curvature: Tensor) -> Tensor:
    """ĤᵀSĤ for S in diagonal blocks ``[samples, positions, positions]``."""
    blocks = features.reshape(*curvature.shape[:2], -1)
    return torch.einsum("ipa,ipq,iqb->ab", blocks, curvature, blocks)


@named_options
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
        The factors in float64, as precise as the model's own type. Gradients in ``.grad`` are
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

    with layer.register_forward_hook(hook), torch.enable_grad():
        value = loss()
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
    rows = torch.eye(shift.shape[1], dtype=shift.dtype, device=shift.device)
    columns = [second(row.expand_as(shift)) for row in rows]
    blocks = torch.stack(columns, -1)  # [samples, positions, positions]
    generator = generator or torch.Generator().manual_seed(0)
    probe = torch.randn(
        shift.shape, generator=generator, dtype=torch.float64, device=generator.device
    ).to(shift)
    found, expected = second(probe), torch.einsum("ipq,iq->ip", blocks, probe.double())
    coupling = float((found - expected).norm()) / max(float(found.norm()), 1e-300)
    if coupling > torch.finfo(shift.dtype).eps ** 0.5:
        raise ValueError(
            "S must be block diagonal, but samples influence each other's curvature "
            f"({coupling:.1%} of it); put batch normalisation in evaluation mode."
        )
    return (blocks + blocks.mT) / 2
