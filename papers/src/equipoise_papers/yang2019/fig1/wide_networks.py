r"""The forward signal of random wide networks, without drawing a weight matrix.

In :math:`h^l = W^l x^{l-1}` with independent Gaussian weights of variance 1/N, the N neurons of
a layer are, given the layer before, independent with covariance
:math:`\Sigma^l = x^{l-1\,T} x^{l-1} / N` over the batch. Drawing them from that law is not an
approximation: it is the same network of width N at 1/N of the cost.
"""

from __future__ import annotations

import torch
from torch import Tensor

from equipoise import theory


def deep_covariances(
    activation: theory.Activation,
    batch_size: int,
    *,
    width: int,
    depth: int,
    networks: int,
    generator: torch.Generator,
) -> Tensor:
    r"""Covariances Σ over the batch after the last layer of networks with batch norm (ε = 0).

    Args:
        activation: Follows every batch norm.
        batch_size: B, samples per batch; the input's are independent.
        width: N, neurons per layer.
        depth: Layers.
        networks: Independent networks.
        generator: Source of randomness.

    Returns:
        Second moments of the pre-activations after the last layer, ``[networks, B, B]``,
        averaged over its N inputs.
    """

    def normal() -> Tensor:
        return torch.randn(networks, batch_size, width, generator=generator, dtype=torch.float64)

    signal = normal()
    for _ in range(depth):
        covariance = signal @ signal.mT / width
        values, vectors = torch.linalg.eigh(covariance)
        root = vectors * values.clamp(min=0).sqrt().unsqueeze(1)
        h = root @ normal()
        centred = h - h.mean(1, keepdim=True)
        signal = activation.function(centred * centred.square().mean(1, keepdim=True).rsqrt())
    return signal @ signal.mT / width


def entry_variances(covariance: Tensor) -> tuple[Tensor, Tensor]:
    """Variances of the diagonal and of the off-diagonal entries of each matrix ``[..., B, B]``.

    Both are 0 where all samples are alike (BSB1).

    Examples:
        >>> [float(v) for v in entry_variances(torch.tensor([[1.0, 0.5], [0.5, 3.0]]))]
        [1.0, 0.0]
    """
    size = covariance.shape[-1]
    diagonal = covariance.diagonal(dim1=-2, dim2=-1)
    above = torch.triu_indices(size, size, offset=1)
    off_diagonal = covariance[..., above[0], above[1]]
    return diagonal.var(-1, unbiased=False), off_diagonal.var(-1, unbiased=False)
