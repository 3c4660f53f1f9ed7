r"""Powers and logarithms of symmetric positive semidefinite matrices by eigendecomposition.

.. math:: f(A) = U f(\Lambda) U^\top, \qquad
    \bar A = U \big(L \circ U^\top \mathrm{sym}(G)\, U\big) U^\top, \qquad
    L_{ij} = \frac{f(\lambda_i) - f(\lambda_j)}{\lambda_i - \lambda_j},
    \quad L_{ij} = f'(\lambda_i) \text{ on ties.}

A counts through its symmetric part, so gradients are symmetric and right for any upstream
gradient. The derivative at A is a self-adjoint map, so one function serves forward and backward:
each of the three autograd functions below is the derivative of the one before it. None has a
forward mode (``jvp``), because torch.compile traces no function that has one.

Symbols: A: matrix ``[..., D, D]``, U, Λ: eigenvectors and ascending eigenvalues of its symmetric
part, G: gradient of the loss with respect to f(A), Ā: with respect to A, E: a direction.

References:
    [yu2020], the methods that RUN is compared with.
"""

from __future__ import annotations

from typing import Any, NoReturn

import torch
from torch import Tensor

from equipoise.numerics.checks import check_within
from equipoise.numerics.precision import at_least_float32, without_autocast
from equipoise.pooling.matrices import check_square, symmetric_part
from equipoise.pooling.roots.divided_differences import (
    Curve,
    Logarithm,
    Power,
    second_derivative,
)


def matrix_power(
    matrix: Tensor, exponent: float = 0.5, *, relative_cutoff: float | None = None
) -> Tensor:
    r"""Power of symmetric positive semidefinite matrices, differentiable at any spectrum.

    .. math:: A^p = U \Lambda^p U^\top

    Gradients are those of divided differences, which exist where eigenvalues coincide; for p = ½,
    :math:`L_{ij} = 1/(\sqrt{\lambda_i} + \sqrt{\lambda_j})`, without differences. Where A is
    singular the power with p < 1 has no derivative: eigenvalues up to ``relative_cutoff`` times
    the largest count as zero, and the infinite slope between two of them counts as 0. The
    gradient is then exact for changes that keep the rank, as when A = FᵀF with F of full row
    rank.

    Args:
        matrix: A, ``[..., D, D]``; its symmetric part counts, negative eigenvalues count as 0.
        exponent: p, above 0; by default the square root.
        relative_cutoff: In [0, 1); by default D roundings of float32, or of float64 there.

    Returns:
        The power, shaped and typed as the input; float16 and bfloat16 are computed in float32.
        A zero matrix gives zero with gradient zero. A matrix with NaN or infinite entries gives
        NaN and leaves the others of its batch alone.

    Raises:
        ValueError: If the matrices are not square, or an argument is out of range.
        TypeError: If the matrices are not of floating point.

    Note:
        First and second derivatives are exact, third ones are refused. Works inside
        ``torch.compile(fullgraph=True)`` and under ``torch.func``.

    Examples:
        >>> matrix_power(torch.tensor([[5.0, 4.0], [4.0, 5.0]])).round(decimals=4)
        tensor([[2., 1.],
                [1., 2.]])
        >>> A = torch.eye(2, requires_grad=True)  # a tie: through eigenvectors this is NaN
        >>> matrix_power(A).sum().backward()
        >>> A.grad
        tensor([[0.5000, 0.5000],
                [0.5000, 0.5000]])

    References:
        [yu2020], the methods that RUN is compared with.
    """
    check_within("exponent", exponent, "(0, inf]", "log_euclidean is the limit at 0.")
    if relative_cutoff is not None:
        check_within("relative_cutoff", relative_cutoff, "[0, 1)")
    return _spectral(matrix, Power(exponent, relative_cutoff))


def log_euclidean(matrix: Tensor, *, eps: float) -> Tensor:
    r"""Logarithm of symmetric positive semidefinite matrices.

    .. math:: U \log(\Lambda + \varepsilon) U^\top

    Args:
        matrix: A, ``[..., D, D]``; its symmetric part counts, negative eigenvalues count as 0.
        eps: ε, above 0, in the units of A. Gradients reach 1/ε where A is singular.

    Returns:
        The logarithm, shaped and typed as the input; see :func:`matrix_power` for precision,
        broken matrices and derivatives.

    Raises:
        ValueError: If the matrices are not square, or ε is not above 0.
        TypeError: If the matrices are not of floating point.

    Examples:
        >>> log_euclidean(torch.eye(2, dtype=torch.float64), eps=1.0)
        tensor([[0.6931, 0.0000],
                [0.0000, 0.6931]], dtype=torch.float64)

    References:
        [yu2020], the methods that RUN is compared with.
    """
    check_within("eps", eps, "(0, inf]", "Singular matrices have no logarithm.")
    return _spectral(matrix, Logarithm(eps))


def _spectral(matrix: Tensor, curve: Curve) -> Tensor:
    check_square(matrix)
    # PyTorch does not annotate apply, here and below.
    value, _, _ = _SpectralFunction.apply(at_least_float32(matrix), curve)  # type: ignore[no-untyped-call]
    return value.to(matrix.dtype)  # type: ignore[no-any-return]


class _SpectralFunction(torch.autograd.Function):
    """f of ``[..., D, D]`` matrices; U and λ are further outputs, for the derivatives only."""

    generate_vmap_rule = True

    @staticmethod
    def forward(matrix: Tensor, curve: Curve) -> tuple[Tensor, Tensor, Tensor]:
        """Decompose, apply f to the eigenvalues, and compose."""
        with without_autocast(matrix.device):
            eigenvalues, U = _eigh(symmetric_part(matrix))
            values = curve.value(curve.nodes(eigenvalues))
            return (U * values[..., None, :]) @ U.mT, U, eigenvalues

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        """Save the decomposition, and the matrix so that derivatives reach it."""
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
    """D²f[E, G]; a function of its own, so that third derivatives are refused."""

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
        """Save nothing: there is no backward pass."""

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
    found: Tensor = _FirstDerivative.apply(matrix, E, U, eigenvalues, curve)  # type: ignore[no-untyped-call]
    return found


def _second(
    matrix: Tensor, E: Tensor, G: Tensor, U: Tensor, eigenvalues: Tensor, curve: Curve
) -> Tensor:
    found: Tensor = _SecondDerivative.apply(matrix, E, G, U, eigenvalues, curve)  # type: ignore[no-untyped-call]
    return found


def _eigh(matrix: Tensor) -> tuple[Tensor, Tensor]:
    """Eigenvalues ``[..., D]`` and eigenvectors; NaN for a matrix that is not finite.

    LAPACK refuses a whole batch because of one such matrix, so it is replaced by zero first.
    """
    finite = matrix.isfinite().all(-1, keepdim=True).all(-2, keepdim=True)
    eigenvalues, U = torch.linalg.eigh(torch.where(finite, matrix, 0.0))
    return torch.where(finite[..., 0], eigenvalues, torch.nan), U


def _rotated(U: Tensor, matrix: Tensor) -> Tensor:
    """Uᵀ M U."""
    return U.mT @ matrix @ U
