"""The deep linear network: one matrix, factorised over many layers."""

from __future__ import annotations

from collections import OrderedDict

import torch
from torch import nn

from equipoise.models.initialisation import glorot_uniform_
from equipoise.models.norms import Norm, make_norm
from equipoise.numerics.checks import check_size


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
    check_size(width=width, depth=depth)
    layers: OrderedDict[str, nn.Module] = OrderedDict()
    for number in range(1, depth + 1):
        layers[f"linear{number}"] = nn.Linear(width, width, bias=False)
        normaliser = make_norm(norm, width, dims=0)
        if not isinstance(normaliser, nn.Identity):
            layers[f"norm{number}"] = normaliser
    return glorot_uniform_(nn.Sequential(layers), generator=generator)
