r"""Condition numbers of Hessian blocks.

Symbols: Ĥ = [e, H]: extended features; S: curvature of the loss; P = UD: centring and scaling;
Ĝ = ĤP; κ: largest over smallest *nonzero* singular value; α: learning rate; λ: eigenvalues of the
Hessian.

References:
    [lange2022], Theorem 1, Proposition 11.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from equipoise.numerics.options import named_options
from equipoise.preconditioners.hessian.blocks import HessianBlock, weighted_gram
from equipoise.preconditioners.hessian.preconditioner import Preconditioner, preconditioner

_UNIT = torch.finfo(torch.float64).eps


@dataclass(frozen=True, slots=True)
class Condition:
    """A condition number with the rank that it belongs to.

    Args:
        value: Largest over smallest singular value that is not zero to rounding; nan for a
            matrix of zeros.
        error: Bound on what rounding of the matrix does to the value.
        rank: Number of singular values that are not zero to rounding.
        shape: Rows and columns of the matrix.
    """

    value: float
    error: float
    rank: int
    shape: tuple[int, int]

    @property
    def full_column_rank(self) -> bool:
        """Whether the matrix has no null space."""
        return self.rank == self.shape[1]


@dataclass(frozen=True, slots=True)
class BlockConditions:
    r"""Condition numbers of :math:`\hat H^TS\hat H` and its factors, raw and preconditioned.

    Args:
        raw: Of the Hessian block ĤᵀSĤ.
        preconditioned: Of ĜᵀSĜ.
        features: Of Ĥ.
        normalised: Of Ĝ.
        curvature: Of S, which no preconditioner changes.
        transform: Of P.
        scaling: κ(D).
        negative: Number of negative eigenvalues of S; with any, the loss is not convex in the
            unit's parameters.
    """

    raw: Condition
    preconditioned: Condition
    features: Condition
    normalised: Condition
    curvature: Condition
    transform: Condition
    scaling: float
    negative: int

    @property
    def comparable(self) -> bool:
        """Whether both blocks have full rank; otherwise their ratio means little."""
        return self.raw.full_column_rank and self.preconditioned.full_column_rank

    @property
    def gain(self) -> float:
        """Factor by which P improves the Hessian's condition number."""
        return self.raw.value / self.preconditioned.value

    @property
    def promised_gain(self) -> float:
        """κ(D)², the gain that the paper announces; neither an estimate nor a bound."""
        return self.scaling**2

    @property
    def largest_gain(self) -> float:
        """κ(P)², which bounds the gain where the block is comparable."""
        return self.transform.value**2

    @property
    def positive(self) -> bool:
        """Whether S is positive definite."""
        return self.negative == 0 and self.curvature.full_column_rank

    @property
    def product_bound(self) -> float:
        """κ(Ĥ)²κ(S), which bounds κ(ĤᵀSĤ) if S is positive definite (Proposition 11).

        It is no bound for a singular S, the usual case with ReLU.
        """
        return self.features.value**2 * self.curvature.value


@named_options
def condition(matrix: Tensor, *, rounding: float = _UNIT, terms: int = 1) -> Condition:
    r"""Condition number on the range of a matrix.

    Rounding moves every singular value by at most :math:`\tau\sigma_{max}`,
    :math:`\tau = \max(m, n, terms)u`. Values up to that count as zero, and the others leave an
    error of :math:`\kappa\tau(1 + \kappa)/(1 - \kappa\tau)`.

    Args:
        matrix: Shape ``[m, n]``, finite.
        rounding: u, unit roundoff of the type in which the entries were computed.
        terms: Length of the sums that the entries are; 1 for data.

    Raises:
        ValueError: If the matrix is not a finite one.

    Examples:
        >>> found = condition(torch.tensor([[2.0, 0.0], [0.0, 0.0]]))
        >>> found.value, found.rank
        (1.0, 1)
    """
    if matrix.ndim != 2 or not bool(torch.isfinite(matrix).all()):
        raise ValueError(f"need a matrix of finite numbers, got shape {tuple(matrix.shape)}.")
    rows, columns = matrix.shape
    values = torch.linalg.svdvals(matrix.detach().double())
    return _of_singular_values(values, (rows, columns), max(rows, columns, terms) * rounding)


def _of_singular_values(values: Tensor, shape: tuple[int, int], tolerance: float) -> Condition:
    largest = float(values.max()) if len(values) else 0.0
    kept = values[values > tolerance * largest]
    if not len(kept):
        return Condition(math.nan, math.nan, 0, shape)
    value = largest / float(kept.min())
    left = 1 - value * tolerance
    error = value * tolerance * (1 + value) / left if left > 0 else math.inf
    return Condition(value, error, len(kept), shape)


@named_options
def block_conditions(
    block: HessianBlock, transform: Preconditioner | None = None
) -> BlockConditions:
    """Conditioning of a Hessian block before and after preconditioning.

    Args:
        block: From :func:`hessian_block`. Give it several times as many rows as columns; with
            fewer, ranks differ and the numbers are hard to compare.
        transform: P; by default that of the block's own statistics with ε = 0.

    Examples:
        >>> from equipoise.preconditioners import hessian_block
        >>> layer = torch.nn.Linear(1, 1).double()
        >>> x = torch.tensor([[0.0], [2.0], [100.0]], dtype=torch.float64)
        >>> found = block_conditions(hessian_block(layer, lambda: layer(x).square().mean()))
        >>> round(found.raw.value), round(found.preconditioned.value, 12)
        (5105, 1.0)

    References:
        [lange2022], Theorem 3 and Figure 8.
    """
    transform = transform or preconditioner(block.statistics(), bias=block.bias)
    normalised, u = transform.normalise(block.features), block.rounding
    after = weighted_gram(normalised, block.curvature)
    eigenvalues, scaling = torch.linalg.eigvalsh(block.curvature).flatten(), transform.scaling()
    size = len(eigenvalues)
    return BlockConditions(
        raw=condition(block.matrix(), rounding=u, terms=size),
        preconditioned=condition(after, rounding=u, terms=size),
        features=condition(block.features, rounding=u),
        normalised=condition(normalised, rounding=u),
        curvature=_of_singular_values(eigenvalues.abs(), (size, size), size * u),
        transform=condition(transform.matrix()),
        scaling=float(scaling.max() / scaling.min()),
        negative=int((eigenvalues < -size * u * eigenvalues.abs().max()).sum()),
    )
