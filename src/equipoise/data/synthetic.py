"""Synthetic data: Gaussian noise, and the regression problem of deep linear networks."""

from __future__ import annotations

import math
import re

import torch

from equipoise.data.source import Samples

_RANDOM = re.compile(r"random:(\d+(?:x\d+)*):(\d+)(?::(\d+))?", re.ASCII)
_RANDOM_SAMPLES = 2048


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


def gaussian_noise(spec: str) -> Samples:
    """Independent standard normal inputs with random classes, always the same for one spec.

    Args:
        spec: ``random:SHAPE:CLASSES`` with an optional ``:SAMPLES``, such as
            ``random:3x32x32:10`` or ``random:16:2:4096``.

    Raises:
        ValueError: If the spec has another form or a number in it is zero.

    Examples:
        >>> tuple(gaussian_noise("random:3x32x32:10").inputs.shape)
        (2048, 3, 32, 32)
    """
    found = _RANDOM.fullmatch(spec)
    if found is None:
        raise ValueError(
            f"Expected random:SHAPE:CLASSES, such as random:3x32x32:10 or random:16:2, with an "
            f"optional :SAMPLES, got {spec!r}."
        )
    shape = [int(size) for size in found[1].split("x")]
    classes, samples = int(found[2]), int(found[3] or _RANDOM_SAMPLES)
    if 0 in shape or not classes or not samples:
        raise ValueError(f"Every number must be at least 1, got {spec!r}.")
    if samples * math.prod(shape) >= 2**31:
        raise ValueError(
            f"{spec!r} means {samples} × {'×'.join(map(str, shape))} numbers, more than 8 GB. "
            "Ask for fewer samples, as in random:SHAPE:CLASSES:SAMPLES."
        )
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(samples, *shape, generator=generator)
    targets = torch.randint(classes, (samples,), generator=generator)
    return Samples(spec, inputs, targets, classes)
