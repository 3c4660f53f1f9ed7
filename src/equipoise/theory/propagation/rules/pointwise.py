r"""Functions of single elements.

The function is applied to the table of the input, :math:`T_{out} = \phi \circ T`, so that
correlations of the latents stay as they are. Exact, for φ after φ and for any φ. Back,

.. math:: G_{in} = G\,E[w(g)\,\phi'(T(g))^2], \qquad
          \Pi_{in} = \Pi\,E[\phi'(T(g_1))\,\phi'(T(g_2))] .
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from equipoise.theory.propagation import latent
from equipoise.theory.propagation.call import Call, Pulled, Result, rule
from equipoise.theory.propagation.exchangeable import Exchangeable
from equipoise.theory.propagation.values import (
    Gradient,
    Known,
    Moments,
    UnpredictedError,
    is_uniform,
)

# On larger maps what gradients and latents have in common is spread too thin to matter.
_MOST_POSITIONS = 256
# Linear ones keep a Gaussian Gaussian.
_AFFINE = {"add", "sub", "rsub", "mul", "div", "neg", "clone", "detach", "alias", "_to_copy"}


@rule("_prelu_kernel")
def pointwise(call: Call) -> Result:
    """Any elementwise operation with one random input and constants beside it."""
    (place,) = (i for i, value in enumerate(call.arguments) if isinstance(value, Moments))
    x: Moments = call.arguments[place]
    arguments = [_scalar(value) for value in call.arguments]
    keywords = {name: _scalar(value) for name, value in call.keywords.items()}
    keywords.pop("memory_format", None)
    operator = _not_in_place(call)

    def function(points: Tensor) -> Tensor:
        arguments[place] = points
        return torch.as_tensor(operator(*arguments, **keywords))

    return elementwise(x, function, affine=call.node.name in _AFFINE)


def elementwise(
    x: Moments,
    function: Callable[[Tensor], Tensor],
    *,
    derivative: Callable[[Tensor], Tensor] | None = None,
    affine: bool = False,
) -> Result:
    """What a function of single elements gives.

    Args:
        x: The input.
        function: Takes a tensor of numbers in float64 and returns one of the same shape.
        derivative: What the way back multiplies gradients with; PyTorch's by default.
        affine: Whether it keeps Gaussian numbers Gaussian.

    Raises:
        UnpredictedError: If it changes the shape, or is not finite.
    """
    points = torch.from_numpy(np.ascontiguousarray(x.table)).requires_grad_()
    with torch.enable_grad():
        values = function(points)
        if values.shape != points.shape:
            raise UnpredictedError("an operation that is not elementwise here")
        slopes = None
        if derivative is not None:
            slopes = derivative(points).detach().double()
        elif values.requires_grad:
            (slopes,) = torch.autograd.grad(values.sum(), points, allow_unused=True)
    table = values.detach().double().numpy()
    slope = np.zeros_like(table) if slopes is None else slopes.numpy()
    if not (np.isfinite(table).all() and np.isfinite(slope).all()):
        raise UnpredictedError("values that are not finite on normal pre-activations")
    output = x.with_table(table, gaussian=x.gaussian and affine)

    def pullback(gradient: Gradient) -> Pulled:
        return Pulled([(x, through(x, slope, gradient))])

    return Result(output, pullback)


def through(x: Moments, slope: np.ndarray, gradient: Gradient) -> Gradient:
    """Multiply a gradient by derivatives, a table of the latents of x."""
    _, weights = latent.nodes()
    square = slope**2 * gradient.weight
    gain = np.broadcast_to(square @ weights, x.positions)
    if np.ptp(slope) == 0:
        pairs = gradient.pairs * float(slope[0, 0] ** 2)
    else:
        pairs = gradient.pairs.times(x.averaged(slope))
    if gradient.excess is not None and np.ptp(slope) > 0:
        more = _excess(x, slope, gradient.excess, gradient.excess.times(x.averaged(slope)))
        pairs = pairs if more is None else pairs + more
    np.fill_diagonal(pairs.same, gradient.pairs.diagonal * gain)
    share = np.broadcast_to(gradient.pairs.diagonal[:, None], (x.positions, 1))
    average = (share * square).mean(0)
    total = float(average @ weights)
    weight = average / total if total > 0 else np.ones_like(average)
    if np.ptp(slope) == 0:
        excess = gradient.excess
        return Gradient(pairs, weight, excess and excess * float(slope[0, 0] ** 2))
    return Gradient(pairs, weight, _excess(x, slope, gradient.pairs, pairs))


def _excess(
    x: Moments, slope: np.ndarray, before: Exchangeable, after: Exchangeable
) -> Exchangeable | None:
    """Π E[φ'(x₁)φ'(x₂)z₁z₂] less Π E[φ'(x₁)φ'(x₂)] ρ, for latents z."""
    if x.positions > _MOST_POSITIONS:
        return None
    z = latent.nodes()[0] if x.dimensions is None else latent.on_sphere(x.dimensions)
    return before.times(x.averaged(slope * z)) + after.times(x.correlation) * -1.0


def _scalar(value: Any) -> Any:
    """A constant as a number.

    Raises:
        UnpredictedError: If its elements differ: every feature would have a function of its own.
    """
    if not isinstance(value, Known):
        return value
    if not is_uniform(value.value):
        raise UnpredictedError("an elementwise function whose constants differ")
    number = value.value.flatten()[0].detach()
    return number.double() if number.is_floating_point() else number


def _not_in_place(call: Call) -> Any:
    """The operator that leaves its input alone."""
    operator = call.node.operator
    assert isinstance(operator, torch._ops.OpOverload)
    packet = operator.overloadpacket
    name = packet.__name__
    if not operator._schema.is_mutable:
        return packet
    return getattr(getattr(torch.ops, operator.namespace), name.rstrip("_"))
