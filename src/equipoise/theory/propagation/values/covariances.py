"""Tensors of given second moments, and of those that are measured."""

from __future__ import annotations

from collections.abc import Sequence
from contextvars import ContextVar
from dataclasses import replace
from functools import partial

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from equipoise.instrument.recording.graph import MOST_POSITIONS
from equipoise.theory.propagation import latent, pair_averages
from equipoise.theory.propagation.exchangeable import Exchangeable, Later
from equipoise.theory.propagation.layout import Atom, Layout, LayoutError, UnpredictedError
from equipoise.theory.propagation.tensors import (
    ScatterOfProducts,
    SecondMoments,
    require_values,
    samples_apart,
)
from equipoise.theory.propagation.values.moments import Moments

Array = NDArray[np.float64]
# Maps of so many positions are followed, pair by pair: 64 × 64, unless a graph has fewer.
most_positions: ContextVar[int] = ContextVar("most_positions", default=MOST_POSITIONS)


def gaussian(layout: Layout, order: Sequence[Atom], covariance: Exchangeable) -> Moments:
    """Gaussian elements without a mean over features."""
    return from_covariance(layout, order, covariance, np.zeros(len(covariance.same)))


def from_covariance(
    layout: Layout,
    order: Sequence[Atom],
    covariance: Exchangeable,
    mean: Array,
    shape: Array | None = None,
) -> Moments:
    """Elements of given second moments.

    Args:
        layout: The axes.
        order: The positions.
        covariance: Second moments, means included.
        mean: Averages over features, of shape ``[P]``.
        shape: Table of the standardised elements, of shape ``[M]``; Gaussian by default.
    """
    variance = np.maximum(covariance.diagonal - mean**2, 0)
    std = np.sqrt(variance)
    correlation = partial(_correlation, covariance, mean, std, shape)
    g, _ = latent.nodes()
    if np.ptp(std) <= 1e-12 * std.max(initial=0.0) and np.ptp(mean) <= 1e-12 * np.abs(mean).max():
        mean, std = mean[:1], std[:1]
    table = mean[:, None] + std[:, None] * (g if shape is None else shape)
    return Moments(
        layout,
        tuple(order),
        Later(correlation, covariance.positions, covariance.samples),
        table,
        gaussian=shape is None,
        known={"covariance": covariance},
    )


def _correlation(
    covariance: Exchangeable, mean: Array, std: Array, shape: Array | None
) -> Exchangeable:
    """Of the latents of elements of given moments."""
    scale = np.outer(std, std)
    scale[scale <= 0] = np.inf
    means = np.outer(mean, mean) if mean.any() else 0.0
    blocks = [(block - means) / scale for block in (covariance.same, covariance.diff)]
    if shape is not None:
        blocks = [pair_averages.correlation_of(shape, block) for block in blocks]
    same, diff = (np.clip(block, -1, 1, out=block) for block in blocks)
    np.fill_diagonal(same, 1.0)
    return Exchangeable(same, diff, covariance.samples)


def measured(value: Tensor, layout: Layout) -> Moments:
    """The moments that a tensor has; open axes count as positions.

    Raises:
        UnpredictedError: If it has too many positions, no axis of samples or no values.
    """
    require_values(value)
    layout = layout.with_open_as("position").without_short_axes()
    order = layout.with_role("position")
    require_few(layout.size("position"))  # before large maps are copied
    pairs, scatter, total, count = SecondMoments(), ScatterOfProducts(), np.zeros(()), 0
    for array in samples_apart(value, layout):
        samples, _, features = array.shape
        pairs.add(array)
        scatter.add(array)
        total, count = total + array.sum((0, 2)), count + samples * features
    mean = total / count if features > 1 else np.zeros_like(total)
    moments = from_covariance(layout, order, pairs.of(layout.count("sample")), mean)
    return replace(moments, scatter=scatter.value - 1 / features)


def require_few(positions: int) -> None:
    """Raise where pairs of positions would be too many.

    Raises:
        UnpredictedError: If there are more than :data:`most_positions`.
    """
    most = most_positions.get()
    if positions > most:
        reason = f"{positions} positions; pairs are followed exactly up to {most}"
        raise UnpredictedError(f"{reason} in this time" if most < MOST_POSITIONS else reason)


def arranged(pairs: Exchangeable, order: Sequence[Atom], wanted: Sequence[Atom]) -> Exchangeable:
    """Reorder the positions."""
    if tuple(order) == tuple(wanted):
        return pairs
    if set(order) != set(wanted):
        raise LayoutError("the positions of two tensors differ")
    index = np.arange(len(pairs.same)).reshape([atom.size for atom in order])
    index = index.transpose([list(order).index(atom) for atom in wanted]).ravel()
    grid = np.ix_(index, index)
    return Exchangeable(pairs.same[grid], pairs.diff[grid], pairs.samples)
