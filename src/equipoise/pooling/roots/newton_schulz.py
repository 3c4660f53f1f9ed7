r"""Matrix square root by a few steps of Newton and Schulz, as iSQRT takes it.

The coupled recurrence :math:`T = \frac12(3I - ZY),\ Y \leftarrow YT,\ Z \leftarrow TZ` from
:math:`Y = A/c,\ Z = I` consists of polynomials in A, which commute. With :math:`M = ZY` it is

.. math:: Y \leftarrow YT, \qquad M \leftarrow (MT)\,T, \qquad T = \tfrac12(3I - M), \qquad
          Y_0 = M_0 = A/c,

in as many products, each of them one fused call. A polynomial's derivative at a symmetric matrix
is a self-adjoint map, so the gradient is G pushed *forward*,

.. math:: \dot Y \leftarrow \dot Y T - \tfrac12 Y\dot M, \qquad
          \dot M \leftarrow \tfrac14\big(9\dot M - 6(X + X^\top) + MX + (MX)^\top + XM\big),
          \qquad X = M\dot M .

For K steps this takes 6K - 6 products, as autograd does, but saves K matrices, the M and the
root, where autograd saves 3K - 1.

Symbols: A: symmetric matrix ``[batch, D, D]``; c: its trace or Frobenius norm; K: number of
steps; G: gradient of the loss with respect to the root; a dot: a directional derivative.

References:
    [li2018], Algorithm 1, for the method; [yu2020] compares RUN with it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import torch
from torch import Tensor

from equipoise.numerics.checks import check_choice, check_size
from equipoise.numerics.precision import at_least_float32, without_autocast
from equipoise.pooling.matrices import check_square, symmetric_part

Prenormalise = Literal["trace", "frobenius"]


def sqrt_newton_schulz(
    matrix: Tensor,
    *,
    iterations: int = 5,
    prenormalise: Prenormalise = "trace",
    plain: bool = False,
) -> Tensor:
    r"""Approximate square root of symmetric positive semidefinite matrices (iSQRT).

    .. math:: \sqrt c\; Y_K, \qquad Y_{k+1} = Y_k T_k, \quad Z_{k+1} = T_k Z_k, \quad
              T_k = \tfrac12(3I - Z_k Y_k), \quad Y_0 = A/c, \quad Z_0 = I .

    Five steps are not converged: an eigenvalue λ far below c comes out as
    :math:`(3/2)^K\lambda/\sqrt c` instead of :math:`\sqrt\lambda`. The gradient is exact for
    what is computed, and exists at singular matrices too.

    Args:
        matrix: A, ``[..., D, D]``; its symmetric part counts.
        iterations: K, at least 1.
        prenormalise: c, the trace or the Frobenius norm. With the norm eigenvalues start closer
            to 1, so the same number of steps comes closer to the root.
        plain: Differentiate by autograd alone, which keeps three times as many matrices and is
            no faster. Needed for forward-mode derivatives, as ``torch.func.jvp`` takes them.

    Returns:
        The root, shaped and typed as the input; float16 and bfloat16 are computed in float32.
        A zero matrix gives zero with gradient zero. A matrix that is not finite gives NaN and
        leaves the others of its batch alone.

    Raises:
        ValueError: If the matrices are not square, or an argument is out of range.
        TypeError: If the matrices are not of floating point.

    Note:
        Derivatives of every order are exact. Works inside ``torch.compile(fullgraph=True)``;
        ``torch.func.grad`` and ``vmap`` need no ``plain``.

    Examples:
        >>> A = torch.tensor([[5.0, 4.0], [4.0, 5.0]])
        >>> sqrt_newton_schulz(A, iterations=20).round(decimals=4)
        tensor([[2., 1.],
                [1., 2.]])
        >>> sqrt_newton_schulz(A, iterations=1)  # √10 · A/10 · (3I - A/10)/2
        tensor([[1.7234, 1.2649],
                [1.2649, 1.7234]])

    References:
        [li2018], Algorithm 1; [yu2020], the methods that RUN is compared with.
    """
    check_square(matrix)
    check_size(iterations=iterations)
    check_choice("prenormalise", prenormalise, ("trace", "frobenius"))
    batch = at_least_float32(matrix).reshape(-1, *matrix.shape[-2:])
    if plain:
        with without_autocast(matrix.device):
            root, *_ = _forward(batch, iterations, prenormalise)
    else:
        # PyTorch does not annotate apply.
        root, *_ = _NewtonSchulz.apply(batch, iterations, prenormalise)  # type: ignore[no-untyped-call]
    return root.reshape(matrix.shape).to(matrix.dtype)


class _NewtonSchulz(torch.autograd.Function):
    """The root, then M_1, …, M_{K-1} for the backward pass only.

    Under ``create_graph`` they are computed again from the matrix: saved ones carry no graph, so
    second derivatives would silently be wrong.
    """

    generate_vmap_rule = True

    @staticmethod
    def forward(matrix: Tensor, iterations: int, prenormalise: Prenormalise) -> tuple[Tensor, ...]:
        """Compute as the plain path does."""
        with without_autocast(matrix.device):
            return _forward(matrix, iterations, prenormalise)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        """Save input and outputs."""
        matrix, ctx.iterations, ctx.prenormalise = inputs
        ctx.mark_non_differentiable(*output[1:])
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(matrix, *output)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor | None, *_: Any) -> tuple[Tensor | None, None, None]:
        """Differentiate √c Y_K(A/c), including c."""
        if gradient is None:
            return None, None, None
        matrix, *output = ctx.saved_tensors
        with without_autocast(matrix.device):
            if torch.is_grad_enabled():
                output = _forward(matrix, ctx.iterations, ctx.prenormalise)
            return _pull_back(gradient, matrix, output, ctx.prenormalise), None, None


def _forward(matrix: Tensor, iterations: int, prenormalise: Prenormalise) -> tuple[Tensor, ...]:
    """The root and M_1, …, M_{K-1}."""
    M, c = _normalised(matrix, prenormalise)
    Y = U = _step(M, M)
    squares = []
    for k in range(1, iterations):
        M = _step(U, M)
        squares.append(M)
        Y = _step(Y, M)
        if k < iterations - 1:
            U = _step(M, M)
    return torch.where(c == 0, 0.0, _nonzero(c).sqrt()) * Y, *squares


def _pull_back(
    gradient: Tensor, matrix: Tensor, output: Sequence[Tensor], prenormalise: Prenormalise
) -> Tensor:
    r"""With P the gradient with respect to M_0: :math:`(P + (½⟨G, Y⟩ - ⟨P, M_0⟩) c')/\sqrt c`."""
    root, *squares = output
    M, c = _normalised(matrix, prenormalise)
    scale = torch.where(c == 0, 0.0, _nonzero(c).rsqrt())
    P = _push_forward(symmetric_part(gradient), M, squares)
    radial = 0.5 * scale * _inner(gradient, root) - _inner(P, M)
    if prenormalise == "trace":
        slope = torch.eye(M.shape[-1], dtype=M.dtype, device=M.device)
    else:
        slope = M
    return scale * (P + radial * slope)


def _push_forward(direction: Tensor, M: Tensor, squares: Sequence[Tensor]) -> Tensor:
    """Ẏ_K for Ṁ_0 = Ẏ_0 = direction; M is M_0, which is Y_0."""
    dM = direction
    X = torch.bmm(M, dM)
    Y, dY = M, 1.5 * dM - 0.5 * (X + X.mT)
    for k, following in enumerate(squares):
        if k > 0:
            X = torch.bmm(M, dM)
        dM = _next_direction(dM, M, X)
        Y, M = _step(Y, M), following
        dY = torch.baddbmm(_step(dY, M), Y, dM, alpha=-0.5)
    return dY


def _next_direction(dM: Tensor, M: Tensor, X: Tensor) -> Tensor:
    """¼ (9 Ṁ + XM + R + Rᵀ), R = MX - 6X."""
    R = torch.baddbmm(X, M, X, beta=-1.5, alpha=0.25)
    return torch.baddbmm(dM, X, M, beta=2.25, alpha=0.25) + R + R.mT


def _step(X: Tensor, M: Tensor) -> Tensor:
    """X (3I - M)/2."""
    return torch.baddbmm(X, X, M, beta=1.5, alpha=-0.5)


def _normalised(matrix: Tensor, prenormalise: Prenormalise) -> tuple[Tensor, Tensor]:
    """A/c and c ``[batch, 1, 1]``; 0 and 0 for a zero matrix."""
    A = symmetric_part(matrix)
    if prenormalise == "trace":
        c = A.diagonal(dim1=-2, dim2=-1).sum(-1)[..., None, None]
    else:
        # Dividing by the largest entry keeps squares in range; it cancels, so it is detached.
        largest = A.detach().abs().amax((-2, -1), keepdim=True)
        c = largest * torch.linalg.vector_norm(A / _nonzero(largest), dim=(-2, -1), keepdim=True)
    return A / _nonzero(c), c


def _nonzero(x: Tensor) -> Tensor:
    return torch.where(x == 0, 1.0, x)


def _inner(one: Tensor, other: Tensor) -> Tensor:
    return (one * other).sum((-2, -1), keepdim=True)
