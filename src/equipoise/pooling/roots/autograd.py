r"""Autograd through f(A) = U f(Λ) Uᵀ, by divided differences instead of eigenvectors.

A counts through its symmetric part, so gradients are symmetric and right for any upstream
gradient. The derivative at A is a self-adjoint map: what pushes a direction forward also pulls a
gradient back. Each of the three functions here is the derivative of the one before it. None has a
forward mode (``jvp``), because torch.compile traces no function that has one.

Symbols: U, λ: eigenvectors and eigenvalues of sym(A), ascending; E, G: directions.
"""

from __future__ import annotations

from typing import Any, NoReturn

import torch
from torch import Tensor

from equipoise.numerics.precision import without_autocast
from equipoise.pooling.roots.curves import Curve, second_derivative
from equipoise.pooling.symmetric import symmetric_part


class SpectralFunction(torch.autograd.Function):
    """f of ``[..., D, D]`` matrices; further outputs are U and λ, for the derivatives alone."""

    generate_vmap_rule = True

    @staticmethod
    def forward(matrix: Tensor, curve: Curve) -> tuple[Tensor, Tensor, Tensor]:
        """Decompose and put together again."""
        with without_autocast(matrix.device):
            eigenvalues, U = _eigh(symmetric_part(matrix))
            values = curve.value(curve.nodes(eigenvalues))
            return (U * values[..., None, :]) @ U.mT, U, eigenvalues

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        """Save the decomposition, and the matrix for its place in the graph."""
        matrix, ctx.curve = inputs
        ctx.mark_non_differentiable(*output[1:])
        ctx.save_for_backward(matrix, *output[1:])

    @staticmethod
    def backward(ctx: Any, gradient: Tensor, *_: Any) -> tuple[Tensor, None]:
        """Df[G]."""
        matrix, U, eigenvalues = ctx.saved_tensors
        return _first(matrix, gradient, U, eigenvalues, ctx.curve), None


class _FirstDerivative(torch.autograd.Function):
    """Df[E] as a function of A and E."""

    generate_vmap_rule = True

    @staticmethod
    def forward(matrix: Tensor, E: Tensor, U: Tensor, eigenvalues: Tensor, curve: Curve) -> Tensor:
        """U (L ∘ Uᵀ sym(E) U) Uᵀ."""
        with without_autocast(matrix.device):
            slopes = curve.slopes(curve.nodes(eigenvalues))
            return _rotated(U.mT, slopes * _rotated(U, symmetric_part(E)))

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        """Save all."""
        *tensors, ctx.curve = inputs
        ctx.save_for_backward(*tensors)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        """D²f[E, G] for the matrix, Df[G] for the direction."""
        matrix, E, U, eigenvalues = ctx.saved_tensors
        of_matrix = of_direction = None
        if ctx.needs_input_grad[0]:
            of_matrix = _second(matrix, E, gradient, U, eigenvalues, ctx.curve)
        if ctx.needs_input_grad[1]:
            of_direction = _first(matrix, gradient, U, eigenvalues, ctx.curve)
        return of_matrix, of_direction, None, None, None


class _SecondDerivative(torch.autograd.Function):
    """D²f[E, G]; it depends on all three, so a third derivative is noticed and refused."""

    generate_vmap_rule = True

    @staticmethod
    def forward(
        matrix: Tensor, E: Tensor, G: Tensor, U: Tensor, eigenvalues: Tensor, curve: Curve
    ) -> Tensor:
        """The sum over triples of eigenvalues, in A's own coordinates."""
        with without_autocast(matrix.device):
            inside = (_rotated(U, symmetric_part(direction)) for direction in (E, G))
            return _rotated(U.mT, second_derivative(curve, curve.nodes(eigenvalues), *inside))

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        """Nothing: there is no backward pass."""

    @staticmethod
    def backward(ctx: Any, *_: Any) -> NoReturn:
        """Refuse.

        Raises:
            NotImplementedError: Always.
        """
        raise NotImplementedError(
            "third derivatives of matrix powers and logarithms are not available, only first and "
            "second ones; use sqrt_newton_schulz for a root that has all."
        )


def _first(matrix: Tensor, E: Tensor, U: Tensor, eigenvalues: Tensor, curve: Curve) -> Tensor:
    # PyTorch does not annotate apply, here and below.
    found: Tensor = _FirstDerivative.apply(matrix, E, U, eigenvalues, curve)  # type: ignore[no-untyped-call]
    return found


def _second(
    matrix: Tensor, E: Tensor, G: Tensor, U: Tensor, eigenvalues: Tensor, curve: Curve
) -> Tensor:
    found: Tensor = _SecondDerivative.apply(matrix, E, G, U, eigenvalues, curve)  # type: ignore[no-untyped-call]
    return found


def _eigh(matrix: Tensor) -> tuple[Tensor, Tensor]:
    """Eigenvalues ``[..., D]`` and eigenvectors; NaN for a matrix that is not finite.

    LAPACK refuses a whole batch because of one such matrix: it is replaced by zero meanwhile.
    """
    finite = matrix.isfinite().all(-1, keepdim=True).all(-2, keepdim=True)
    eigenvalues, U = torch.linalg.eigh(torch.where(finite, matrix, 0.0))
    return torch.where(finite[..., 0], eigenvalues, torch.nan), U


def _rotated(U: Tensor, matrix: Tensor) -> Tensor:
    """Uᵀ M U."""
    return U.mT @ matrix @ U
