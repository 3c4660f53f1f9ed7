"""What is known of a tensor: its values, or its moments over random weights."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import cached_property, partial
from itertools import count
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from equipoise.instrument.recording.graph import MOST_POSITIONS
from equipoise.theory.propagation import latent, pair_averages
from equipoise.theory.propagation.exchangeable import Average, Exchangeable, Later, of_draws
from equipoise.theory.propagation.filters import Filters
from equipoise.theory.propagation.layout import Atom, Layout, LayoutError, UnpredictedError
from equipoise.theory.propagation.tensors import (
    ScatterOfProducts,
    SecondMoments,
    mean_square,
    require_values,
    samples_apart,
)

Array = NDArray[np.float64]
Indices = NDArray[np.intp]

# The largest relative variance of squared sizes of rows that norms are predicted for.
_MOST_UNEVEN = 0.06
# Maps of so many positions are followed, pair by pair: 64 × 64, unless a graph has fewer.
most_positions: ContextVar[int] = ContextVar("most_positions", default=MOST_POSITIONS)
# Numbers of the latents that are new; those of an operation begin with its own number.
_unlike_all = count(1 << 60)
new_latents: ContextVar[Iterator[int]] = ContextVar("new_latents", default=_unlike_all)


@dataclass(frozen=True, slots=True, eq=False)
class Known:
    """A tensor without random features of its own, or one of weights.

    Args:
        value: The tensor.
        layout: Its axes, if they were followed.
        parameter: Name of the parameter from which alone it comes, if any.
        data: Whether it depends on the batch.
        others: Latents that it depends on, where the way to it was cut.
    """

    value: Tensor
    layout: Layout | None = None
    parameter: str | None = None
    data: bool = False
    others: frozenset[Hashable] = frozenset()

    @property
    def latents(self) -> frozenset[Hashable]:
        """As of :class:`Moments`."""
        return self.others


class Unfinished(ABC):
    """What is known of a tensor is how operations made it, until others finish it.

    Such as products of queries and keys.
    """

    __slots__ = ()

    @property
    @abstractmethod
    def latents(self) -> frozenset[Hashable]:
        """As of :class:`Moments`."""


class OfParameter(NamedTuple):
    """A parameter that differs between features, among what elements depend on."""

    name: str


@dataclass(frozen=True, slots=True, eq=False)
class Drawn:
    """How elements of one feature come from those of other tensors, see :mod:`.draws`.

    Args:
        inputs: The other tensors.
        function: Of tensors of their elements, each of shape ``[draws, P]``.
    """

    inputs: tuple[Moments, ...]
    function: Callable[..., Tensor]


class MadeBy(NamedTuple):
    """Weights that made a tensor, among what its elements depend on.

    Args:
        weights: Name of the parameter.
        turned: Whether rows and columns were exchanged.
        node: Number of the operation.
    """

    weights: str
    turned: bool
    node: int


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
        others: Latents that elements also depend on, of tensors of which they are sums, products
            or averages, and the weights that made them.
        moved: The tensor whose positions a matrix takes to those of this one, and the matrix, or
            an index of positions; None for positions that stay where they are, a number for those
            that are multiplied with it.
        scatter: Variance of products of two positions, averaged over features, beyond the 1/C of
            as many independent features: between samples, and by finite layers before. In units
            of the squared variance over positions.
        filters: If every feature has weights of its own, and nothing came after, these.
        steady: Part of the squared variance of a feature's rows that every draw has the same: 1
            behind batch norm, less where a branch was added, 0 behind weights.
        balanced: The same of a row's features: 1 behind layer norm.
        dimensions: If the latents are coordinates of points on a sphere, of how many dimensions.
        known: What was computed of the law, for all tensors that have the same one.
        drawn: How to draw its elements, if they are made of those of several tensors.
        signs: Weights with whose sign that of all elements changes.
        uneven: Relative variance of what features of a head have in common in their squares, times
            how many these are.
        sized_by: Latents whose average over features it is a function of.
    """

    layout: Layout
    order: tuple[Atom, ...]
    correlation: Exchangeable
    table: Array
    gaussian: bool
    latent: Hashable = field(default_factory=lambda: next(new_latents.get()))
    parts: tuple[Moments, ...] = ()
    dimensions: float | None = None
    root: Moments | None = None
    others: frozenset[Hashable] = frozenset()
    moved: tuple[Moments, Array | Indices | float | None] | None = None
    known: dict[str, Exchangeable] = field(default_factory=dict)
    scatter: float = 0.0
    filters: Filters | None = None
    steady: float = 0.0
    balanced: float = 0.0
    drawn: Drawn | None = None
    signs: frozenset[MadeBy] = frozenset()
    uneven: float = 0.0
    sized_by: frozenset[Hashable] = frozenset()

    @cached_property
    def draws(self) -> dict[str, NDArray[Any]]:
        """What has been drawn of it."""
        return {}

    @property
    def covariance(self) -> Exchangeable:
        """Second moments of the elements, means included."""
        if "covariance" not in self.known:
            self.known["covariance"] = self._covariance()
        return self.known["covariance"]

    def _covariance(self) -> Exchangeable:
        if self.gaussian:
            mean = latent.mean(self.table)  # [P], or [1] where all positions are alike
            std = np.sqrt(latent.mean((self.table - mean[:, None]) ** 2))
            means, scale, c = np.outer(mean, mean), np.outer(std, std), self.correlation
            return Exchangeable(means + scale * c.same, means + scale * c.diff, c.samples)
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
        return self.correlation.positions

    @cached_property
    def second_moment(self) -> float:
        """Average of the squared elements."""
        return float((self.mean**2 + self.std**2).mean())

    @property
    def sample_correlation(self) -> float:
        """Second moment of two samples at one position over that of one."""
        if self.gaussian or "covariance" in self.known:
            total, shared = self.covariance.mean_diagonal, self.covariance.mean_shared
        else:
            correlation, total = np.diagonal(self.correlation.diff), self.second_moment
            shared = float(
                pair_averages.at_equal_positions(self.table, correlation, self.dimensions).mean()
            )
        return shared / total if total > 0 else 0.0

    @property
    def row_correlation(self) -> float:
        """Second moment of two rows, samples or positions, over that of one."""
        rows = self.correlation.rows
        total = rows * self.covariance.mean_diagonal
        if rows < 2 or total <= 0:
            return 0.0
        return (self.covariance.total() - total) / (total * (rows - 1))

    @property
    def is_constant(self) -> bool:
        """Whether all features are equal."""
        return bool((self.std <= 1e-12 * np.abs(self.mean)).all())

    def require_even(self, count: int) -> None:
        """Raise where so many features of a row have no common size.

        Raises:
            UnpredictedError: If squares vary more, relative to their average, than sizes of
                gradients may, which vary far more.
        """
        if self.uneven > _MOST_UNEVEN * count:
            raise UnpredictedError("a norm of heads whose size a few scores decide")

    def places(self, order: Sequence[Atom]) -> NDArray[np.intp]:
        """Where positions in another order stand in the arrays."""
        index = np.arange(self.positions).reshape([atom.size for atom in self.order])
        return index.transpose([self.order.index(atom) for atom in order]).ravel()

    def on_sphere(self, dimensions: float) -> Moments:
        """The same moments with latents on a sphere, instead of Gaussian ones."""
        z = latent.on_sphere(dimensions)
        table = self.mean[: len(self.table), None] + self.std[: len(self.table), None] * z
        return replace(self, table=table, dimensions=dimensions, known={})

    def within(self, least: Array, most: Array) -> Moments:
        """The same, without what the shape of another position says beyond bounds ``[P]``.

        The variance hardly changes, but a root or a logarithm may come behind.
        """
        if len(self.table) == 1:
            least, most = least.min(keepdims=True), most.max(keepdims=True)
        return replace(self, table=np.clip(self.table, least[:, None], most[:, None]))

    def averaged(self, table: Array) -> Exchangeable:
        """E[T(g₁)T(g₂)] for another function of the same latents."""
        c, n = self.correlation, self.dimensions
        average = pair_averages.averages(table, table, n)
        return Exchangeable(average(c.same), average(c.diff), c.samples)

    def with_other_features(self, layout: Layout) -> Moments:
        """Features of the same law that are none of these."""
        return replace(
            self,
            layout=layout,
            latent=next(new_latents.get()),
            parts=(),
            root=None,
            others=frozenset(),
            moved=None,
            drawn=None,
        )

    @property
    def latents(self) -> frozenset[Hashable]:
        """All latents that elements depend on, at whatever positions."""
        latent = self.latent
        while isinstance(latent, tuple):
            latent = latent[0]
        return self.others | {latent}

    @property
    def parameters(self) -> frozenset[OfParameter]:
        """Parameters that features differ by."""
        return frozenset(other for other in self.others if isinstance(other, OfParameter))

    @property
    def made_by(self) -> frozenset[MadeBy]:
        """Weights after which no others came."""
        return frozenset(other for other in self.others if isinstance(other, MadeBy))

    def made_of(self, *parts: Moments) -> Moments:
        """The same, as something that depends on the latents of its parts."""
        return replace(self, others=self.others.union(*(part.latents for part in parts)))

    def with_table(self, table: Array, *, gaussian: bool) -> Moments:
        """Another function of the same latents."""
        root, scatter = self.root or self, self.scatter
        if scatter:
            scatter *= (latent.linear_share(table) / latent.linear_share(self.table)) ** 2
        return replace(
            self,
            table=table,
            gaussian=gaussian,
            parts=(),
            root=root,
            moved=None,
            known={},
            scatter=scatter,
            filters=None,
            steady=self.steady if self.gaussian and gaussian else 0.0,
            balanced=self.balanced if self.gaussian and gaussian else 0.0,
            drawn=None,
            signs=self.signs if _is_odd(table) and _is_odd(self.table) else frozenset(),
        )

    def with_layout(self, layout: Layout, parts: dict[Atom, tuple[Atom, ...]]) -> Moments:
        """Other axes for the same elements; ``parts`` are atoms that were split."""
        order = tuple(piece for atom in self.order for piece in parts.get(atom, (atom,)))
        kept = self.parts if layout.axes == self.layout.axes else ()
        root = None if parts else self.root or self
        moved = self, None
        return replace(
            self, layout=layout, order=order, parts=kept, root=root, moved=moved, drawn=None
        )

    def at(self, index: NDArray[np.intp], layout: Layout, order: Sequence[Atom]) -> Moments:
        """The elements at some positions, which may repeat."""
        if np.array_equal(index, np.arange(self.positions)):
            moved = self, None
            return replace(self, layout=layout, order=tuple(order), moved=moved, drawn=None)
        pairs = self.correlation
        same, diff = _pairs_at(pairs.same, index), _pairs_at(pairs.diff, index)
        return replace(
            self,
            layout=layout,
            order=tuple(order),
            correlation=Exchangeable(same, diff, pairs.samples),
            table=self.table if len(self.table) == 1 else self.table[index],
            latent=(self.latent, index.tobytes()),
            parts=(),
            root=None,
            moved=(self, index),
            known={},
            drawn=None,
        )

    def moved_from(self) -> Iterator[Moments]:
        """This tensor, and those whose positions it is made of, latest first."""
        value: Moments = self
        yield value
        while value.moved is not None:
            value = value.moved[0]
            yield value

    def matrix_from(self, source: Moments) -> Array:
        """What takes the positions of one of :meth:`moved_from` to those of this tensor."""
        matrix = np.eye(self.positions)
        for value in self.moved_from():
            if value is source or value.moved is None:
                break
            before, move = value.moved
            if isinstance(move, float):
                matrix = matrix * move
            elif move is not None:
                matrix = matrix @ (np.eye(before.positions)[move] if move.ndim == 1 else move)
        return matrix


