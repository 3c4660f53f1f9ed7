"""Layers of K models computed by one call each.

The models lie in rows, ``[K, B, C, ...]``, for layers that work sample by sample, or side by side
in the channels, ``[B, K·C, ...]``, for layers that work channel by channel: K batch norms become
one wider batch norm, and K convolutions one convolution in groups. Layers without a rule here are
mapped over the models by ``torch.func.vmap``, which costs several times as much per operation.

Symbols: K: models, B: batch, C: channels, M: samples times positions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import Enum
from itertools import chain
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call, vmap

from equipoise_papers.stacked.checks import CannotStackError, described
from equipoise_papers.stacked.modules import Residual, SelfAttention
from equipoise_papers.stacked.stack import Stack


class Arrangement(Enum):
    """Where the models lie in a tensor."""

    ROWS = "[K, B, C, ...]"
    CHANNELS = "[B, K·C, ...]"


@dataclass(frozen=True, slots=True)
class Layer:
    """One step of the stacked forward pass.

    Args:
        arrangement: The arrangement that it needs and returns; ``None`` if both will do.
        apply: From activations of all models to activations of all models.
    """

    arrangement: Arrangement | None
    apply: Callable[[Tensor], Tensor]


class StackedModel:
    """The forward pass of K models.

    Args:
        model: The first of them; its structure is used, and its modes as they are at each call.
        stack: Weights and buffers of all models.
    """

    def __init__(self, model: nn.Module, stack: Stack) -> None:
        self._stack = stack
        self._layers = [_layer(name, module, stack) for name, module in _modules_in_order(model)]

    @property
    def arrangement(self) -> Arrangement:
        """The arrangement that its first layers need."""
        needed = (layer.arrangement for layer in self._layers)
        return next((one for one in needed if one is not None), Arrangement.ROWS)

    def __call__(self, inputs: Tensor, arrangement: Arrangement = Arrangement.ROWS) -> Tensor:
        """Outputs for inputs ``[K, B, ...]`` or ``[B, K·C, ...]``, in the same arrangement."""
        x, present = inputs, arrangement
        for layer in self._layers:
            if layer.arrangement is not None and layer.arrangement is not present:
                present = layer.arrangement
                x = self._arranged(x, present)
            x = layer.apply(x)
        return x if present is arrangement else self._arranged(x, arrangement)

    def _arranged(self, x: Tensor, to: Arrangement) -> Tensor:
        if to is Arrangement.CHANNELS:
            return x.transpose(0, 1).flatten(1, 2)
        return x.reshape(len(x), len(self._stack), -1, *x.shape[2:]).transpose(0, 1)


def _modules_in_order(module: nn.Module, name: str = "") -> Iterator[tuple[str, nn.Module]]:
    """Modules that are called one after the other, as often as they are called."""
    if isinstance(module, nn.Sequential) and type(module).forward is nn.Sequential.forward:
        # named_children would leave out repetitions.
        for key, child in module._modules.items():
            if child is not None:
                yield from _modules_in_order(child, f"{name}.{key}" if name else key)
    else:
        yield name, module


def _layer(name: str, module: nn.Module, stack: Stack) -> Layer:
    rule = _RULES.get(type(module))
    layer = None if rule is None else rule(module, stack)
    return _mapped(name, module, stack) if layer is None else layer


class _Linear(torch.autograd.Function):
    """K linear layers at once, models side by side before and after.

    Two reasons for a function of its own: autograd gives the weights' gradient of ``baddbmm``
    transposed, and adding that to the weights takes longer than all the multiplications of a
    small batch; and one node of the graph takes less time than the seven of rearranging the
    models before and after.
    """

    @staticmethod
    def forward(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """From ``[B, K·C, ...]``, ``[K, out, in]`` and ``[K, out]``."""
        rows = _rows(x, len(weight))
        if bias is None:
            return _side_by_side(torch.bmm(rows, weight.mT), x)
        return _side_by_side(torch.baddbmm(bias.unsqueeze(1), rows, weight.mT), x)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        """Save inputs and weights."""
        ctx.save_for_backward(*inputs[:2])

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        """Compute only the gradients that are needed; the first layer needs none for its input."""
        x, weight = ctx.saved_tensors
        of_x, of_weight, of_bias = ctx.needs_input_grad
        rows = _rows(gradient, len(weight))
        return (
            _side_by_side(torch.bmm(rows, weight), x) if of_x else None,
            torch.bmm(rows.mT, _rows(x, len(weight))) if of_weight else None,
            rows.sum(1) if of_bias else None,
        )


def _rows(x: Tensor, members: int) -> Tensor:
    """Rearrange ``[B, K·in]`` (as a view) or ``[B, K·C, ..., in]`` to ``[K, M, in]``."""
    if x.ndim == 2:
        return x.reshape(len(x), members, -1).transpose(0, 1)
    return x.reshape(len(x), members, -1, x.shape[-1]).transpose(0, 1).flatten(1, 2)


def _side_by_side(rows: Tensor, like: Tensor) -> Tensor:
    """Undo :func:`_rows`, with as many dimensions as ``like``."""
    if like.ndim == 2:
        return rows.transpose(0, 1).flatten(1)
    by_sample = rows.reshape(len(rows), len(like), -1, rows.shape[-1])
    return by_sample.transpose(0, 1).reshape(*like.shape[:-1], -1)


def _linear(layer: nn.Linear, stack: Stack) -> Layer:
    def apply(x: Tensor) -> Tensor:
        bias = _of(layer.bias, stack)
        # PyTorch does not annotate this method.
        y: Tensor = _Linear.apply(x, stack.of(layer.weight), bias)  # type: ignore[no-untyped-call]
        return y

    return Layer(Arrangement.CHANNELS, apply)


def _batch_norm(layer: nn.modules.batchnorm._BatchNorm, stack: Stack) -> Layer | None:
    seen = _of(layer.num_batches_tracked, stack)
    if layer.momentum is None and seen is not None and bool((seen != seen[0]).any()):
        raise CannotStackError(
            "a batch norm with momentum=None has seen different numbers of batches in different "
            "models, so their averages need different weights."
        )

    def apply(x: Tensor) -> Tensor:
        # PyTorch does not annotate this method.
        layer._check_input_dim(x)  # type: ignore[no-untyped-call]
        seen = _of(layer.num_batches_tracked, stack)
        factor = layer.momentum or 0.0
        if layer.training and layer.track_running_stats and seen is not None:
            seen.add_(1)
            if layer.momentum is None:
                factor = 1.0 / float(seen[0])
        tensors = (layer.running_mean, layer.running_var, layer.weight, layer.bias)
        mean, var, weight, bias = (_flat(tensor, stack) for tensor in tensors)
        if layer.training and not layer.track_running_stats:
            mean = var = None
        by_batch = layer.training or mean is None
        return F.batch_norm(x, mean, var, weight, bias, by_batch, factor, layer.eps)

    return Layer(Arrangement.CHANNELS, apply)


def _group_norm(layer: nn.GroupNorm, stack: Stack) -> Layer:
    def apply(x: Tensor) -> Tensor:
        groups = len(stack) * layer.num_groups
        return F.group_norm(
            x, groups, _flat(layer.weight, stack), _flat(layer.bias, stack), layer.eps
        )

    return Layer(Arrangement.CHANNELS, apply)


def _layer_norm(layer: nn.LayerNorm, stack: Stack) -> Layer:
    def apply(x: Tensor) -> Tensor:
        y = F.layer_norm(x, layer.normalized_shape, eps=layer.eps)
        if layer.elementwise_affine:
            y = y * _beside(layer.weight, y, stack)
        # None without elementwise_affine or with bias=False, which PyTorch does not declare.
        bias: Tensor | None = layer.bias
        return y if bias is None else y + _beside(bias, y, stack)

    return Layer(Arrangement.ROWS, apply)


def _rms_norm(layer: nn.RMSNorm, stack: Stack) -> Layer:
    def apply(x: Tensor) -> Tensor:
        y = F.rms_norm(x, layer.normalized_shape, eps=layer.eps)
        return y * _beside(layer.weight, y, stack) if layer.elementwise_affine else y

    return Layer(Arrangement.ROWS, apply)


def _residual(layer: Residual, stack: Stack) -> Layer:
    branch = StackedModel(layer.branch, stack)
    arrangement = branch.arrangement
    return Layer(arrangement, lambda x: layer.added(x, branch(x, arrangement)))


def _attention(layer: SelfAttention, stack: Stack) -> Layer:
    packed, out = StackedModel(layer.packed, stack), StackedModel(layer.out, stack)
    return Layer(Arrangement.ROWS, lambda x: out(layer.mixed(packed(x))))


def _convolution(function: Callable[..., Tensor]) -> _Rule:
    def rule(layer: nn.modules.conv._ConvNd, stack: Stack) -> Layer | None:
        if layer.padding_mode != "zeros":
            return None

        def apply(x: Tensor) -> Tensor:
            return function(
                x,
                stack.of(layer.weight).flatten(0, 1),
                _flat(layer.bias, stack),
                layer.stride,
                layer.padding,
                layer.dilation,
                len(stack) * layer.groups,
            )

        return Layer(Arrangement.CHANNELS, apply)

    return rule


def _flatten(layer: nn.Flatten, stack: Stack) -> Layer | None:
    if layer.start_dim != 1:
        return None
    last = layer.end_dim if layer.end_dim < 0 else layer.end_dim + 1
    return Layer(Arrangement.ROWS, lambda x: x.flatten(2, last))


def _elementwise(module: nn.Module, stack: Stack) -> Layer:
    """For modules without tensors that treat every number alike."""
    return Layer(None, module)


def _pool(dims: int) -> _Rule:
    """For modules without tensors that treat every channel alike."""

    def rule(module: nn.Module, stack: Stack) -> Layer | None:
        if getattr(module, "return_indices", False):
            return None

        def apply(x: Tensor) -> Tensor:
            # Inputs without channels: the models take the place of the channels.
            without_channels = x.ndim == dims + 1
            if without_channels:
                x = x.reshape(len(x), len(stack), -1, *x.shape[2:])
            y: Tensor = module(x)
            return y.flatten(1, 2) if without_channels else y

        return Layer(Arrangement.CHANNELS, apply)

    return rule


def _mapped(name: str, module: nn.Module, stack: Stack) -> Layer:
    def one(tensors: dict[str, Tensor], x: Tensor) -> Tensor:
        after = dict(tensors)
        y = functional_call(module, after, (x,))
        if not isinstance(y, Tensor):
            raise ValueError(f"it returns {type(y).__name__}, and a stack needs a tensor.")
        for key, tensor in tensors.items():
            if after[key] is not tensor:
                raise ValueError(f"it replaces its {key!r} instead of changing it in place.")
        return y

    over_models = vmap(one, randomness="different")

    def apply(x: Tensor) -> Tensor:
        named = chain(module.named_parameters(), module.named_buffers())
        tensors = {key: stack.of(tensor) for key, tensor in named}
        try:
            return over_models(tensors, x)
        except (RuntimeError, ValueError, NotImplementedError) as error:
            raise CannotStackError(
                f"module {described(name, module)} cannot be mapped over models: {error}"
            ) from error

    return Layer(Arrangement.ROWS, apply)


def _of(tensor: Tensor | None, stack: Stack) -> Tensor | None:
    return None if tensor is None else stack.of(tensor)


def _flat(tensor: Tensor | None, stack: Stack) -> Tensor | None:
    return None if tensor is None else stack.of(tensor).flatten(0, 1)


def _beside(tensor: Tensor, x: Tensor, stack: Stack) -> Tensor:
    """The stack of a tensor as ``[K, 1, ..., *shape]``, with as many dimensions as x."""
    return stack.of(tensor).reshape(len(stack), *(1,) * (x.ndim - 1 - tensor.ndim), *tensor.shape)


_Rule = Callable[[Any, Stack], Layer | None]

_ELEMENTWISE = (
    nn.Identity,
    nn.ReLU,
    nn.ReLU6,
    nn.LeakyReLU,
    nn.ELU,
    nn.SELU,
    nn.CELU,
    nn.GELU,
    nn.SiLU,
    nn.Mish,
    nn.Softplus,
    nn.Tanh,
    nn.Hardtanh,
    nn.Sigmoid,
    nn.Dropout,
)
_POOLS = {
    1: (nn.MaxPool1d, nn.AvgPool1d, nn.AdaptiveAvgPool1d),
    2: (nn.MaxPool2d, nn.AvgPool2d, nn.AdaptiveAvgPool2d),
    3: (nn.MaxPool3d, nn.AvgPool3d, nn.AdaptiveAvgPool3d),
}

# By exact class: a subclass may compute something else.
_RULES: dict[type[nn.Module], _Rule] = {
    nn.Linear: _linear,
    nn.Conv1d: _convolution(F.conv1d),
    nn.Conv2d: _convolution(F.conv2d),
    nn.Conv3d: _convolution(F.conv3d),
    **dict.fromkeys((nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d), _batch_norm),
    nn.GroupNorm: _group_norm,
    nn.LayerNorm: _layer_norm,
    nn.RMSNorm: _rms_norm,
    Residual: _residual,
    SelfAttention: _attention,
    nn.Flatten: _flatten,
    **dict.fromkeys(_ELEMENTWISE, _elementwise),
    **{pool: _pool(dims) for dims, pools in _POOLS.items() for pool in pools},
}
