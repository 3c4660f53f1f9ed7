"""Tensors whose features are random: functions of Gaussian latents."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import count
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from equipoise.theory.propagation import latent, pair_averages
from equipoise.theory.propagation.exchangeable import Exchangeable
from equipoise.theory.propagation.filters import Filters
from equipoise.theory.propagation.layout import Atom, Layout, UnpredictedError
from equipoise.theory.propagation.values.known import Known

Array = NDArray[np.float64]
Indices = NDArray[np.intp]
# The largest relative variance of squared sizes of rows that norms are predicted for.
_MOST_UNEVEN = 0.06
# Numbers of the latents that are new; those of an operation begin with its own number.
_unlike_all = count(1 << 60)
new_latents: ContextVar[Iterator[int]] = ContextVar("new_latents", default=_unlike_all)


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


def _is_odd(table: Array) -> bool:
    """Whether a function of a latent has the latent's sign."""
    return bool(np.abs(table + table[:, ::-1]).max() <= 1e-9 * np.abs(table).max())


def _pairs_at(pairs: Array, index: NDArray[np.intp]) -> Array:
    """Rows and columns, which may repeat; of equal pairs, as constants have, without a copy."""
    if pairs.size and pairs.min() == pairs.max():
        return np.broadcast_to(pairs[0, 0], (len(index), len(index)))
    return pairs.take(index, 1).take(index, 0)
