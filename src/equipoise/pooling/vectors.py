"""The last steps of second-order pooling: signed root and unit norm of vectors."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from equipoise.numerics.precision import at_least_float32, check_floating


def signed_sqrt(x: Tensor) -> Tensor:
    r"""Signed square root :math:`\mathrm{sgn}(x)\sqrt{|x|}` of every entry.

    The slope :math:`1/(2\sqrt{|x|})` is infinite at 0; there, and only there, it counts as 0.
    No constant is added under the root, so the smallest float16 keeps its digits; the largest
    slope is 2048 in float16 and 1.3e22 in float32.

    Args:
        x: Any shape and floating type.

    Returns:
        Shaped and typed as the input. Derivatives of every order are exact, and 0 at 0.

    Raises:
        TypeError: If the values are not of floating point.

    Examples:
        >>> x = torch.tensor([-4.0, 0.0, 9.0], requires_grad=True)
        >>> signed_sqrt(x).sum().backward()
        >>> signed_sqrt(x).tolist(), x.grad
        ([-2.0, 0.0, 3.0], tensor([0.2500, 0.0000, 0.1667]))

    References:
        [yu2020], the methods that RUN is compared with.
    """
    check_floating("values", x)
    # PyTorch does not annotate apply.
    return _SignedSqrt.apply(x)  # type: ignore[no-untyped-call, no-any-return]


class _SignedSqrt(torch.autograd.Function):
    """Saves only its output, where autograd saves the input, its sign and its root."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor) -> Tensor:
        """Take the root in place."""
        return x.abs().sqrt_().copysign_(x)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor], output: Tensor) -> None:
        """Save the output."""
        ctx.save_for_backward(output)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        """G/(2|y|), with |y| infinite where it is 0."""
        y: Tensor = ctx.saved_tensors[0]
        return gradient * (0.5 / y.abs().masked_fill(y == 0, math.inf))


def unit_norm(x: Tensor) -> Tensor:
    r"""Divide vectors by their Euclidean norm.

    Vectors are divided by their largest entry first, so the result is right at any scale of the
    type, such as 1e30 and 1e-30 in float32, and no constant is added to the norm. A zero vector
    has no direction: it stays zero, with gradient zero.

    Args:
        x: ``[..., n]``.

    Returns:
        Shaped and typed as the input; float16 and bfloat16 are computed in float32. A vector
        that is not finite gives NaN in its own entries only.

    Raises:
        TypeError: If the vectors are not of floating point.

    Examples:
        >>> unit_norm(torch.tensor([[3e30, -4e30], [0.0, 0.0]]))
        tensor([[ 0.6000, -0.8000],
                [ 0.0000,  0.0000]])
    """
    # PyTorch does not annotate apply.
    unit: Tensor = _UnitNorm.apply(at_least_float32(x))[0]  # type: ignore[no-untyped-call]
    return unit.to(x.dtype)


class _UnitNorm(torch.autograd.Function):
    """y = x/(c n), then n = ‖x/c‖, then c, the largest entry; infinite for a zero vector.

    Nothing depends on c, so it counts as constant: n is differentiable at fixed c.
    """

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Divide twice, so that no square leaves the range of the type."""
        largest = torch.linalg.vector_norm(x, math.inf, dim=-1, keepdim=True)
        scale = largest.masked_fill(largest == 0, math.inf)
        scaled = x / scale
        # That of a nonzero vector is at least 1 without the clamp.
        norm = torch.linalg.vector_norm(scaled, dim=-1, keepdim=True).clamp_min(1.0)
        return scaled / norm, norm, scale

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor], output: tuple[Tensor, ...]) -> None:
        """Save the outputs."""
        ctx.mark_non_differentiable(output[2])
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(*output)

    @staticmethod
    def backward(
        ctx: Any, of_unit: Tensor | None, of_norm: Tensor | None, _: Any
    ) -> Tensor | None:
        """((I - yyᵀ) G/n + y g)/c, with g the gradient of n."""
        y, norm, scale = ctx.saved_tensors
        found: Tensor | None = None
        if of_unit is not None:
            along = (of_unit * y).sum(-1, keepdim=True)
            found = torch.addcmul(of_unit, along, y, value=-1) / norm
        if of_norm is not None:
            found = of_norm * y if found is None else torch.addcmul(found, of_norm, y)
        return None if found is None else found / scale
