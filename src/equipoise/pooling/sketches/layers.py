"""The two compact maps as layers: their random parts as buffers, and the choice of a route."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from equipoise.pooling.heads.generators import placed
from equipoise.pooling.sketches.maps import (
    MaclaurinProjections,
    TensorSketchHash,
    maclaurin_directly,
    tensor_sketch_by_fft,
)
from equipoise.pooling.sketches.random_maclaurin import random_maclaurin, random_maclaurin_matrix
from equipoise.pooling.sketches.tensor_sketch import tensor_sketch, tensor_sketch_matrix


class SketchLayer(nn.Module):
    """A compact map Φ of matrices that can also be taken position by position."""

    by_position: str  # the name of that route

    def of_matrix(self, matrix: Tensor) -> Tensor:
        """Φ(C) ``[B, d]`` of ``[B, D, D]``."""
        raise NotImplementedError

    def of_positions(self, features: Tensor) -> Tensor:
        """Φ(FᵀF) ``[B, d]`` of ``[B, N, D]``, without FᵀF."""
        raise NotImplementedError

    def prefers_positions(self, positions: int) -> bool:
        """Whether that is cheaper for so many positions."""
        raise NotImplementedError


class TensorSketchLayer(SketchLayer):
    """Tensor Sketch with hashes and signs that are drawn once.

    Entries that no symmetric matrix reaches are 0 exactly: what Fourier transforms leave there
    is rounding, which a signed root would turn into 1e-4 with a slope of thousands.

    Args:
        channels: D.
        size: d.
        generator: Source of both.
    """

    places: Tensor
    signs: Tensor
    reached: Tensor
    by_position = "fft"

    def __init__(self, channels: int, size: int, *, generator: torch.Generator):
        super().__init__()
        drawn = TensorSketchHash.draw(channels, size, generator=generator)
        self.size = size
        self.register_buffer("places", placed(drawn.places))
        self.register_buffer("signs", placed(drawn.signs))
        self.register_buffer("reached", placed(_reached(drawn)))

    def of_matrix(self, matrix: Tensor) -> Tensor:
        """Scatter its D² entries."""
        return self._cleared(tensor_sketch_matrix(matrix, self._hashes()))

    def of_positions(self, features: Tensor) -> Tensor:
        """Fourier transforms of every position."""
        return self._cleared(tensor_sketch(features, self._hashes(), route="fft"))

    def prefers_positions(self, positions: int) -> bool:
        """By a count of operations."""
        return tensor_sketch_by_fft(positions, self.places.shape[-1], self.size)

    def _hashes(self) -> TensorSketchHash:
        return TensorSketchHash(self.places, self.signs, self.size)

    def _cleared(self, sketch: Tensor) -> Tensor:
        return torch.where(self.reached, sketch, 0.0)


class RandomMaclaurinLayer(SketchLayer):
    """Random Maclaurin map with projections that are drawn once.

    Args:
        channels: D.
        size: d.
        generator: Source of the projections.
    """

    signs: Tensor
    by_position = "direct"

    def __init__(self, channels: int, size: int, *, generator: torch.Generator):
        super().__init__()
        drawn = MaclaurinProjections.draw(channels, size, generator=generator)
        self.register_buffer("signs", placed(drawn.signs))

    def of_matrix(self, matrix: Tensor) -> Tensor:
        """Project the matrix."""
        return random_maclaurin_matrix(matrix, MaclaurinProjections(self.signs))

    def of_positions(self, features: Tensor) -> Tensor:
        """Project every position."""
        return random_maclaurin(features, MaclaurinProjections(self.signs), route="direct")

    def prefers_positions(self, positions: int) -> bool:
        """By a count of operations."""
        size, channels = self.signs.shape[1:]
        return maclaurin_directly(positions, channels, size)


def _reached(hashes: TensorSketchHash) -> Tensor:
    """Which entries of the sketch ``[d]`` depend on a symmetric matrix at all."""
    places = (hashes.places[0, :, None] + hashes.places[1]) % hashes.size
    signs = hashes.signs[0, :, None] * hashes.signs[1]
    cancelled = (places == places.mT) & (signs == -signs.mT)
    reached = torch.zeros(hashes.size, dtype=torch.bool, device=places.device)
    return reached.index_fill(0, places[~cancelled], True)
