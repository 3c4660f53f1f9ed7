r"""The methods that are timed: normalisations alone and whole heads, with their operations.

Operations are counted per sample, forward and backward. Symbols: N: positions; D: channels;
K: steps of RUN; T: steps of Newton and Schulz.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Literal

import torch
from torch import Tensor, nn

from equipoise.pooling import (
    BilinearPool,
    CompactBilinearPool,
    ISQRTPool,
    LogEuclideanPool,
    MatrixPowerPool,
    RUNPool,
    bilinear,
    gaussian_start,
    log_euclidean,
    matrix_power,
    run_factor,
    run_symmetric,
    sqrt_newton_schulz,
)

Part = Literal["normalisation", "head"]
Forward = Callable[[Tensor], Tensor]

NEWTON_STEPS = 5
_ETA = 0.5
_EPS = 1e-3
_COMPACT = 8192
_FLOAT_BYTES = 4


@dataclass(frozen=True, slots=True)
class Method:
    """One way to normalise, or one head.

    Args:
        name: As tables show it.
        part: Normalisation alone, from rows or their second moments; or a head, from maps to a
            vector.
        on_matrix: Whether a normalisation reads second moments, ready-made, and not rows.
        operations: Least number per sample, of N and D.
        traffic: Numbers per sample that must be read or written if a sample stays in cache.
        make: Build it for D channels.
    """

    name: str
    part: Part
    on_matrix: bool
    operations: Callable[[int, int], float]
    traffic: Callable[[int, int], float]
    make: Callable[[int], Forward]

    def floor_seconds(
        self, batch: int, positions: int, channels: int, *, rate: float, bandwidth: float
    ) -> float:
        """Least time of a batch, from rates in operations and bytes per second."""
        operations = batch * self.operations(positions, channels)
        numbers = batch * self.traffic(positions, channels)
        return max(operations / rate, _FLOAT_BYTES * numbers / bandwidth)


def inputs(method: Method, batch: int, side: int, channels: int) -> Tensor:
    """Rectified normal features in the form that the method reads; the same for all methods."""
    generator = torch.Generator().manual_seed(0)
    maps = torch.randn(batch, channels, side, side, generator=generator).relu()
    if method.part == "head":
        return maps
    rows = maps.flatten(2).mT.contiguous()
    return bilinear(rows) if method.on_matrix else rows


class _Started(nn.Module):
    """A normalisation with a start of its own, which moves with it to another device."""

    start: Tensor

    def __init__(
        self, normalise: Callable[..., Tensor], start: Tensor, options: Mapping[str, object]
    ) -> None:
        super().__init__()
        self._normalise, self._options = normalise, options
        self.register_buffer("start", start)

    def forward(self, features: Tensor) -> Tensor:
        return self._normalise(features, start=self.start, eta=_ETA, **self._options)


def _start(channels: int) -> Tensor:
    return gaussian_start(channels, torch.Generator().manual_seed(0))


def _run(channels: int, *, num_steps: int, differentiate_direction: bool = True) -> Forward:
    options = {"num_steps": num_steps, "differentiate_direction": differentiate_direction}
    return _Started(run_factor, _start(channels), options)


def _symmetric(channels: int) -> Forward:
    return _Started(run_symmetric, _start(channels), {"num_steps": 1})


def _newton(_channels: int) -> Forward:
    return partial(sqrt_newton_schulz, iterations=NEWTON_STEPS)


def _logarithm(_channels: int) -> Forward:
    return partial(log_euclidean, eps=_EPS)


def svd_root(features: Tensor) -> Tensor:
    r""":math:`US^{1/2}V^\top` of :math:`F = USV^\top`, a matrix root before a sketch."""
    U, S, Vh = torch.linalg.svd(features, full_matrices=False)
    root: Tensor = U * S.sqrt()[..., None, :] @ Vh
    return root


def _head(kind: type[nn.Module], **options: object) -> Callable[[int], Forward]:
    def make(channels: int) -> Forward:
        # The same for all heads: only the way from map to vector is compared.
        return kind(channels, signed_root=False, unit_norm=False, **options)

    return make


def _eigen(_N: int, D: int) -> float:
    return 19.0 * D**3  # 9 and 2 for values and the product, 8 for the backward pass


def _newton_operations(_N: int, D: int) -> float:
    return (9 * NEWTON_STEPS - 9) * 2.0 * D**3  # public code takes 13 and 15


def _bilinear(N: int, D: int) -> float:
    return 4.0 * N * D**2  # F(G + Gᵀ) is one product; autograd takes two


def _factor(K: int) -> Callable[[int, int], float]:
    return lambda N, D: (12.0 * K + 10) * N * D


def _five_passes(N: int, D: int) -> float:
    return 5.0 * N * D  # F and F_K; then F, the gradient and its image


def _five_matrices(_N: int, D: int) -> float:
    return 5.0 * D**2


def _three_passes(N: int, D: int) -> float:
    return 3.0 * N * D  # F; then F and its gradient


def _together(
    *parts: Callable[[int, int], float],
) -> Callable[[int, int], float]:
    return lambda N, D: sum(part(N, D) for part in parts)


def _normalisation(
    name: str,
    operations: Callable[[int, int], float],
    make: Callable[[int], Forward],
    *,
    on_matrix: bool = False,
) -> Method:
    traffic = _five_matrices if on_matrix else _five_passes
    return Method(name, "normalisation", on_matrix, operations, traffic, make)


def _pool(name: str, operations: Callable[[int, int], float], make: object) -> Method:
    assert callable(make)
    return Method(name, "head", False, operations, _three_passes, make)


RUN1, RUN2, NEWTON, EIGEN, PLAIN, SVD_ROOT = (
    "RUN, K = 1",
    "RUN, K = 2",
    "iSQRT, 5 steps",
    "eigen root",
    "plain bilinear",
    "SVD root of F",
)
_constant = partial(_run, num_steps=1, differentiate_direction=False)
_sketch = {"size": _COMPACT, "method": "tensor_sketch"}

METHODS = (
    _normalisation(RUN1, _factor(1), partial(_run, num_steps=1)),
    _normalisation(RUN2, _factor(2), partial(_run, num_steps=2)),
    _normalisation("RUN, K = 1, constant v", lambda N, D: 12.0 * N * D, _constant),
    _normalisation("RUN, K = 1, on FᵀF", lambda N, D: 16.0 * D**2, _symmetric, on_matrix=True),
    _normalisation(EIGEN, _eigen, lambda D: matrix_power, on_matrix=True),
    _normalisation(NEWTON, _newton_operations, _newton, on_matrix=True),
    _normalisation("log-Euclidean", _eigen, _logarithm, on_matrix=True),
    # Singular values and vectors by the eigenvalues of FᵀF, at the least.
    _normalisation(SVD_ROOT, _together(_bilinear, _eigen), lambda D: svd_root),
    _pool(PLAIN, _bilinear, _head(BilinearPool)),
    _pool(RUN1, _together(_bilinear, _factor(1)), _head(RUNPool, eta=_ETA, num_steps=1)),
    _pool(RUN2, _together(_bilinear, _factor(2)), _head(RUNPool, eta=_ETA, num_steps=2)),
    _pool(
        "RUN, K = 1, constant v",
        _together(_bilinear, lambda N, D: 12.0 * N * D),
        _head(RUNPool, eta=_ETA, num_steps=1, differentiate_direction=False),
    ),
    _pool(EIGEN, _together(_bilinear, _eigen), _head(MatrixPowerPool)),
    _pool(NEWTON, _together(_bilinear, _newton_operations), _head(ISQRTPool)),
    _pool("log-Euclidean", _together(_bilinear, _eigen), _head(LogEuclideanPool, eps=_EPS)),
    _pool("compact", _bilinear, _head(CompactBilinearPool, run=False, **_sketch)),
    _pool(
        "compact with RUN, K = 1",
        _together(_bilinear, _factor(1)),
        _head(CompactBilinearPool, eta=_ETA, num_steps=1, **_sketch),
    ),
)


def methods_of(part: Part) -> tuple[Method, ...]:
    """Methods of one part, in the order of tables."""
    return tuple(method for method in METHODS if method.part == part)
