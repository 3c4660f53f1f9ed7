r"""Powers and logarithms of symmetric positive semidefinite matrices by eigendecomposition.

.. math:: f(A) = U f(\Lambda) U^\top, \qquad
    \bar A = U \big(L \circ U^\top \mathrm{sym}(G)\, U\big) U^\top, \qquad
    L_{ij} = \frac{f(\lambda_i) - f(\lambda_j)}{\lambda_i - \lambda_j},
    \quad L_{ij} = f'(\lambda_i) \text{ on ties.}

Symbols: A: matrix ``[..., D, D]``, U, Λ: its eigenvectors and eigenvalues, G: gradient of the
loss with respect to f(A), Ā: with respect to A.

References:
    [yu2020], the methods that RUN is compared with.
"""

from __future__ import annotations

from torch import Tensor

from equipoise.numerics.precision import at_least_float32
from equipoise.pooling.roots.autograd import SpectralFunction
from equipoise.pooling.roots.curves import Curve, Logarithm, Power
from equipoise.pooling.symmetric import check_square


def matrix_power(
    matrix: Tensor, exponent: float = 0.5, *, relative_cutoff: float | None = None
) -> Tensor:
    r"""Power of symmetric positive semidefinite matrices, differentiable at any spectrum.

    .. math:: A^p = U \Lambda^p U^\top

    Gradients are those of divided differences, which exist where eigenvalues coincide. Where A is
    singular the power with p < 1 has no derivative: eigenvalues up to ``relative_cutoff`` times
    the largest count as zero, and the infinite slope between two of them counts as 0. The
    gradient is then exact for changes that keep the rank, as when A = FᵀF with F of full row
    rank.

    Args:
        matrix: A, ``[..., D, D]``; its symmetric part counts, negative eigenvalues count as 0.
        exponent: p, above 0.
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
        >>> import torch
        >>> matrix_power(torch.tensor([[5.0, 4.0], [4.0, 5.0]])).round(decimals=4)
        tensor([[2., 1.],
                [1., 2.]])

    References:
        [yu2020], the methods that RUN is compared with.
    """
    if not exponent > 0:
        raise ValueError(
            f"exponent must be above 0, got {exponent}: a singular matrix has no other powers. "
            "log_euclidean is the limit at 0."
        )
    if relative_cutoff is not None and not 0 <= relative_cutoff < 1:
        raise ValueError(f"relative_cutoff must lie in [0, 1), got {relative_cutoff}.")
    return _spectral(matrix, Power(exponent, relative_cutoff))


def sqrt_eigh(matrix: Tensor, *, relative_cutoff: float | None = None) -> Tensor:
    r"""Square root of symmetric positive semidefinite matrices: :func:`matrix_power` at ½.

    Here :math:`L_{ij} = 1/(\sqrt{\lambda_i} + \sqrt{\lambda_j})`, without differences.

    Args:
        matrix: A, ``[..., D, D]``.
        relative_cutoff: As in :func:`matrix_power`.

    Returns:
        The root, shaped and typed as the input.

    Raises:
        ValueError: If the matrices are not square, or the cut-off is out of range.
        TypeError: If the matrices are not of floating point.

    Examples:
        >>> import torch
        >>> A = torch.eye(2, requires_grad=True)  # a tie: through eigenvectors this is NaN
        >>> sqrt_eigh(A).sum().backward()
        >>> A.grad
        tensor([[0.5000, 0.5000],
                [0.5000, 0.5000]])
    """
    return matrix_power(matrix, relative_cutoff=relative_cutoff)


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
        >>> import torch
        >>> log_euclidean(torch.eye(2, dtype=torch.float64), eps=1.0)
        tensor([[0.6931, 0.0000],
                [0.0000, 0.6931]], dtype=torch.float64)

    References:
        [yu2020], the methods that RUN is compared with.
    """
    if not eps > 0:
        raise ValueError(
            f"eps must be above 0, got {eps}: features with fewer positions than channels give "
            "singular matrices, whose logarithm is infinite."
        )
    return _spectral(matrix, Logarithm(eps))


def _spectral(matrix: Tensor, curve: Curve) -> Tensor:
    check_square(matrix)
    # apply is not annotated in PyTorch, here and below.
    value, _, _ = SpectralFunction.apply(at_least_float32(matrix), curve)  # type: ignore[no-untyped-call]
    return value.to(matrix.dtype)  # type: ignore[no-any-return]