Value: TypeAlias = Known | Moments


class Behind(NamedTuple):
    """The gradient behind functions of single elements.

    Args:
        gradient: Behind all of them.
        slope: The product of their derivatives, a table of the latents.
        latent: Of what they are functions.
    """

    gradient: Gradient
    slope: Array
    latent: Hashable


@dataclass(frozen=True, slots=True, eq=False)
class Gradient:
    r"""Second moments of the derivatives of the loss by the elements of a tensor.

    Args:
        pairs: Averages of products at two rows, in the order of the tensor's positions.
        weight: :math:`w(g)`, how the mean square depends on the element's own latent; averages
            to 1; of shape ``[M]``.
        excess: By how much averages of gradient times latent at two rows exceed what they would
            be if the two were independent; None for not at all.
        filters: Mean square of the weights of a feature, weighted by its squared gradient, over
            that of all.
        parts: Of a concatenation, the gradients of its parts.
        draws: Where it comes from operations whose inputs were drawn, a part of it that belongs
            to the same draws, of shape ``[2, draws, 2, P]``, see :mod:`.draws`.
        orthogonal: Share of what features of a row would have along the tensor's that is missing,
            as a layer norm behind took it off.
        behind: If it came through functions of single elements just before, from where.
        rows: Share of the rows that have one, where others took the place of the rest.
    """

    pairs: Exchangeable
    weight: Array = field(default_factory=lambda: np.ones_like(latent.nodes()[0]))
    excess: Exchangeable | None = None
    parts: tuple[Gradient, ...] = ()
    filters: float = 1.0
    draws: Array | None = None
    behind: Behind | None = None
    orthogonal: float = 0.0
    rows: float = 1.0

    def times(self, factor: float) -> Gradient:
        """That of a tensor that is multiplied with a number, and all else is of the product."""
        draws = None if self.draws is None else self.draws * factor
        return replace(self, pairs=self.pairs * factor**2, excess=None, draws=draws, behind=None)

    def __add__(self, other: Gradient) -> Gradient:
        ours, theirs = self.pairs.mean_diagonal, other.pairs.mean_diagonal
        total = ours + theirs
        if total == 0:
            return self
        weight = (ours * self.weight + theirs * other.weight) / total
        filters = (ours * self.filters + theirs * other.filters) / total
        lead = self if self.parts else other
        parts: tuple[Gradient, ...] = ()
        if isinstance(lead.pairs, Average):
            count = len(lead.parts)
            both = zip(self.parts or [self] * count, other.parts or [other] * count, strict=True)
            parts = tuple(a + b for a, b in both)
            pairs: Exchangeable = lead.pairs.of([part.pairs for part in parts])
        else:
            pairs = self.pairs + other.pairs
        excess = self.excess or other.excess
        if self.excess is not None and other.excess is not None:
            excess = self.excess + other.excess
        draws = other.draws if self.draws is None else self.draws
        if self.draws is not None and other.draws is not None:
            draws = self.draws + other.draws
            alone, common = (
                of_draws(a, b, pairs.samples) for a, b in zip(self.draws, other.draws, strict=True)
            )
            same = pairs.same + 2 * (alone.same + common.same)
            pairs = Exchangeable(same, pairs.diff + 2 * common.diff, pairs.samples)
        orthogonal = (ours * self.orthogonal + theirs * other.orthogonal) / total
        return Gradient(pairs, weight, excess, parts, filters, draws, orthogonal=orthogonal)


