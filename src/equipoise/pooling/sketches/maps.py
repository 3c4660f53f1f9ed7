r"""The random maps of compact pooling, drawn once and kept, and which way through them is cheaper.

A compact map :math:`\phi: \mathbb R^D \to \mathbb R^d` has
:math:`\mathbb E\langle\phi(x), \phi(y)\rangle = (x^\top y)^2`. Both maps here are linear in
:math:`xx^\top`, so a sum over positions is a linear map of the matrix,

.. math:: \sum_n \phi(f_n) = \Phi(F^\top F),

and can be taken position by position or through that matrix.

Symbols: N: positions; D: channels; d: size of the sketch; h, s: hashes and signs; W: projections.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

# Nanoseconds on one core, forward and backward, fitted to 25 sizes with N in 49..784, D in
# 128..2048 and d in 1024..16384 (benchmarks/matrix_roots.py has one of them): per d log2(d) and
# per channel of each position, per multiplication of the matrix, per entry that is scattered.
# The fitted 1.5 of the first is raised to 2, for FFTs that leave the cache. The choice then
# never costs more than 1.34 times the better route. What counts is ratios: other processors
# shift the border, not the results.
_FFT, _CHANNEL, _PRODUCT, _SCATTER = 2.0, 17.0, 0.045, 12.0


@dataclass(frozen=True, slots=True, eq=False)
class TensorSketchHash:
    """Hashes and signs of a Tensor Sketch.

    Args:
        places: h_1 and h_2, integers in [0, size), ``[2, D]``.
        signs: s_1 and s_2, ±1, ``[2, D]``.
        size: d.
    """

    places: Tensor
    signs: Tensor
    size: int

    @classmethod
    def draw(cls, channels: int, size: int, *, generator: torch.Generator) -> TensorSketchHash:
        """Draw all independently and uniformly, on the generator's device.

        Args:
            channels: D, at least 1.
            size: d, at least 1.
            generator: Source of all randomness.

        Raises:
            ValueError: If a size is below 1.
        """
        _check_sizes(channels, size)
        device = generator.device
        places = torch.randint(size, (2, channels), generator=generator, device=device)
        return cls(places, _signs(2, channels, generator=generator), size)


@dataclass(frozen=True, slots=True, eq=False)
class MaclaurinProjections:
    """Projections of a Random Maclaurin map.

    Args:
        signs: W_1 and W_2, ±1, ``[2, d, D]``.
    """

    signs: Tensor

    @classmethod
    def draw(cls, channels: int, size: int, *, generator: torch.Generator) -> MaclaurinProjections:
        """Draw all entries independently and uniformly, on the generator's device.

        Args:
            channels: D, at least 1.
            size: d, at least 1.
            generator: Source of all randomness.

        Raises:
            ValueError: If a size is below 1.
        """
        _check_sizes(channels, size)
        return cls(_signs(2, size, channels, generator=generator))


def tensor_sketch_by_fft(positions: int, channels: int, size: int) -> bool:
    r"""Whether FFTs position by position cost less than the matrix and its scatter.

    In nanoseconds on the core that this was fitted on, forward and backward,

    .. math:: N(2\,d\log_2 d + 17D) \quad\text{against}\quad D^2(0.045N + 12) .

    Examples:
        >>> tensor_sketch_by_fft(784, 512, 8192), tensor_sketch_by_fft(49, 2048, 8192)
        (False, True)
    """
    fft = positions * (_FFT * size * math.log2(size) + _CHANNEL * channels)
    return fft < channels**2 * (_PRODUCT * positions + _SCATTER)


def maclaurin_directly(positions: int, channels: int, size: int) -> bool:
    r"""Whether projections of all positions cost fewer operations than those of the matrix.

    Forward and backward, :math:`8NDd` against :math:`4D^2(N + d)`. The count chose the faster
    route at every size that the Tensor Sketch's constants were fitted to.

    Examples:
        >>> maclaurin_directly(784, 512, 8192), maclaurin_directly(196, 512, 8192)
        (False, True)
    """
    return 2 * positions * size < channels * (positions + size)


def check_channels(x: Tensor, channels: int, *, dims: int) -> None:
    """Refuse what does not fit a map of so many channels.

    Args:
        x: What is to be sketched.
        channels: D of the map.
        dims: How many trailing dimensions x must have at least.

    Raises:
        ValueError: Naming both.
    """
    if x.ndim < dims or x.shape[-1] != channels:
        shape = ("[..., D]", "[..., N, D]")[dims - 1]
        raise ValueError(
            f"this sketch was drawn for {channels} channels; need {shape} with D = {channels}, "
            f"got shape {tuple(x.shape)}."
        )


def _check_sizes(channels: int, size: int) -> None:
    if channels < 1 or size < 1:
        raise ValueError(f"need at least 1 channel and size 1, got {channels} and {size}.")


def _signs(*shape: int, generator: torch.Generator) -> Tensor:
    bits = torch.randint(2, shape, generator=generator, device=generator.device)
    return (2 * bits - 1).to(torch.float32)
