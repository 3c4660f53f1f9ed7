"""Adapt names, modules and callables to an :class:`Activation`, or refuse them with a reason."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional as F

from equipoise.numerics.options import named_options
from equipoise.records.wording import said
from equipoise.theory.activation.catalogue import (
    Activation,
    Elementwise,
    member,
    named_activation,
)
from equipoise.theory.activation.kinks import find_kinks

ActivationLike: TypeAlias = str | nn.Module | Elementwise | Activation

_MODULE_NAMES: dict[type[nn.Module], str] = {
    nn.Identity: "identity",
    nn.ReLU: "relu",
    nn.ReLU6: "relu6",
    nn.Tanh: "tanh",
    nn.Sigmoid: "sigmoid",
    nn.SiLU: "silu",
    nn.Mish: "mish",
    nn.SELU: "selu",
    nn.Hardswish: "hardswish",
    nn.Hardsigmoid: "hardsigmoid",
    nn.Softsign: "softsign",
    nn.LogSigmoid: "log_sigmoid",
    nn.Tanhshrink: "tanhshrink",
}
_MODULE_FAMILIES: dict[type[nn.Module], Callable[[Any], Activation]] = {
    nn.GELU: lambda m: named_activation("gelu" if m.approximate == "none" else "gelu_tanh"),
    nn.LeakyReLU: lambda m: member("leaky_relu", m.negative_slope),
    nn.ELU: lambda m: member("elu", m.alpha),
    nn.CELU: lambda m: member("celu", m.alpha),
    nn.Softplus: lambda m: _softplus(m.beta, m.threshold),
    nn.Hardtanh: lambda m: member("hardtanh", m.min_val, m.max_val),
}

_FUNCTION_NAMES: dict[Any, str] = {
    F.relu: "relu",
    torch.relu: "relu",
    F.relu6: "relu6",
    torch.tanh: "tanh",
    F.tanh: "tanh",
    torch.sigmoid: "sigmoid",
    F.sigmoid: "sigmoid",
    torch.erf: "erf",
    F.gelu: "gelu",
    F.silu: "silu",
    F.mish: "mish",
    F.selu: "selu",
    F.elu: "elu",
    F.celu: "celu",
    F.leaky_relu: "leaky_relu",
    F.softplus: "softplus",
    F.hardtanh: "hardtanh",
    F.hardswish: "hardswish",
    F.hardsigmoid: "hardsigmoid",
    F.softsign: "softsign",
    F.logsigmoid: "log_sigmoid",
    F.tanhshrink: "tanhshrink",
    torch.abs: "abs",
    torch.sin: "sin",
    torch.square: "square",
}


@named_options
def as_activation(activation: ActivationLike, *, name: str | None = None) -> Activation:
    """Adapt a name, a module or a callable.

    Args:
        activation: A name such as ``"relu"`` or ``"alpha_relu(1.5)"``, an activation module,
            any elementwise callable on float64 tensors, or an :class:`Activation`. Kinks of a
            callable are searched for on [-20, 20] by three independent grids; where only one sees
            something, errors are wider and say so. Declare kinks yourself by building an
            :class:`Activation`.
        name: Name of a callable in reports; by default its own.

    Raises:
        ValueError: If the callable is random, not elementwise, not finite, discontinuous, or
            does not return float64 tensors.
        TypeError: If ``activation`` is none of the above.

    Examples:
        >>> as_activation(nn.LeakyReLU(0.1)).name
        'leaky_relu(0.1)'
        >>> as_activation(lambda x: torch.relu(x - 1), name="shifted").kinks
        (Kink(at=1.0, power=False),)
        >>> as_activation(torch.nn.Softmax(0))
        Traceback (most recent call last):
        ValueError: activation Softmax is not elementwise: ...
        >>> as_activation(nn.GELU)
        Traceback (most recent call last):
        TypeError: an activation is no class: give what it makes, such as GELU().
    """
    if isinstance(activation, Activation):
        return activation
    if isinstance(activation, str):
        return named_activation(activation)
    if not callable(activation):
        raise TypeError(
            f"an activation is a name, a module or a callable, got {activation!r:.80}."
        )
    if isinstance(activation, type):
        name = activation.__name__
        raise TypeError(f"an activation is no class: give what it makes, such as {name}().")
    if not isinstance(activation, nn.Module):
        return _adapt_function(activation, name)
    kind = type(activation)
    if kind in _MODULE_NAMES:
        return named_activation(_MODULE_NAMES[kind])
    if kind in _MODULE_FAMILIES:
        return _MODULE_FAMILIES[kind](activation)
    if isinstance(activation, nn.PReLU) and activation.num_parameters == 1:
        return member("leaky_relu", float(activation.weight.detach()))
    # Not cached: the parameters of a module may change.
    return _adapt(copy.deepcopy(activation).double().cpu(), name or kind.__name__)


def _softplus(beta: float, threshold: float) -> Activation:
    """The smooth function, or PyTorch's where its linear shortcut can be noticed.

    At x = threshold/β it jumps by exp(-threshold)/β: for 37 that is rounding, and beyond 20 no
    kink of a callable is looked for either.
    """
    if threshold >= min(37, 20 * beta):
        return member("softplus", beta)
    shown = f"softplus({beta:g}, threshold={threshold:g})"
    return _adapt(lambda x: F.softplus(x, beta, threshold), shown)


def _adapt_function(function: Elementwise, name: str | None) -> Activation:
    # Compared by identity: objects that can be called may define an equality without a hash.
    known = next((n for same, n in _FUNCTION_NAMES.items() if same is function), None)
    if known is not None:
        return named_activation(known)
    # Not cached either: what it computes may depend on variables that change.
    return _adapt(function, name or str(getattr(function, "__name__", type(function).__name__)))


def _adapt(function: Elementwise, name: str) -> Activation:
    _check_elementwise(function, name)
    adapted = Activation(name, function)
    points = _irregular_points()
    try:
        _, slopes = adapted(points)
    except RuntimeError as error:
        raise ValueError(f"activation {name} cannot be differentiated: {error}") from error
    lost = points[~np.isfinite(slopes)]
    if lost.size:
        raise ValueError(
            f"the gradient of activation {name} is not finite at x = {min(lost, key=abs):.3g}, "
            "although its value is. If torch.where chooses a branch, the other one still sends "
            "back 0 · nan: clamp what that branch is given, as in torch.log(x.clamp(min=1e-30)), "
            "or give Activation(..., derivative=...)."
        )
    found = find_kinks(adapted, name)
    return Activation(name, function, kinks=found.kinks, turns=found.turns, unsure=found.unsure)


def _irregular_points() -> NDArray[np.float64]:
    """96 points in random order, so that a function that sorts or pairs them is noticed."""
    return np.random.default_rng(0).permutation(np.linspace(-19.7, 19.9, 96)) + 0.0137


def _check_elementwise(function: Elementwise, name: str) -> None:
    x = torch.from_numpy(_irregular_points())
    y = _call(function, x, name)
    if not torch.isfinite(y).all():
        worst = x[~torch.isfinite(y)].abs().min().item()
        raise ValueError(
            f"activation {name} is not finite at |x| = {worst:.3g}. Normalised samples reach "
            "such values; restrict or repair the function."
        )
    again = _call(function, x, name)
    if not torch.equal(y, again):
        raise ValueError(
            f"activation {name} draws random numbers: two calls on the same input differ. "
            "Switch a module to eval(), or pass its mean function."
        )
    parts = [(x[part], y[part]) for part in (slice(0, 31), slice(40, 41))]
    parts += [(x.reshape(shape), y.reshape(shape)) for shape in ((8, 12), (1, 96, 1))]
    for some, expected in parts:
        if not torch.allclose(_call(function, some, name), expected, rtol=1e-11, atol=1e-13):
            raise ValueError(
                f"activation {name} is not elementwise: its output at a point depends on the "
                "other points. Theory needs a function of one number."
            )


def _call(function: Elementwise, x: Tensor, name: str) -> Tensor:
    try:
        with torch.no_grad():
            y = function(x.clone())
    except Exception as error:
        raise ValueError(
            f"activation {name} fails on a float64 tensor of shape {tuple(x.shape)} with "
            f"{said(error)} Theory needs an elementwise function of a tensor of any shape."
        ) from error
    if not isinstance(y, Tensor) or y.shape != x.shape:
        got = tuple(y.shape) if isinstance(y, Tensor) else type(y).__name__
        raise ValueError(
            f"activation {name} is not elementwise: a tensor of shape {tuple(x.shape)} gave {got}."
        )
    if y.dtype != torch.float64:
        raise ValueError(
            f"activation {name} turns float64 into {y.dtype}: theory computes in float64."
        )
    return y