def _is_odd(table: Array) -> bool:
    """Whether a function of a latent has the latent's sign."""
    return bool(np.abs(table + table[:, ::-1]).max() <= 1e-9 * np.abs(table).max())


def gaussian(layout: Layout, order: Sequence[Atom], covariance: Exchangeable) -> Moments:
    """Gaussian elements without a mean over features."""
    return from_covariance(layout, order, covariance, np.zeros(len(covariance.same)))


def _pairs_at(pairs: Array, index: NDArray[np.intp]) -> Array:
    """Rows and columns, which may repeat; of equal pairs, as constants have, without a copy."""
    if pairs.size and pairs.min() == pairs.max():
        return np.broadcast_to(pairs[0, 0], (len(index), len(index)))
    return pairs.take(index, 1).take(index, 0)


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


def bias_moments(bias: object, weights: Tensor, grown: Fraction) -> tuple[float, float]:
    """Mean and mean square of a bias, of a layer whose inputs are that many times as many.

    A bias that has the variance of the weights, up to four standard errors, is drawn as PyTorch
    draws it, and shrinks with them. A mean within four standard errors of 0 is taken for none.
    """
    if not isinstance(bias, Known):
        return 0.0, 0.0
    size, own, count = mean_square(bias.value), mean_square(weights), bias.value.numel()
    mean = float(bias.value.detach().double().mean())
    if mean**2 * count <= 16 * (size - mean**2):
        mean = 0.0
    # The square of a uniform number has a variance of 4/5 of its squared mean.
    alike = abs(size - own) < 4 * own * math.sqrt(0.8 / count)
    return (0.0, size / float(grown)) if alike and not mean else (mean, size)
