"""What is known of a tensor: its values, or its moments over random weights."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import count
from typing import TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from equipoise.theory.propagation import latent
from equipoise.theory.propagation.exchangeable import Exchangeable
from equipoise.theory.propagation.layout import Atom, Layout, LayoutError

Array = NDArray[np.float64]

# Pairs of positions are followed exactly up to maps of 64 × 64.
MOST_POSITIONS = 4096
_identities = count()


class UnpredictedError(ValueError):
    """Theory does not cover an operation on these inputs."""


@dataclass(frozen=True, slots=True, eq=False)
class Known:
    """A tensor without random features of its own, or one of weights.

    Args:
        value: The tensor.
        layout: Its axes, if they were followed.
        parameter: Name of the parameter from which alone it comes, if any.
        data: Whether it depends on the batch.
    """

    value: Tensor
    layout: Layout | None = None
    parameter: str | None = None
    data: bool = False


@dataclass(frozen=True, eq=False)
class Moments:
    r"""A tensor as a function of Gaussian latents, independent between features.

    The element at position p is :math:`x_p = T_p(g_p)`.

    Args:
        layout: Its axes: one sample atom, positions and features.
        order: The positions, as the arrays below run over them.
        correlation: Of the latents g.
        table: T on the nodes of :func:`latent.nodes`, of shape ``[P, M]`` or ``[1, M]``.
        gaussian: Whether T is affine.
        latent: Tensors with one number are functions of the same latents.
        parts: Of a concatenation of features, its parts.
        root: The tensor whose elements made the latents, if it is not this one.
        dimensions: If the latents are coordinates of points on a sphere, of how many dimensions.
    """

    layout: Layout
    order: tuple[Atom, ...]
    correlation: Exchangeable
    table: Array
    gaussian: bool
    latent: int = field(default_factory=lambda: next(_identities))
    parts: tuple[Moments, ...] = ()
    dimensions: float | None = None
    root: Moments | None = None

    @cached_property
    def covariance(self) -> Exchangeable:
        """Second moments of the elements, means included."""
        if self.gaussian:
            mean, std = self.mean, self.std
            means, scale = np.outer(mean, mean), np.outer(std, std)
            c = self.correlation
            return Exchangeable(
                means + scale * c.same, means + scale * c.diff, self.correlation.samples
            )
        return self.averaged(self.table)

    @cached_property
    def mean(self) -> Array:
        """Average over features, of shape ``[P]``."""
        return np.broadcast_to(latent.mean(self.table), self.positions)

    @cached_property
    def std(self) -> Array:
        """Standard deviation over features, of shape ``[P]``."""
        centred = self.table - latent.mean(self.table)[:, None]
        return np.broadcast_to(np.sqrt(latent.mean(centred**2)), self.positions)

    @property
    def typical(self) -> Array:
        """T at the position of median size, of shape ``[M]``."""
        row = 0 if len(self.table) == 1 else int(np.argsort(self.std)[len(self.std) // 2])
        return np.asarray(self.table[row])

    @property
    def positions(self) -> int:
        """P."""
        return len(self.correlation.same)

    @property
    def second_moment(self) -> float:
        """Average of the squared elements."""
        return float((self.mean**2 + self.std**2).mean())

    @property
    def sample_correlation(self) -> float:
        """Second moment of two samples at one position over that of one."""
        diagonal = float(np.diagonal(self.covariance.diff).mean())
        total = self.covariance.mean_diagonal
        return diagonal / total if total > 0 else 0.0

    @property
    def is_constant(self) -> bool:
        """Whether all features are equal."""
        return bool((self.std <= 1e-12 * np.abs(self.mean)).all())

    def places(self, order: Sequence[Atom]) -> NDArray[np.intp]:
        """Where positions in another order stand in the arrays."""
        index = np.arange(self.positions).reshape([atom.size for atom in self.order])
        return index.transpose([self.order.index(atom) for atom in order]).ravel()

    def on_sphere(self, dimensions: float) -> Moments:
        """The same moments with latents on a sphere, instead of Gaussian ones."""
        z = latent.on_sphere(dimensions)
        table = self.mean[: len(self.table), None] + self.std[: len(self.table), None] * z
        return replace(self, table=table, dimensions=dimensions)

    def averaged(self, table: Array) -> Exchangeable:
        """E[T(g₁)T(g₂)] for another function of the same latents."""
        c, n = self.correlation, self.dimensions
        same, diff = (latent.pairs(table, table, block, n) for block in (c.same, c.diff))
        return Exchangeable(same, diff, c.samples)

    def with_other_features(self, layout: Layout) -> Moments:
        """Features of the same law that are none of these."""
        return replace(self, layout=layout, latent=next(_identities), parts=(), root=None)

    def with_table(self, table: Array, *, gaussian: bool) -> Moments:
        """Another function of the same latents."""
        return replace(self, table=table, gaussian=gaussian, parts=(), root=self.root or self)

    def with_layout(self, layout: Layout, parts: dict[Atom, tuple[Atom, ...]]) -> Moments:
        """Other axes for the same elements; ``parts`` are atoms that were split."""
        order = tuple(piece for atom in self.order for piece in parts.get(atom, (atom,)))
        kept = self.parts if layout.axes == self.layout.axes else ()
        root = None if parts else self.root or self
        return replace(self, layout=layout, order=order, parts=kept, root=root)


Value: TypeAlias = Known | Moments


@dataclass(frozen=True, slots=True, eq=False)
class Gradient:
    r"""Second moments of the derivatives of the loss by the elements of a tensor.

    Args:
        pairs: Averages of products at two rows, in the order of the tensor's positions.
        weight: :math:`w(g)`, how the mean square depends on the element's own latent; averages
            to 1; of shape ``[M]``.
        excess: By how much averages of gradient times latent at two rows exceed what they would
            be if the two were independent; None for not at all.
        parts: Of a concatenation, the gradients of its parts.
    """

    pairs: Exchangeable
    weight: Array = field(default_factory=lambda: np.ones_like(latent.nodes()[0]))
    excess: Exchangeable | None = None
    parts: tuple[Gradient, ...] = ()

    def __add__(self, other: Gradient) -> Gradient:
        ours, theirs = self.pairs.mean_diagonal, other.pairs.mean_diagonal
        total = ours + theirs
        if total == 0:
            return self
        weight = (ours * self.weight + theirs * other.weight) / total
        parts: tuple[Gradient, ...] = ()
        if self.parts or other.parts:
            count = len(self.parts or other.parts)
            both = zip(self.parts or [self] * count, other.parts or [other] * count, strict=True)
            parts = tuple(a + b for a, b in both)
        excess = self.excess or other.excess
        if self.excess is not None and other.excess is not None:
            excess = self.excess + other.excess
        return Gradient(self.pairs + other.pairs, weight, excess, parts)


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
    scale = np.outer(std, std)
    scale = np.where(scale > 0, scale, np.inf)
    means = np.outer(mean, mean)
    blocks = [(block - means) / scale for block in (covariance.same, covariance.diff)]
    g, _ = latent.nodes()
    if shape is not None:
        blocks = [latent.correlation_of(shape, block) for block in blocks]
    same, diff = (np.clip(block, -1, 1) for block in blocks)
    np.fill_diagonal(same, 1.0)
    if np.ptp(std) <= 1e-12 * std.max(initial=0.0) and np.ptp(mean) <= 1e-12 * np.abs(mean).max():
        mean, std = mean[:1], std[:1]
    table = mean[:, None] + std[:, None] * (g if shape is None else shape)
    return Moments(
        layout,
        tuple(order),
        Exchangeable(same, diff, covariance.samples),
        table,
        gaussian=shape is None,
    )


def measured(value: Tensor, layout: Layout) -> Moments:
    """The moments that a tensor has; open axes count as positions.

    Raises:
        UnpredictedError: If it has too many positions, or no axis of samples.
    """
    layout = layout.with_open_as("position").without_short_axes()
    order = layout.with_role("position")
    array = features_last(value, layout)
    _, positions, features = array.shape
    if positions > MOST_POSITIONS:
        raise UnpredictedError(
            f"{positions} positions; pairs are followed exactly up to {MOST_POSITIONS}"
        )
    mean = array.mean((0, 2)) if features > 1 else np.zeros(positions)
    return from_covariance(layout, order, products(array), mean)


def products(array: Array) -> Exchangeable:
    """Average products of two positions, of values ``[samples, positions, features]``."""
    samples, positions, features = array.shape
    total = array.sum(0)
    rows = array.transpose(1, 0, 2).reshape(positions, -1)
    own = rows @ rows.T
    diff = (total @ total.T - own) / max(1, samples * (samples - 1) * features)
    return Exchangeable(own / (samples * features), diff, samples)


def features_last(value: Tensor, layout: Layout) -> Array:
    """Values as ``[samples, positions, features]``."""
    atoms = layout.atoms
    if len(layout.with_role("sample")) != 1:
        raise UnpredictedError("no axis of samples was followed to here")
    sizes = [atom.size for atom in atoms]
    roles = ("sample", "position", "feature")
    order = [i for role in roles for i, atom in enumerate(atoms) if atom.role == role]
    array = value.detach().double().cpu().reshape(sizes).permute(order)
    shape = [math.prod(a.size for a in atoms if a.role == role) for role in roles]
    return np.asarray(array.reshape(shape).numpy())


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


def is_uniform(value: Tensor) -> bool:
    """Whether all elements are equal."""
    return bool((value == value.flatten()[0]).all()) if value.numel() else False


def is_centred(filters: Tensor) -> bool:
    """Whether filters, one a row, sum to zero, as weight standardisation makes them.

    Of independent weights, the squared means average to the mean square over their number.
    """
    rows = filters.detach().double()
    size = rows.square().mean()
    return rows.shape[1] > 1 and bool(rows.mean(1).square().mean() * rows.shape[1] < 1e-3 * size)


def mean_square(value: Tensor) -> float:
    """Average of squares, in float64."""
    with torch.no_grad():
        return float(value.double().square().mean())
