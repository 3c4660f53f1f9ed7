"""Initial weights by fan-in and fan-out."""

from __future__ import annotations

from typing import TypeVar

import torch
from torch import nn

from equipoise.numerics.checks import check_positive
from equipoise.numerics.options import named_options

_Model = TypeVar("_Model", bound=nn.Module)
_CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)


@named_options
@torch.no_grad()
def glorot_uniform_(model: _Model, *, generator: torch.Generator | None = None) -> _Model:
    r"""Start linear and convolution layers as TensorFlow does: uniform weights, no bias.

    .. math:: W \sim U(-a, a), \quad a = \sqrt{6 / (\text{fan-in} + \text{fan-out})},
              \qquad b = 0 .

    Args:
        model: Any module; its layers of other kinds are left alone.
        generator: Source of the weights; PyTorch's own if None.

    Returns:
        The model itself.

    Examples:
        >>> layer = glorot_uniform_(nn.Linear(4, 2))
        >>> bool(layer.weight.abs().max() <= 1), layer.bias.tolist()  # a = √(6 / 6)
        (True, [0.0, 0.0])

    References:
        [glorot2010], equation 16; [lange2022], appendix B.
    """
    for module in model.modules():
        if isinstance(module, (nn.Linear, *_CONVOLUTIONS)):
            nn.init.xavier_uniform_(module.weight, generator=generator)
            if module.bias is not None:
                nn.init.zeros_(module.bias)
    return model


@named_options
@torch.no_grad()
def he_normal_(
    model: _Model, *, scale: float = 1.0, generator: torch.Generator | None = None
) -> _Model:
    r"""Start convolutions from :math:`\mathcal{N}(0, \text{scale}^2 \cdot 2 / \text{fan-out})`.

    Biases of convolutions start at 0.

    Args:
        model: Any module; its layers of other kinds are left alone.
        scale: Factor of the weights, above 0.
        generator: Source of the weights; PyTorch's own if None.

    Returns:
        The model itself.

    Raises:
        ValueError: If ``scale`` is not positive.

    References:
        [he2016], section 3.4; [lange2022], appendix B, for scales of 0.1 and 0.4.
    """
    check_positive(scale=scale)
    for module in model.modules():
        if isinstance(module, _CONVOLUTIONS):
            nn.init.kaiming_normal_(
                module.weight, mode="fan_out", nonlinearity="relu", generator=generator
            )
            if scale != 1:
                module.weight.mul_(scale)
            if module.bias is not None:
                nn.init.zeros_(module.bias)
    return model
