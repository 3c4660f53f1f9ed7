"""Frozen batch norm: statistics that no longer move, in training as in evaluation."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from equipoise.numerics.checks import check_size


class FrozenBatchNorm(nn.Module):
    r"""Batch norm with fixed statistics, for fine-tuning with small batches.

    .. math:: y = \gamma\,\frac{x - \mu}{\sqrt{\sigma^2 + \varepsilon}} + \beta

    with μ and σ² as they were when the layer was made from a trained batch norm
    (:func:`~equipoise.layers.convert`), 0 and 1 otherwise. γ and β still learn. Samples are
    independent of each other, and training and evaluation are the same.

    Args:
        num_features: Channels C.
        eps: Added to every variance.
        affine: Whether to learn γ and β.
        device: Where parameters and statistics live.
        dtype: Their type.

    Shape:
        - Input: ``[N, C, ...]``.
        - Output: the same.

    Raises:
        ValueError: If ``num_features`` is not positive.

    Examples:
        >>> layer = FrozenBatchNorm(1, eps=0.0)
        >>> _ = layer.running_var.fill_(4.0)
        >>> layer(torch.tensor([[2.0], [4.0]])).tolist()
        [[1.0], [2.0]]
    """

    running_mean: Tensor
    running_var: Tensor

    def __init__(
        self,
        num_features: int,
        eps: float = 1e-5,
        affine: bool = True,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ):
        check_size(num_features=num_features)
        super().__init__()
        self.num_features, self.eps = num_features, eps
        if affine:
            self.weight = nn.Parameter(torch.ones(num_features, device=device, dtype=dtype))
            self.bias = nn.Parameter(torch.zeros(num_features, device=device, dtype=dtype))
        else:
            self.register_parameter("weight", None)
            self.register_parameter("bias", None)
        self.register_buffer("running_mean", torch.zeros(num_features, device=device, dtype=dtype))
        self.register_buffer("running_var", torch.ones(num_features, device=device, dtype=dtype))

    def forward(self, x: Tensor) -> Tensor:
        """Normalise by the fixed statistics."""
        return F.batch_norm(
            x, self.running_mean, self.running_var, self.weight, self.bias, False, 0.0, self.eps
        )

    def extra_repr(self) -> str:
        """The size and ε."""
        return f"{self.num_features}, eps={self.eps}, affine={self.weight is not None}"
