r"""Singular values of an extended matrix Ĥ = [1, H], raw, centred and scaled."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

# Up to here singular values are computed directly; beyond, from Gram matrices, whose condition
# number is the square and which therefore keep only half the digits.
_DIRECT = 512
# Activations have been rounded a few times, not once.
_SAFETY = 4.0


@dataclass(frozen=True, slots=True)
class ExtendedSpectra:
    """Condition numbers on the range of a matrix: largest over smallest nonzero singular value.

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


def extended_spectra(matrix: Tensor, *, unit: float | None = None) -> ExtendedSpectra:
    r"""Condition numbers of [1, H] for H of shape ``[rows, features]``.

    A singular value counts as zero when the rounding of H alone explains it. In the centred and
    scaled matrix independent errors of relative size u have a spectral norm of about
    :math:`u\,h\,(\sqrt{rows} + \sqrt{features})`, h the root mean square of entries over
    their column's deviation; the rank found there is that of every form.

    Args:
        matrix: H, finite, in float64 where the device has it.
        unit: Rounding u of the type in which H was computed; by default that of ``matrix``.

    Examples:
        >>> spectra = extended_spectra(torch.tensor([[1.0], [3.0]], dtype=torch.float64))
        >>> spectra.centred, spectra.scaled, spectra.rank
        (1.0, 1.0, 2)
    """
    rows, features = matrix.shape
    unit = torch.finfo(matrix.dtype).eps if unit is None else unit
    mean = matrix.mean(0)
    centred = matrix - mean
    variance = centred.square().mean(0)
    mean_square = matrix.square().mean(0)
    varying = variance > (_SAFETY * unit) ** 2 * mean_square
    deviation = variance[varying].sqrt()
    scaled = centred[:, varying] / deviation
    direct = min(rows, features + 1) <= _DIRECT
    values = _singular_values if direct else _gram_values

    # Centring and scaling are invertible, so Ĥ has one more nonzero singular value than the
    # scaled matrix, the one place where every column has the same size as its rounding.
    relative = float((mean_square[varying] / variance[varying]).mean().sqrt())
    noise = _SAFETY * unit * (rows**0.5 + features**0.5) * relative
    of_scaled = values(scaled)
    of_scaled = of_scaled[of_scaled > noise]
    rank = len(of_scaled)
    of_raw = values(torch.cat([matrix.new_ones(rows, 1), matrix], 1))[: rank + 1]
    of_centred = values(centred[:, varying])[:rank]
    # Centred columns are orthogonal to the ones, whose singular value is √rows.
    lead = matrix.new_tensor([rows**0.5])
    spread = torch.cat([matrix.new_ones(1), deviation])
    return ExtendedSpectra(
        raw=_condition(of_raw),
        centred=_condition(torch.cat([lead, of_centred])),
        scaled=_condition(torch.cat([lead, of_scaled])),
        scale_spread=float(spread.max() / spread.min()),
        rank=rank + 1,
        constant_features=int((~varying).sum()),
        method="svd" if direct else "gram",
    )


def _singular_values(matrix: Tensor) -> Tensor:
    """Singular values above the rounding of the decomposition, descending."""
    if matrix.shape[1] == 0:
        return matrix.new_empty(0)
    values = torch.linalg.svdvals(matrix)
    rounding = max(matrix.shape) * torch.finfo(matrix.dtype).eps
    kept: Tensor = values[values > rounding * values[0]]
    return kept


def _gram_values(matrix: Tensor) -> Tensor:
    """The same from the smaller Gram matrix, which keeps only half the digits."""
    if matrix.shape[1] == 0:
        return matrix.new_empty(0)
    rows, columns = matrix.shape
    gram = matrix @ matrix.T if rows < columns else matrix.T @ matrix
    squares = torch.linalg.eigvalsh(gram).flip(0)
    rounding = max(matrix.shape) * torch.finfo(matrix.dtype).eps
    kept: Tensor = squares[squares > rounding * squares[0]].sqrt()
    return kept


def _condition(values: Tensor) -> float:
    return float(values.max() / values.min())
