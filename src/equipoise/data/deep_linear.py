"""The regression problem of deep linear networks: Gaussian inputs, targets by one matrix."""

from __future__ import annotations

import torch

from equipoise.data.source import Samples


def gaussian_regression(
    samples: int = 1000,
    width: int = 10,
    seed: int = 0,
    *,
    dtype: torch.dtype = torch.float32,
) -> Samples:
    r"""Gaussian inputs with targets that a square matrix makes of them, without noise.

    .. math:: y_i = A x_i, \qquad x_i \sim \mathcal{N}(0, I), \quad
              A_{jk} \sim \mathcal{N}(0, 1) .

    A linear model can fit the targets exactly. :math:`\mathbb{E}\|y_i\|^2 = \text{width}^2`
    over draws of A, which is the loss per sample of a model that answers 0.

    Args:
        samples: How many, at least 1.
        width: Numbers in an input and in a target, at least 1.
        seed: Decides inputs and matrix; PyTorch's global random state is left alone.
        dtype: Floating type of both. The draws are the same for all, rounded from float64.

    Returns:
        Inputs and targets, each ``[samples, width]``.

    Raises:
        ValueError: If a size is below 1.
        TypeError: If ``dtype`` is not a floating type.

    Examples:
        >>> problem = gaussian_regression(samples=50, width=3, dtype=torch.float64)
        >>> fit = torch.linalg.lstsq(problem.inputs, problem.targets).solution
        >>> bool(torch.allclose(problem.inputs @ fit, problem.targets))
        True

    References:
        [santurkar2018], appendix A.1.
    """
    if samples < 1 or width < 1:
        raise ValueError(
            f"samples and width must be at least 1; got samples={samples}, width={width}."
        )
    if not dtype.is_floating_point:
        raise TypeError(f"dtype must be a floating type, as torch.float64; got {dtype}.")
    generator = torch.Generator().manual_seed(seed)
    matrix = torch.randn(width, width, dtype=torch.float64, generator=generator)
    inputs = torch.randn(samples, width, dtype=torch.float64, generator=generator)
    targets = inputs @ matrix.T
    return Samples("gaussian-regression", inputs.to(dtype), targets.to(dtype))
