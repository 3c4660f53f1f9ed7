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

from typing import Literal

import torch
from torch import Tensor

from equipoise.numerics.precision import at_least_float32
from equipoise.pooling.sketches.maps import TensorSketchHash, check_channels, tensor_sketch_by_fft
from equipoise.pooling.symmetric import check_square
from equipoise.pooling.vectorise import bilinear


def tensor_sketch(
    features: Tensor,
    hashes: TensorSketchHash,
    *,
    route: Literal["auto", "fft", "gram"] = "auto",
) -> Tensor:
    r"""Tensor Sketch of every position, summed: :math:`\sum_n\phi(f_n) = \Phi(F^\top F)`.

    Args:
        features: F, ``[..., N, D]``. Rows of zeros add nothing.
        hashes: Drawn once; see :class:`TensorSketchHash`.
        route: "fft" transforms every position and keeps N·d numbers for the backward pass;
            "gram" forms FᵀF and scatters its D² entries; "auto" takes the cheaper one by
            :func:`~equipoise.pooling.sketches.maps.tensor_sketch_by_fft`. All agree to
            rounding.

    Returns:
        ``[..., d]``, typed as the input; float16 and bfloat16 are computed in float32.

    Raises:
        ValueError: If the channels are not those of the hashes, or ``route`` is another word.
        TypeError: If the features are not of floating point.

    Note:
        ``torch.compile`` traces the FFT route, but its default backend leaves complex numbers to
        PyTorch and says so in a warning; "gram" compiles whole.

    Examples:
        >>> hashes = TensorSketchHash.draw(3, 4096, generator=torch.Generator().manual_seed(0))
        >>> x, y = torch.tensor([[1.0, 2.0, 0.0]]), torch.tensor([[3.0, 1.0, 1.0]])
        >>> round(float(tensor_sketch(x, hashes) @ tensor_sketch(y, hashes)), 4)  # (xᵀy)²
        25.0

    References:
        [pham2013], section 3; [gao2016], Algorithm 2.
    """
    if route not in ("auto", "fft", "gram"):
        raise ValueError(f"route must be 'auto', 'fft' or 'gram', got {route!r}.")
    channels = hashes.places.shape[-1]
    check_channels(features, channels, dims=2)
    by_fft = route == "fft"
    if route == "auto":
        by_fft = tensor_sketch_by_fft(features.shape[-2], channels, hashes.size)
    F = at_least_float32(features)
    # MKL refuses to transform nothing, here and below.
    if not by_fft or F.numel() == 0:
        return tensor_sketch_matrix(bilinear(F, scale="none"), hashes).to(features.dtype)
    spectrum = (_spectrum(F, hashes, 0) * _spectrum(F, hashes, 1)).sum(-2)
    return _inverse(spectrum, hashes).to(features.dtype)


def tensor_sketch_matrix(matrix: Tensor, hashes: TensorSketchHash) -> Tensor:
    r"""Tensor Sketch Φ(C) of a matrix, symmetric or not.

    Args:
        matrix: C, ``[..., D, D]``.
        hashes: Drawn once.

    Returns:
        ``[..., d]``, typed as the input; float16 and bfloat16 are computed in float32.

    Raises:
        ValueError: If the matrices are not square, or of another size than the hashes.
        TypeError: If the matrices are not of floating point.

    Examples:
        >>> hashes = TensorSketchHash(torch.tensor([[0, 1], [0, 2]]), torch.ones(2, 2), size=4)
        >>> tensor_sketch_matrix(torch.tensor([[1.0, 2.0], [3.0, 4.0]]), hashes).tolist()
        [1.0, 3.0, 2.0, 4.0]
    """
    check_square(matrix)
    check_channels(matrix, hashes.places.shape[-1], dims=2)
    C = at_least_float32(matrix)
    signs = hashes.signs.to(C.dtype)
    places = (hashes.places[0, :, None] + hashes.places[1]) % hashes.size
    signed = C * (signs[0, :, None] * signs[1])
    sketch = C.new_zeros(*C.shape[:-2], hashes.size)
    return sketch.index_add(-1, places.flatten(), signed.flatten(-2)).to(matrix.dtype)


def tensor_sketch_pair(u: Tensor, v: Tensor, hashes: TensorSketchHash) -> Tensor:
    r"""Tensor Sketch Φ(uvᵀ) of a pair of vectors, without their D² products.

    It corrects a sketch after a low-rank update of the matrix: RUN's symmetric form
    :math:`C_K = B - \hat v h^\top - h\hat v^\top` has
    :math:`\Phi(C_K) = \Phi(B) - \Phi(\hat v h^\top) - \Phi(h\hat v^\top)`.

    Args:
        u: ``[..., D]``.
        v: ``[..., D]``, of a shape that broadcasts with u's.
        hashes: Drawn once.

    Returns:
        ``[..., d]``, typed as the input; float16 and bfloat16 are computed in float32.

    Raises:
        ValueError: If the channels are not those of the hashes.
        TypeError: If the vectors are not of floating point.

    Examples:
        >>> hashes = TensorSketchHash(torch.tensor([[0, 1], [0, 2]]), torch.ones(2, 2), size=4)
        >>> u, v = torch.tensor([1.0, 3.0]), torch.tensor([1.0, 2.0])
        >>> tensor_sketch_pair(u, v, hashes).round(decimals=4).tolist()
        [1.0, 3.0, 2.0, 6.0]
    """
    for vector in (u, v):
        check_channels(vector, hashes.places.shape[-1], dims=1)
    kind = torch.promote_types(u.dtype, v.dtype)
    u, v = at_least_float32(u), at_least_float32(v)
    if u.numel() == 0 or v.numel() == 0:
        return tensor_sketch_matrix(u[..., :, None] * v[..., None, :], hashes).to(kind)
    spectrum = _spectrum(u, hashes, 0) * _spectrum(v, hashes, 1)
    return _inverse(spectrum, hashes).to(kind)


def _spectrum(x: Tensor, hashes: TensorSketchHash, which: int) -> Tensor:
    """Fourier transform of the count sketch Ψ of rows."""
    signed = x * hashes.signs[which].to(x.dtype)
    sketch = x.new_zeros(*x.shape[:-1], hashes.size)
    # PyTorch does not annotate its transforms.
    spectrum: Tensor = torch.fft.rfft(sketch.index_add(-1, hashes.places[which], signed))
    return spectrum


def _inverse(spectrum: Tensor, hashes: TensorSketchHash) -> Tensor:
    sketch: Tensor = torch.fft.irfft(spectrum, n=hashes.size)
    return sketch
