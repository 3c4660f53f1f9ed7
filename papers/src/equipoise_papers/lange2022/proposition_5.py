r"""Proposition 5: the estimate q² of ‖Ĝ‖²/N, and how well it describes features.

Symbols: H: features, N samples and n columns; e: the column of ones; Ĝ: [e, H] centred and scaled;
q²: the estimate.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor


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
