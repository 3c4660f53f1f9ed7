r"""Singular values of an extended matrix Ĥ = [1, H], raw, centred and scaled."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

# Up to here singular values are computed directly; beyond, from Gram matrices, whose condition
# number is the square and which therefore see only half the digits.
_DIRECT = 512


@dataclass(frozen=True, slots=True)
class ExtendedSpectra:
    """Condition numbers on the range.

    Args:
        raw: κ(Ĥ).
        centred: After subtracting column means.
        scaled: After dividing by column standard deviations too; constant columns left out.
        scale_spread: κ(D) over columns that vary, with the leading 1.
        rank: Numerical rank of Ĥ.
        constant_features: Columns of H without variance.
        method: ``svd`` or ``gram``.
    """

    raw: float
    centred: float
    scaled: float
    scale_spread: float
    rank: int
    constant_features: int
    method: str


def extended_spectra(matrix: Tensor) -> ExtendedSpectra:
    """Condition numbers of [1, H] for H of shape ``[rows, features]``.

    Args:
        matrix: H, finite, in float64 where the device has it.

    Examples:
        >>> spectra = extended_spectra(torch.tensor([[1.0], [3.0]], dtype=torch.float64))
        >>> spectra.centred, spectra.scaled, spectra.rank
        (1.0, 1.0, 2)
    """
    rows, features = matrix.shape
    mean = matrix.mean(0)
    centred = matrix - mean
    variance = centred.square().mean(0)
    # Rounding of the mean leaves a constant column this much variance.
    floor = (torch.finfo(matrix.dtype).eps * matrix.abs().amax(0)).square() * 4
    varying = variance > floor
    deviation = variance[varying].sqrt()
    scaled = centred[:, varying] / deviation
    direct = min(rows, features + 1) <= _DIRECT
    ones = matrix.new_ones(rows, 1)
    values = _singular_values if direct else _gram_values

    raw = values(torch.cat([ones, matrix], 1))
    # Centred columns are orthogonal to the ones, whose singular value is √rows.
    lead = matrix.new_tensor([rows**0.5])
    spread = torch.cat([matrix.new_ones(1), deviation])
    return ExtendedSpectra(
        raw=_condition(raw),
        centred=_condition(torch.cat([lead, values(centred[:, varying])])),
        scaled=_condition(torch.cat([lead, values(scaled)])),
        scale_spread=float(spread.max() / spread.min()),
        rank=len(raw),
        constant_features=int((~varying).sum()),
        method="svd" if direct else "gram",
    )


def _singular_values(matrix: Tensor) -> Tensor:
    """Nonzero singular values, by the usual threshold."""
    if matrix.shape[1] == 0:
        return matrix.new_empty(0)
    values = torch.linalg.svdvals(matrix)
    threshold = max(matrix.shape) * torch.finfo(matrix.dtype).eps
    kept: Tensor = values[values > threshold * values.max()]
    return kept


def _gram_values(matrix: Tensor) -> Tensor:
    """The same from the smaller Gram matrix; blind below the root of the usual threshold."""
    rows, columns = matrix.shape
    gram = matrix @ matrix.T if rows < columns else matrix.T @ matrix
    values = torch.linalg.eigvalsh(gram)
    threshold = max(matrix.shape) * torch.finfo(matrix.dtype).eps
    kept: Tensor = values[values > threshold * values.max()].sqrt()
    return kept


def _condition(values: Tensor) -> float:
    return float(values.max() / values.min())
