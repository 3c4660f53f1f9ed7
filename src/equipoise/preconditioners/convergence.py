r"""What conditioning promises gradient descent, and under which hypotheses it does.

A theorem is a function that evaluates both sides of its inequalities and says whether its
hypotheses hold, so that the cases it does not cover are seen and not hidden.

Symbols: Ĥ = [e, H]: extended features, N rows and n + 1 columns; S: curvature of the loss; P = UD:
centring and scaling; Ĝ = ĤP; κ: largest over smallest *nonzero* singular value; α: learning rate;
λ: eigenvalues of the Hessian; q²: the estimate of ‖Ĝ‖²/N.

References:
    [lange2022], Theorems 1 and 4, Propositions 5 and 11.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from equipoise.preconditioners.hessian_blocks import (
    HessianBlock,
    Preconditioner,
    column_statistics,
    extended,
    preconditioner,
    weighted_gram,
)

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
        """Whether no direction of the parameters is lost."""
        return self.rank == self.shape[1]


@dataclass(frozen=True, slots=True)
class BlockConditions:
    r"""Condition numbers of everything that :math:`\hat H^TS\hat H` is made of.

    Args:
        raw: Of the Hessian block ĤᵀSĤ.
        preconditioned: Of ĜᵀSĜ.
        features: Of Ĥ.
        normalised: Of Ĝ.
        curvature: Of S, which no preconditioner changes.
        transform: Of P.
        scaling: κ(D).
        negative: Negative eigenvalues of S; with any, the block is not a convex problem's.
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
        """Whether both condition numbers count all directions; otherwise gains mean little."""
        return self.raw.full_column_rank and self.preconditioned.full_column_rank

    @property
    def gain(self) -> float:
        """Factor by which P improves the Hessian's condition number."""
        return self.raw.value / self.preconditioned.value

    @property
    def promised_gain(self) -> float:
        """κ(D)², the gain that the paper speaks of; neither an estimate nor a bound."""
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

        For singular S, usual with ReLU, it does not.
        """
        return self.features.value**2 * self.curvature.value


@dataclass(frozen=True, slots=True)
class Theorem4:
    r"""Both sides of κ(ĤU) ≤ κ(Ĥ) and of κ(Ĝ) ≤ √(n+1) κ(ĤUD₀).

    Args:
        raw: κ(Ĥ).
        centred: κ(ĤU).
        normalised: κ(Ĝ) = κ(ĤUD).
        alternative: κ(ĤUD₀) of another diagonal scaling.
        strict: Whether centring is promised to improve strictly: μ is neither zero nor
            orthogonal to the first principal component.
    """

    raw: Condition
    centred: Condition
    normalised: Condition
    alternative: Condition
    strict: bool

    @property
    def applies(self) -> bool:
        """Full column rank, which takes N ≥ n + 1 rows; without it both claims may fail."""
        return self.raw.full_column_rank

    @property
    def centring_holds(self) -> bool:
        """κ(ĤU) ≤ κ(Ĥ) up to rounding."""
        return self.centred.value <= self.raw.value + self.raw.error + self.centred.error

    @property
    def scaling_holds(self) -> bool:
        """κ(Ĝ) ≤ √(n+1) κ(ĤUD₀) up to rounding."""
        factor = math.sqrt(self.raw.shape[1])
        bound = factor * (self.alternative.value + self.alternative.error)
        return self.normalised.value <= bound + self.normalised.error


@dataclass(frozen=True, slots=True)
class LocalRate:
    r"""Local linear convergence of gradient descent.

    Args:
        rate: r, the factor by which the distance to the nearest minimiser shrinks per step.
        smallest: Smallest eigenvalue that is not zero to rounding.
        largest: Largest eigenvalue.
        flat: Directions without curvature; they must be those along the manifold of minimisers,
            which the Hessian cannot show.
    """

    rate: float
    smallest: float
    largest: float
    flat: int

    @property
    def converges(self) -> bool:
        """Whether r < 1; then 0 < α < 2/λ_max and no eigenvalue is negative."""
        return self.rate < 1

    @property
    def best_learning_rate(self) -> float:
        """α = 2/(λ*_min + λ_max), at which r = (κ - 1)/(κ + 1)."""
        return 2 / (self.smallest + self.largest) if self.smallest > 0 else math.nan


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
    return _condition(values, (rows, columns), max(rows, columns, terms) * rounding)


def _condition(values: Tensor, shape: tuple[int, int], tolerance: float) -> Condition:
    largest = float(values.max()) if len(values) else 0.0
    kept = values[values > tolerance * largest]
    if not len(kept):
        return Condition(math.nan, math.nan, 0, shape)
    value = largest / float(kept.min())
    left = 1 - value * tolerance
    error = value * tolerance * (1 + value) / left if left > 0 else math.inf
    return Condition(value, error, len(kept), shape)


def block_conditions(
    block: HessianBlock, transform: Preconditioner | None = None
) -> BlockConditions:
    """Conditioning of a Hessian block before and after preconditioning.

    Args:
        block: From :func:`hessian_block`. Several times as many rows as columns are needed for
            numbers that mean much.
        transform: P; by default that of the block's own statistics with ε = 0.

    Examples:
        >>> curvature, x = torch.ones(3, 1, 1).double(), torch.tensor([[0.0], [2.0], [100.0]])
        >>> found = block_conditions(HessianBlock(extended(x), curvature, True, 2.2e-16))
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
        curvature=_condition(eigenvalues.abs(), (size, size), size * u),
        transform=condition(transform.matrix()),
        scaling=float(scaling.max() / scaling.min()),
        negative=int((eigenvalues < -size * u * eigenvalues.abs().max()).sum()),
    )


