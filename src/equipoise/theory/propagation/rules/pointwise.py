r"""Functions of single elements.

The function is applied to the table of the input, :math:`T_{out} = \phi \circ T`, so that
correlations of the latents stay as they are. Exact, for φ after φ and for any φ. Back,

.. math:: G_{in} = G\,E[w(g)\,\phi'(T(g))^2], \qquad
          \Pi_{in} = \Pi\,E[\phi'(T(g_1))\,\phi'(T(g_2))] .

Of a function of a function, φ' is the product of both derivatives, which depend on one latent.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from equipoise.theory.propagation import draws, latent
from equipoise.theory.propagation.call import Call, Pulled, Result, rule
from equipoise.theory.propagation.exchangeable import Exchangeable
from equipoise.theory.propagation.layout import UnpredictedError
from equipoise.theory.propagation.tensors import is_uniform
from equipoise.theory.propagation.values.gradients import Behind, Gradient
from equipoise.theory.propagation.values.known import Known
from equipoise.theory.propagation.values.moments import Moments

# On larger maps what gradients and latents have in common is spread too thin to matter.
_MOST_POSITIONS = 256
# Linear ones keep a Gaussian Gaussian.
_AFFINE = {"add", "sub", "rsub", "mul", "div", "neg", "clone", "detach", "alias", "_to_copy"}


# PyTorch does not list these among its pointwise operators.
@rule("_prelu_kernel", "hardswish", "log_sigmoid_forward")
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
        found = operator(*arguments, **keywords)
        return torch.as_tensor(found[0] if isinstance(found, tuple) else found)

    result = elementwise(x, function, affine=call.node.name in _AFFINE)
    return replace(result, others=[(Known(output), None) for output in call.node.outputs[1:]])


@rule("rrelu_with_noise")
def random_slopes(call: Call) -> Result:
    """``nn.RReLU``, whose slopes are drawn: one of their mean square, in evaluation their mean.

    Two elements have the square of the slopes' mean in common, which is less by (b - a)²/12.
    """
    x, lower, upper = (call.argument(name) for name in ("self", "lower", "upper"))
    if not isinstance(x, Moments):
        raise UnpredictedError("a function of no moments")
    mean, spread = (lower + upper) / 2, (upper - lower) ** 2 / 12
    slope = float(np.sqrt(mean**2 + spread)) if call.argument("training") else mean
    result = elementwise(x, partial(torch.nn.functional.leaky_relu, negative_slope=slope))
    return replace(result, others=[(Known(output), None) for output in call.node.outputs[1:]])


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
    if np.ptp(slope) == 0 and np.array_equal(table, slope.flat[0] * x.table):
        output = replace(output, moved=(x, float(slope.flat[0])))
    if derivative is None and np.ptp(slope) > 0 and _is_average(x):
        try:
            drawn = draws.combined((x,), function, x.layout, x.order)
        except UnpredictedError:
            pass
        else:
            return Result(drawn, lambda gradient: Pulled(draws.pulled_back(drawn, gradient)))

    derivative_of_x = Derivative(x, slope)

    def pullback(gradient: Gradient) -> Pulled:
        return Pulled([(x, derivative_of_x.times(gradient))])

    return Result(output, pullback)


def _is_average(x: Moments) -> bool:
    """Whether it is made of several positions, on which their own derivatives depend, too.

    Such as a mean of powers, of which a root is taken.
    """
    move = None if x.moved is None else x.moved[1]
    if x.moved is None or not isinstance(move, np.ndarray) or draws.of_the_loss.get():
        return False
    if move.ndim == 1:
        return False
    before = x.moved[0]
    return not before.gaussian and before.positions <= draws.MOST_POSITIONS


@dataclass(frozen=True, eq=False)
class Derivative:
    """What gradients are multiplied with.

    Args:
        x: The input.
        slope: φ', a table of the latents of x.
    """

    x: Moments
    slope: np.ndarray

    def times(self, gradient: Gradient) -> Gradient:
        """The gradient at the input."""
        if gradient.draws is not None:
            return draws.through(self.x, self.slope, gradient)
        behind = gradient.behind
        if behind is not None and behind.latent == self.x.latent:
            # Slopes of one latent are not independent: a function of a function has their product.
            whole = Derivative(self.x, np.atleast_2d(self.slope * behind.slope))
            return whole._once(behind.gradient)
        return self._once(gradient)

    def _once(self, gradient: Gradient) -> Gradient:
        found = self._alone(gradient)
        return replace(found, behind=Behind(gradient, self.slope, self.x.latent))

    def _alone(self, gradient: Gradient) -> Gradient:
        x, slope, (_, weights) = self.x, self.slope, latent.nodes()
        square = slope**2 * gradient.weight
        gain = np.broadcast_to(square @ weights, x.positions)
        more = self._of_excess(gradient.excess)
        if self._is_constant:
            pairs = gradient.pairs * float(slope[0, 0] ** 2)
        else:
            pairs = gradient.pairs.times(self._pairs)
        if more is not None and not self._is_constant:
            pairs = pairs + more
        diagonal = gradient.pairs.diagonal
        np.fill_diagonal(pairs.same, diagonal * gain)
        share = diagonal[: len(square)] if len(square) > 1 else diagonal.mean(keepdims=True)
        average = share @ square / len(square)
        total = float(average @ weights)
        weight = average / total if total > 0 else np.ones_like(average)
        if self._is_constant:
            return Gradient(pairs, weight, more, orthogonal=gradient.orthogonal)
        return Gradient(pairs, weight, self._excess(gradient.pairs, pairs, more))

    def _of_excess(self, excess: Exchangeable | None) -> Exchangeable | None:
        """What a gradient had in common with the latents already, behind the derivative."""
        if excess is None:
            return None
        if self._is_constant:
            return excess * float(self.slope[0, 0] ** 2)
        return None if self._is_large else excess.times(self._along[1])

    def _excess(
        self, before: Exchangeable, after: Exchangeable, more: Exchangeable | None
    ) -> Exchangeable | None:
        """Π E[φ'(x₁)φ'(x₂)z₁z₂] less ρ times what came of Π, for latents z."""
        if self._is_large:
            return None
        along, rest = self._along
        found = before.times(rest)
        if more is not None:
            found = found + more.times(self.x.correlation) * -1.0
        np.fill_diagonal(found.same, before.diagonal * along.diagonal - after.diagonal)
        return found

    @property
    def _is_large(self) -> bool:
        return self.x.positions > _MOST_POSITIONS

    @cached_property
    def _is_constant(self) -> bool:
        return bool(np.ptp(self.slope) == 0)

    @cached_property
    def _pairs(self) -> Exchangeable:
        """E[φ'(x₁)φ'(x₂)]."""
        return self.x.averaged(self.slope)

    @cached_property
    def _along(self) -> tuple[Exchangeable, Exchangeable]:
        """E[φ'(x₁)φ'(x₂)z₁z₂], and by how much it exceeds E[φ'(x₁)φ'(x₂)] ρ."""
        x, n = self.x, self.x.dimensions
        along = x.averaged(self.slope * (latent.nodes()[0] if n is None else latent.on_sphere(n)))
        return along, along + self._pairs.times(x.correlation) * -1.0


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
