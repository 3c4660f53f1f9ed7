"""The deep linear network, and the regression problem that it trains on."""

from __future__ import annotations

from collections import OrderedDict

import torch
from torch import nn

from equipoise.data import Samples
from equipoise.models import Norm, glorot_uniform_, make_norm


def deep_linear(
    width: int = 10,
    depth: int = 25,
    *,
    norm: Norm = "none",
    generator: torch.Generator | None = None,
) -> nn.Sequential:
    r"""Square linear layers without bias or activation, each followed by a normaliser.

    .. math:: x^l = \mathrm{norm}(W^l x^{l-1}), \quad l = 1, \dots, \text{depth},
              \qquad W^l \in \mathbb{R}^{\text{width} \times \text{width}} .

    Without a normaliser it computes :math:`W^{\text{depth}} \cdots W^1 x`, as one matrix could,
    but its loss has another landscape. Layers are named ``linear1``, ``norm1``,
    ``linear2``, …, in the order in which they are applied; in the paper's
    :math:`W_1 \cdots W_k x` the first one applied has the *largest* index. The paper does not
    say where batch norm stands; here it follows every layer, the last one too, whose γ and β
    then give the outputs their scale. Weights start from Glorot's uniform distribution, of
    variance 1 / width.

    Args:
        width: Numbers in an input, an output and everything between.
        depth: Linear layers.
        norm: A kind of :func:`make_norm` except ``"instance"``, or a function of the width that
            makes a module.
        generator: Source of the weights; PyTorch's own if None.

    Raises:
        ValueError: If a size is not positive, or the norm is unknown or unfit.

    Shape:
        - Input: ``[N, width]``.
        - Output: ``[N, width]``.

    Examples:
        >>> model = deep_linear(2, depth=3, norm="batch")
        >>> [name for name, _ in model.named_children()]
        ['linear1', 'norm1', 'linear2', 'norm2', 'linear3', 'norm3']
        >>> sum(p.numel() for p in deep_linear().parameters())  # 25 matrices of 10×10
        2500

    References:
        [santurkar2018], appendix A.1; [glorot2010], equation 16.
    """
    if width < 1 or depth < 1:
        raise ValueError(f"width and depth must be at least 1; got width={width}, depth={depth}.")
    layers: OrderedDict[str, nn.Module] = OrderedDict()
    for number in range(1, depth + 1):
        layers[f"linear{number}"] = nn.Linear(width, width, bias=False)
        normaliser = make_norm(norm, width, dims=0)
        if not isinstance(normaliser, nn.Identity):
            layers[f"norm{number}"] = normaliser
    return glorot_uniform_(nn.Sequential(layers), generator=generator)


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