def theorem_4(features: Tensor, *, scaling: Tensor | None = None) -> Theorem4:
    r"""Check that centring and scaling improve [e, H], and that they have to.

    Args:
        features: H, shape ``[N, n]``.
        scaling: Diagonal of D₀, shape ``[n + 1]``, without zeros; ones by default.

    Raises:
        ValueError: If D₀ is singular, or of the wrong size.

    Examples:
        >>> check = theorem_4(2 * torch.eye(2))  # two rows, three columns
        >>> check.applies, round(check.raw.value, 4), round(check.centred.value, 4)
        (False, 1.2247, 1.4142)

    References:
        [lange2022], Theorem 4; its Figure 8 has 60 rows and 101 columns.
    """
    raw = extended(features)
    ones = raw.new_ones(raw.shape[1])
    scaling = ones if scaling is None else scaling.detach().double()
    if scaling.shape != ones.shape or not bool((scaling != 0).all()):
        raise ValueError(f"scaling must hold {len(ones)} numbers without a zero, got {scaling}.")
    statistics = column_statistics(features)
    centred = Preconditioner(statistics.mean, ones[1:]).normalise(raw)
    return Theorem4(
        raw=condition(raw),
        centred=condition(centred),
        normalised=condition(preconditioner(statistics).normalise(raw)),
        alternative=condition(centred * scaling),
        strict=_promises_strictness(centred[:, 1:], statistics.mean),
    )


def _promises_strictness(centred: Tensor, mean: Tensor) -> bool:
    """Whether μᵀx ≠ 0 for the first principal component x."""
    _, values, vectors = torch.linalg.svd(centred, full_matrices=False)
    tolerance = max(centred.shape) * _UNIT
    if float(values[0]) ** 2 <= len(centred):
        part = mean  # the column of ones is the longest direction, any μ tilts it
    else:
        part = vectors[values >= (1 - tolerance) * values[0]] @ mean
    return bool(part.norm() > tolerance * (mean.norm() + centred.abs().max()))


def local_rate(hessian: Tensor, learning_rate: float) -> LocalRate:
    r"""Rate at which gradient descent approaches a manifold of minimisers.

    .. math:: r = \max(|1 - \alpha\lambda^*_{min}|, |1 - \alpha\lambda_{max}|)

    with :math:`\lambda^*_{min}` the smallest eigenvalue that is not zero. Valid only where
    r < 1, and at the minimiser nearest to the iterate: it changes along the manifold.

    Args:
        hessian: At a minimiser, symmetric.
        learning_rate: α, positive.

    Raises:
        ValueError: If the learning rate is not positive or the Hessian is zero.

    Examples:
        >>> local_rate(torch.diag(torch.tensor([4.0, 1.0, 0.0])), 0.4)
        LocalRate(rate=0.6..., smallest=1.0, largest=4.0, flat=1)

    References:
        [lange2022], Theorem 1.
    """
    if not learning_rate > 0:
        raise ValueError(f"learning_rate must be positive, got {learning_rate}.")
    eigenvalues = torch.linalg.eigvalsh(hessian.detach().double())
    noise = len(hessian) * _UNIT * eigenvalues.abs().max()
    kept = eigenvalues[eigenvalues.abs() > noise]
    if not len(kept):
        raise ValueError("the Hessian is zero: there is no direction to converge in.")
    rate = float((1 - learning_rate * kept).abs().max())
    return LocalRate(rate, float(kept.min()), float(kept.max()), len(eigenvalues) - len(kept))


def norm_estimate(columns: int, samples: int, *, positions: int = 1) -> float:
    r"""The estimate :math:`q^2 = \max\{n/N, \sqrt{rs}\}` of ‖Ĝ‖²/N.

    Args:
        columns: n, features, or channels times taps of a convolution.
        samples: N.
        positions: rs, output positions of a convolution; 1 for a dense layer.

    Raises:
        ValueError: If a number is not positive.

    Examples:
        >>> norm_estimate(784, 60)
        13.06...
        >>> norm_estimate(9, 60, positions=784)
        28.0

    References:
        [lange2022], Proposition 5 and Section 4.
    """
    if min(columns, samples, positions) < 1:
        raise ValueError(f"need positive numbers, got {columns}, {samples} and {positions}.")
    return max(columns / samples, math.sqrt(positions))


def norm_ratio(normalised: Tensor, samples: int) -> float:
    r"""How well q² describes Ĝ: :math:`\|\hat G\|/(q\sqrt N)`.

    Between 1 and 2 for independent entries with enough moments; correlated features exceed it.

    Args:
        normalised: Ĝ with its column of ones, shape ``[N · positions, n + 1]``.
        samples: N, which must divide the rows.

    Raises:
        ValueError: If it does not.

    Examples:
        >>> norm_ratio(torch.ones(4, 2), 4)  # two equal columns
        1.414...
    """
    rows, columns = normalised.shape
    if samples < 1 or rows % samples:
        raise ValueError(f"{rows} rows are not a multiple of {samples} samples.")
    q_squared = norm_estimate(columns - 1, samples, positions=rows // samples)
    norm = float(torch.linalg.matrix_norm(normalised.detach().double(), ord=2))
    return norm / math.sqrt(q_squared * samples)
