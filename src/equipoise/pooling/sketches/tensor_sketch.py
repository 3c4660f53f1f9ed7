r"""Tensor Sketch: compact second-order pooling by hashing.

.. math:: \Phi(C)_j = \sum_{(h_1(i) + h_2(l)) \bmod d = j} s_1(i)\, s_2(l)\, C_{il}

and, with the count sketches :math:`\Psi(u)_j = \sum_{h(i) = j} s(i)\, u_i`,

.. math:: \Phi(uv^\top) =
          \mathrm{FFT}^{-1}\big(\mathrm{FFT}(\Psi_1 u) \circ \mathrm{FFT}(\Psi_2 v)\big) .

Symbols: h, s: hashes and signs; F: features ``[N, D]``; C: matrix ``[D, D]``; d: size.

References:
    [pham2013] for the sketch, [gao2016] for pooling with it; [yu2020] for RUN before it.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from equipoise.pooling.generators import placed, random_signs
from equipoise.pooling.matrices import bilinear

# Nanoseconds on one core, forward and backward, fitted to 25 sizes with N in 49..784, D in
# 128..2048 and d in 1024..16384 (benchmarks/matrix_roots.py has one of them): per d log2(d) and
# per channel of each position, per multiplication of the matrix, per entry that is scattered.
# The fitted 1.5 of the first is raised to 2, for FFTs that do not fit the cache. The choice then
# never costs more than 1.34 times the better route. Only ratios matter: other processors shift
# the border, not the results.
_FFT, _CHANNEL, _PRODUCT, _SCATTER = 2.0, 17.0, 0.045, 12.0


class TensorSketch(nn.Module):
    r"""Tensor Sketch with hashes and signs that are drawn once.

    For :math:`\phi(x) = \Phi(xx^\top)`,
    :math:`\mathbb E\langle\phi(x), \phi(y)\rangle = (x^\top y)^2`. Entries that no symmetric
    matrix can change are exactly 0: Fourier transforms leave rounding there, which a signed root
    would turn into 1e-4 with a slope of thousands.

    Args:
        channels: D.
        size: d.
        generator: Source of hashes and signs.

    Attributes:
        by_position: Name of the route that takes position by position.
        places: h_1 and h_2, ``[2, D]``.
        signs: s_1 and s_2, ``[2, D]``.
        reached: Which entries of the sketch ``[d]`` a symmetric matrix can change.
    """

    by_position = "fft"
    places: Tensor
    signs: Tensor
    reached: Tensor

    def __init__(self, channels: int, size: int, *, generator: torch.Generator):
        super().__init__()
        self.size = size
        places = torch.randint(size, (2, channels), generator=generator, device=generator.device)
        signs = random_signs(2, channels, generator=generator)
        self.register_buffer("places", placed(places))
        self.register_buffer("signs", placed(signs))
        self.register_buffer("reached", placed(reached_entries(places, signs, size)))

    def of_matrix(self, matrix: Tensor) -> Tensor:
        """Φ(C) ``[B, d]`` of symmetric matrices ``[B, D, D]``: scatter their D² entries."""
        signs = self.signs.to(matrix.dtype)
        places = (self.places[0, :, None] + self.places[1]) % self.size
        signed = matrix * (signs[0, :, None] * signs[1])
        sketch = matrix.new_zeros(*matrix.shape[:-2], self.size)
        sketch = sketch.index_add(-1, places.flatten(), signed.flatten(-2))
        return torch.where(self.reached, sketch, 0.0)

    def of_positions(self, features: Tensor) -> Tensor:
        """Φ(FᵀF) ``[B, d]`` of rows ``[B, N, D]`` by Fourier transforms of every position.

        Saves N·d numbers for the backward pass. ``torch.compile`` traces it, but its default
        backend leaves complex numbers to PyTorch and warns about that.
        """
        if features.numel() == 0:  # MKL refuses empty transforms
            return self.of_matrix(bilinear(features, scale="none"))
        spectrum = (self._spectrum(features, 0) * self._spectrum(features, 1)).sum(-2)
        sketch: Tensor = torch.fft.irfft(spectrum, n=self.size)
        return torch.where(self.reached, sketch, 0.0)

    def prefers_positions(self, positions: int) -> bool:
        r"""Whether FFTs position by position cost less than the matrix and its scatter.

        In nanoseconds on the core that this was fitted on, forward and backward,

        .. math:: N(2\,d\log_2 d + 17D) \quad\text{against}\quad D^2(0.045N + 12) .
        """
        size, channels = self.size, self.places.shape[-1]
        fft = positions * (_FFT * size * math.log2(size) + _CHANNEL * channels)
        return fft < channels**2 * (_PRODUCT * positions + _SCATTER)

    def _spectrum(self, features: Tensor, which: int) -> Tensor:
        """Fourier transform of the count sketch Ψ of every row."""
        signed = features * self.signs[which].to(features.dtype)
        sketch = features.new_zeros(*features.shape[:-1], self.size)
        # PyTorch does not annotate its transforms.
        spectrum: Tensor = torch.fft.rfft(sketch.index_add(-1, self.places[which], signed))
        return spectrum


def reached_entries(places: Tensor, signs: Tensor, size: int) -> Tensor:
    """Whether each entry of the sketch ``[d]`` depends on a symmetric matrix at all."""
    sums = (places[0, :, None] + places[1]) % size
    products = signs[0, :, None] * signs[1]
    cancelled = (sums == sums.mT) & (products == -products.mT)
    reached = torch.zeros(size, dtype=torch.long, device=places.device)
    return reached.index_add(0, sums.flatten(), (~cancelled).long().flatten()) > 0
