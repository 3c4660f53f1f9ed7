r"""Theorem 4: centring and scaling lower the condition number of [e, H].

The check evaluates both sides of the inequalities and says whether the hypotheses hold, so that
cases that the theorem does not cover are visible.

Symbols: H: features, N rows and n columns; e: the column of ones; Ĥ = [e, H]; P = UD: centring and
scaling; Ĝ = ĤP; κ: largest over smallest *nonzero* singular value.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from equipoise.preconditioners import column_statistics, condition, preconditioner

_UNIT = torch.finfo(torch.float64).eps


@dataclass(frozen=True, slots=True)
class Theorem4:
    r"""Both sides of κ(ĤU) ≤ κ(Ĥ) and of κ(Ĝ) ≤ √(n+1) κ(ĤUD₀).

    Args:
        raw: κ(Ĥ).
        centred: κ(ĤU).
        normalised: κ(Ĝ) = κ(ĤUD).
        alternative: κ(ĤUD₀) of another diagonal scaling.
        applies: Full column rank, which takes N ≥ n + 1 rows; without it both claims may fail.
        centring_holds: κ(ĤU) ≤ κ(Ĥ) up to rounding.
        scaling_holds: κ(Ĝ) ≤ √(n+1) κ(ĤUD₀) up to rounding.
        strict: Whether the theorem promises κ(ĤU) < κ(Ĥ): μ is neither zero nor orthogonal to
            the first principal component.
    """

    raw: float
    centred: float
    normalised: float
    alternative: float
    applies: bool
    centring_holds: bool
    scaling_holds: bool
    strict: bool


def theorem_4(features: Tensor, *, scaling: Tensor | None = None) -> Theorem4:
    r"""Check whether centring and scaling improve [e, H], and whether the theorem says so.

    Args:
        features: H, shape ``[N, n]``.
        scaling: Diagonal of D₀, shape ``[n + 1]``, without zeros; ones by default.

    Raises:
        ValueError: If D₀ is singular, or of the wrong size.

    Examples:
        >>> check = theorem_4(2 * torch.eye(2))  # two rows, three columns
        >>> check.applies, round(check.raw, 4), round(check.centred, 4)
        (False, 1.2247, 1.4142)

    References:
        [lange2022], Theorem 4; its Figure 8 has 60 rows and 101 columns.
    """
    columns = features.detach().double()
    extended = _with_ones(columns)
    ones = extended.new_ones(extended.shape[1])
    scaling = ones if scaling is None else scaling.detach().double()
    if scaling.shape != ones.shape or not bool((scaling != 0).all()):
        raise ValueError(f"scaling must hold {len(ones)} numbers without a zero, got {scaling}.")
    statistics = column_statistics(features)
    shifted = _with_ones(columns - statistics.mean)
    raw, centred = condition(extended), condition(shifted)
    normalised = condition(preconditioner(statistics).normalise(extended))
    alternative = condition(shifted * scaling)
    bound = math.sqrt(len(ones)) * (alternative.value + alternative.error)
    return Theorem4(
        raw=raw.value,
        centred=centred.value,
        normalised=normalised.value,
        alternative=alternative.value,
        applies=raw.full_column_rank,
        centring_holds=centred.value <= raw.value + raw.error + centred.error,
        scaling_holds=normalised.value <= bound + normalised.error,
        strict=_promises_strictness(shifted[:, 1:], statistics.mean),
    )


def _with_ones(columns: Tensor) -> Tensor:
    return torch.cat([columns.new_ones(len(columns), 1), columns], 1)


def _promises_strictness(centred: Tensor, mean: Tensor) -> bool:
    """Whether μᵀx ≠ 0 for the first principal component x."""
    _, values, vectors = torch.linalg.svd(centred, full_matrices=False)
    tolerance = max(centred.shape) * _UNIT
    if float(values[0]) ** 2 <= len(centred):
        part = mean  # the column of ones is the longest direction, any μ tilts it
    else:
        part = vectors[values >= (1 - tolerance) * values[0]] @ mean
    return bool(part.norm() > tolerance * (mean.norm() + centred.abs().max()))
