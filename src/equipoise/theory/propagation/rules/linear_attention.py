r"""Attention without a softmax: products of queries and keys that multiply values as they are.

Row t weighs values by :math:`a_{ts} = c_{ts}\,q_t \cdot k_s`, c known: a mask, a decay, a scale.
With D features of a head, means m and second moments K, products average to
:math:`A_{ts} = c_{ts} D\,m_q(t)\,m_k(s)`, as of feature maps that are positive, and vary beside:

.. math:: K_{out} = A K_v A^\top
          + D\big(K_q \circ T(K_k) - m_q m_q^\top \circ T(m_k m_k^\top)\big),
          \qquad T(X)_{tt'} = \sum_{ss'} c_{ts} c_{t's'} X_{ss'}
          \langle s - \bar s_t,\; s' - \bar s_{t'} \rangle_{K_v} .

Where rows are divided by their sums, these are constant but for what they take off the values, the
average :math:`\bar s_t` of row t; else :math:`\bar s = 0`. Back, with E features of values,

.. math:: \Pi_q = E\,\Pi \circ T(K_k), \qquad
          \Pi_k(s, s') = E \sum_{tt'} c_{ts} c_{t's'} (\Pi \circ K_q)_{tt'}
          \langle s - \bar s_t,\; s' - \bar s_{t'} \rangle_{K_v}, \qquad
          \Pi_v = E[a^\top \Pi\, a] .

Keys and values share the products of their tokens, which adds
:math:`\varsigma u_t u_{t'}`, :math:`u_t = \sum_s c_{ts} \sqrt{K_v(s, s) K_k(s, s)}`, to T as in
:mod:`.attention`; where rows are divided, of keys and values less the averages of the row. A state
:math:`\sum_s k_s v_s^\top`, over all s or over earlier ones, that queries are multiplied with
later is the same product in another order.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.linalg import block_diag

from equipoise.theory.propagation.call import Call, Pulled, Result, chained, of_the_width
from equipoise.theory.propagation.exchangeable import Exchangeable
from equipoise.theory.propagation.layout import Atom, Layout, UnpredictedError
from equipoise.theory.propagation.rules.arithmetic.products import multiply
from equipoise.theory.propagation.rules.attention import (
    Scores,
    exchanges_last,
    moves_short_axes,
    of_own_heads,
    windows_first,
)
from equipoise.theory.propagation.rules.positions.averages import of_sum
from equipoise.theory.propagation.rules.softmax import distances
from equipoise.theory.propagation.values import (
    Gradient,
    Moments,
    Unfinished,
    arranged,
    from_covariance,
)

Array = NDArray[np.float64]

NEAR_ZERO = "attention without a softmax, of rows that a few scores may bring near 0"
SCALED = "queries whose scale a norm behind takes off"
VARIED = "attention without a softmax, of rows whose sums vary much"
# Of fewer keys whose scores have both signs, sums may be near 0, where gradients of a norm behind
# them have no finite mean square.
_FEWEST_KEYS = 3.0
# Beyond this relative variance of sums, what they divide is not that over their averages; and of
# sizes of outputs, those are small where gradients of a norm behind are large.
_MOST_VARIED, _MOST_UNEVEN = 0.03, 0.1
# Of the gradients of queries, what keys have on average makes more than that.
_MOST_OF_SCALE = 0.1


@dataclass(frozen=True, slots=True, eq=False)
class State(Unfinished):
    """Products of keys and values, on their way to the queries.

    Args:
        keys: With their features as the last axis.
        origin: The keys as the product took them.
        values: The values.
        seen: Which steps each state is the sum of, of shape ``[T, S]``; one row for all steps.
        steps: The axis of steps, as long as there is one.
        scale: What the products are multiplied with.
        turned: Whether the last two axes were exchanged.
    """

    keys: Moments
    origin: Moments
    values: Moments
    seen: Array
    steps: int | None = None
    scale: float = 1.0
    turned: bool = False

    @property
    def latents(self) -> frozenset[Hashable]:
        """Of keys and values."""
        return self.keys.latents | self.values.latents


@dataclass(frozen=True, slots=True, eq=False)
class Weighed:
    """Sums of values before they are divided by the sums of their weights.

    Args:
        queries: The queries.
        keys: The keys.
        origin: The keys as the product with values took them.
        values: The values.
        factor: c.
        output: The sums.
    """

    queries: Moments
    keys: Moments
    origin: Moments
    values: Moments
    factor: Array
    output: Moments

    def over(self, weights: Weights) -> Result:
        """The same over the sums of their weights.

        Gradients are those of what both were made of, as what both bring cancels in part.
        """
        q, k, v = self.queries, self.keys, self.values
        orders = [*q.order], [*k.order], [*v.order]
        given = self.origin, v
        result = _attended(q, k, v, given, [self.factor], orders, divided=True)
        whole = (q, _of_both(q, weights.queries)), (given[0], _of_both(given[0], weights.sums))

        def pullback(gradient: Gradient) -> Pulled:
            assert result.pullback is not None
            inputs = list(result.pullback(gradient).inputs)
            for part, source in whole:
                inputs = [(source if x is part else x, own) for x, own in inputs]
            return Pulled(inputs)

        return replace(result, pullback=pullback)


@dataclass(frozen=True, slots=True, eq=False)
class Weights:
    """Products of queries and sums of keys.

    Args:
        queries: The queries.
        sums: The sums of keys.
        output: The products.
    """

    queries: Moments
    sums: Moments
    output: Moments

    @property
    def turned(self) -> Weights:
        """The same factors in the other order."""
        return Weights(self.sums, self.queries, self.output)

    def belong_to(self, sums: Weighed) -> bool:
        """Whether these are the sums of the weights."""
        own = {value.latent for value in self.queries.moved_from()}
        if sums.queries.latent not in own:
            return False
        source = next((x for x in self.sums.moved_from() if x.latent == sums.keys.latent), None)
        if source is None or source.positions != sums.keys.positions:
            return False
        matrix = self.sums.matrix_from(source)
        factor = sums.factor
        if len(matrix) == 1:
            matrix = np.repeat(matrix, len(factor), 0)
        if matrix.shape != factor.shape:
            return False
        size = matrix.sum() / factor.sum()
        return bool(np.allclose(matrix, factor * size))


@dataclass(frozen=True, slots=True, eq=False)
class RowSums(Unfinished):
    """Sums over the keys of scores."""

    scores: Scores

    @property
    def latents(self) -> frozenset[Hashable]:
        """Of the scores."""
        return self.scores.latents


Product: TypeAlias = Scores | State | RowSums


def _of_both(part: Moments, other: Moments) -> Moments:
    """The tensor that two were made of, if one has its elements."""
    kept = {id(value) for value in other.moved_from()}
    for value in part.moved_from():
        if id(value) in kept:
            return value
        if value.moved is None or value.moved[1] is not None:
            break
    return part


def state_of(call: Call) -> State | None:
    """``k.T @ v``, and ``k[..., None] * v[..., None, :]``; None if it is neither."""
    factors = [a for a in call.arguments[:2] if isinstance(a, Moments)]
    if len(factors) != 2 or call.node.name not in ("bmm", "mul"):
        return None
    origin, v = factors
    if call.node.name == "bmm":
        inner = origin.layout.axes[-1]
        if not inner or any(atom.role != "position" for atom in inner):
            return None
        k = _turned(origin)
        if not (_is_of_features(k) and _is_of_features(v)) or len(k.order) != 1:
            return None
        return State(k, origin, v, np.ones((1, k.positions)))
    if len({*(len(x.layout.axes) for x in factors), call.output.ndim}) > 1 or call.output.ndim < 3:
        return None
    origin, v = factors if factors[0].layout.axes[-2] else factors[::-1]
    if origin.layout.axes[-1] or v.layout.axes[-2]:
        return None
    k = _turned(origin)
    features = _is_of_features(k) and _is_of_features(v)
    if not features or len(k.order) != 1 or k.positions != v.positions:
        return None
    steps = next(i for i, axis in enumerate(k.layout.axes) if set(k.order) <= set(axis))
    return State(k, origin, v, np.eye(k.positions), steps)


def _turned(x: Moments) -> Moments:
    """The last two axes exchanged."""
    *others, last, first = x.layout.axes
    return x.with_layout(Layout((*others, first, last)), {})


def _is_of_features(x: Moments) -> bool:
    axis = x.layout.axes[-1]
    return bool(axis) and all(atom.role == "feature" for atom in axis)


def inner_product(call: Call) -> tuple[Result, Weights] | None:
    """``q @ k`` of one key, which is a number for each query; None if there are several."""
    if call.node.name != "bmm" or call.output.shape[-1] != 1:
        return None
    q, k = call.arguments[:2]
    if not all(isinstance(x, Moments) for x in (q, k)) or not _is_of_features(q):
        return None
    turned = _turned(k)
    wide = replace(call.node, outputs=(call.output.expand(q.layout.shape),))
    product = multiply(replace(call, node=wide, arguments=(q, turned), keywords={}))
    before = Result(turned, lambda gradient: Pulled([(k, gradient)]))
    assert isinstance(product.output, Moments)
    total = of_sum(product.output, {len(q.layout.axes) - 1}, keep=True)
    found = chained(chained(before, product), total)
    output = found.output
    assert isinstance(output, Moments)
    if total.pullback is of_the_width:
        found = replace(found, pullback=_of_weights)
        features = Layout((q.layout.axes[-1],)).count("feature")
        spread = product.output.std**2 / np.where(output.mean, output.mean, 1.0) ** 2
        if features * float(spread.mean()) > _MOST_VARIED:
            raise UnpredictedError(VARIED)
    return found, Weights(q, k, output)


def sum_of_products(call: Call, result: Result) -> tuple[Result, Weights] | None:
    """``(q * k).sum(-1)``, the same number; None if it is another sum."""
    x, output = call.arguments[0], result.output
    if result.pullback is not of_the_width or not isinstance(output, Moments):
        return None
    if call.argument("dim") not in ([-1], [len(x.layout.axes) - 1]) or not _is_of_features(x):
        return None
    if x.drawn is None or x.drawn.function is not torch.mul:
        return None
    queries, sums = x.drawn.inputs
    return replace(result, pullback=_of_weights), Weights(queries, sums, output)


def _of_weights(_: Gradient) -> Pulled:
    """The way back of sums of weights that divide something else than what they weigh."""
    raise UnpredictedError("sums of attention weights, which what they divide depends on")


def changed(call: Call, value: Product) -> Product | None:
    """Products on their way; None if the step is one of attention with a softmax."""
    name = call.node.name
    if name in ("view", "_unsafe_view", "clone", "expand", "detach", "_to_copy", "unsqueeze"):
        return value
    if name == "squeeze" or (name in ("permute", "transpose") and moves_short_axes(call)):
        return value
    if isinstance(value, State) and name in ("permute", "transpose") and exchanges_last(call):
        return replace(value, turned=not value.turned)
    if isinstance(value, RowSums):
        if name in ("add", "clamp", "clamp_min"):
            return value  # a small number that keeps them from 0
        raise UnpredictedError(f"{name} of sums of attention scores")
    number = next((a for a in call.arguments if isinstance(a, int | float)), None)
    if isinstance(value, State):
        if name == "cumsum" and value.steps is not None and call.argument("dim") == value.steps:
            return replace(value, seen=np.tril(np.ones_like(value.seen)))
        if name in ("mul", "div") and number is not None:
            return replace(value, scale=value.scale * (number if name == "mul" else 1 / number))
        raise UnpredictedError(f"{name} of products of keys and values")
    if name == "sum" and call.argument("dim") in ([-1], [len(value.shape) - 1]):
        return RowSums(value)
    if name == "div" and isinstance(call.arguments[1], RowSums):
        own = call.arguments[1].scores
        if own is not value:
            raise UnpredictedError("attention scores over sums of others")
        return replace(value, divided=True)
    return None


def of_state(call: Call, state: State) -> tuple[Result, Weighed]:
    """``q @ state``, and what it was made of."""
    q, given = call.arguments[:2]
    plain = given is state and not state.turned
    if not plain or not isinstance(q, Moments) or not _is_of_features(q):
        raise UnpredictedError("a product of keys and values that is multiplied with no queries")
    seen = state.seen
    if len(seen) == 1:
        seen = np.repeat(seen, q.positions, 0)
    if len(seen) != q.positions:
        raise UnpredictedError("queries and states of different steps")
    k, v = state.keys, state.values
    factor = seen * state.scale
    orders = [*q.order], [*k.order], [*v.order]
    result = _attended(q, k, v, (state.origin, v), [factor], orders)
    assert isinstance(result.output, Moments)
    return result, Weighed(q, k, state.origin, v, factor, result.output)


def times_values(scores: Scores, v: Moments) -> Result:
    """``(c * (q @ k.T)) @ v``."""
    q, given = scores.queries, (scores.origin, v)
    k, v = (of_own_heads(value, q) for value in (scores.keys, v))
    if k is not scores.keys or v is not given[1]:
        raise UnpredictedError("attention scores without a softmax, of heads that share keys")
    T, S = scores.shape[-2:]
    if q.positions % T or k.positions * T != q.positions * S or k.positions != v.positions:
        raise UnpredictedError("queries and keys of different windows")
    windows = q.positions // T
    shape = np.broadcast_shapes(np.shape(scores.factor), (1, 1, T, S))
    heads = [
        block_diag(*np.broadcast_to(head * scores.scale, (windows, T, S)))
        for head in np.broadcast_to(scores.factor, shape)
    ]
    if all(np.array_equal(head, heads[0]) for head in heads):
        heads = heads[:1]
    orders = tuple(windows_first(value) for value in (q, k, v))
    return _attended(q, k, v, given, heads, orders, divided=scores.divided)


def _attended(
    q: Moments,
    k: Moments,
    v: Moments,
    given: tuple[Moments, Moments],
    factors: Sequence[Array],
    orders: Sequence[Sequence[Atom]],
    *,
    divided: bool = False,
) -> Result:
    """Sums of values, weighed by products.

    Args:
        q: The queries.
        k: The keys.
        v: The values.
        given: Keys and values as operations took them.
        factors: c, of every head that differs from the others.
        orders: In which c has the positions of the three.
        divided: Whether rows are divided by their sums.
    """
    moments = [
        arranged(value.covariance, value.order, order)
        for value, order in zip((q, k, v), orders, strict=True)
    ]
    means = [value.mean[value.places(o)] for value, o in zip((q, k, v), orders, strict=True)]
    scatter = math.sqrt(max(k.scatter, 0.0) * max(v.scatter, 0.0))
    D, E = (Layout((x.layout.axes[-1],)).count("feature") for x in (q, v))
    N = moments[2].samples
    within, between = (_Blocks(*map(block, moments)) for block in (_same, _diff))
    heads = [_Head.of(c, within, means[0], means[1], D, divided=divided) for c in factors]
    same = np.mean([head.output(within, scatter) for head in heads], 0)
    diff = np.mean([head.output(between, 0.0) for head in heads], 0)
    mean = np.mean([head.average for head in heads], 0) @ means[2]
    layout = Layout((*q.layout.axes[:-1], v.layout.axes[-1]))
    output = from_covariance(layout, orders[0], Exchangeable(same, diff, N), mean)
    uneven = E * float(np.mean([head.uneven for head in heads]))
    output = replace(output, others=v.made_by | q.latents, signs=v.signs, uneven=uneven)

    def pullback(gradient: Gradient) -> Pulled:
        _require_independent(gradient, heads, within, scatter)
        own, across = (
            [np.mean(blocks, 0) for blocks in zip(*found, strict=True)]
            for found in (
                [head.back(gradient.pairs.same, within, E, scatter) for head in heads],
                [head.back(gradient.pairs.diff, between, E, 0.0) for head in heads],
            )
        )
        inputs = []
        for x, order, same, diff in zip((q, *given), orders, own, across, strict=True):
            inputs.append((x, Gradient(arranged(Exchangeable(same, diff, N), order, x.order))))
        return Pulled(inputs)

    return Result(output, pullback)


def _require_independent(
    gradient: Gradient, heads: Sequence[_Head], within: _Blocks, scatter: float
) -> None:
    """Raise where a gradient depends on the sizes of rows, or knows the direction of outputs."""
    decided = float(np.mean([head.uneven for head in heads])) > _MOST_UNEVEN
    if any(head.may_be_near_zero for head in heads) or (decided and not gradient.orthogonal):
        raise UnpredictedError(NEAR_ZERO)
    if any(head.varied > _MOST_VARIED for head in heads):
        raise UnpredictedError(VARIED)
    of_scale = max(head.of_scale(within, scatter) for head in heads)
    if gradient.orthogonal * of_scale > _MOST_OF_SCALE:
        raise UnpredictedError(SCALED)


def _same(pairs: Exchangeable) -> Array:
    return pairs.same


def _diff(pairs: Exchangeable) -> Array:
    return pairs.diff


class _Blocks(NamedTuple):
    """Second moments of queries, keys and values, within a sample or between two."""

    queries: Array
    keys: Array
    values: Array


@dataclass(frozen=True, eq=False)
class _Head:
    """One head.

    Args:
        factor: c, over sums of rows where they are divided by these.
        average: A.
        queries: Their means; keys likewise.
        keys: See above.
        features: D.
        divided: Whether averages of rows are taken off the values.
        varied: Relative variance of the sums that rows are divided by.
    """

    factor: Array
    average: Array
    queries: Array
    keys: Array
    features: int
    divided: bool
    varied: float = 0.0

    @staticmethod
    def of(
        factor: Array,
        own: _Blocks,
        queries: Array,
        keys: Array,
        features: int,
        *,
        divided: bool,
    ) -> _Head:
        """A head.

        Raises:
            UnpredictedError: If rows are divided by sums of which parts cancel.
        """
        average = factor * features * np.outer(queries, keys)
        total = average.sum(1, keepdims=True)
        spread = np.abs(average).sum(1, keepdims=True)
        cancel = bool((np.abs(total) <= 0.5 * spread).any())
        if divided and cancel:
            raise UnpredictedError("attention scores over sums that may be 0")
        varied = 0.0
        if not cancel:
            squares = np.diagonal(own.queries) * ((factor @ own.keys) * factor).sum(1)
            varied = features * float((squares / total[:, 0] ** 2).mean()) - 1 / features
        if divided:
            average, factor = average / total, factor / total
        return _Head(factor, average, queries, keys, features, divided, varied)

    @property
    def may_be_near_zero(self) -> bool:
        """Whether some rows have a few scores alone, which have both signs."""
        return self._has_both_signs and bool(_keys_of(self.factor).min() < _FEWEST_KEYS)

    @property
    def uneven(self) -> float:
        """Relative variance, from row to row, of the size of outputs, beyond that of features."""
        if not self._has_both_signs:
            return 0.0
        return float((2 / self.features + 2 / _keys_of(self.factor)).mean())

    @property
    def _has_both_signs(self) -> bool:
        signs = np.abs(self.average).max() < 1e-9 * np.abs(self.factor).max()
        return not self.divided and bool(signs)

    def of_scale(self, own: _Blocks, scatter: float) -> float:
        """Part of the squared gradients of queries that is along what keys have on average."""
        whole = np.trace(self._seen(own.keys, own.values, scatter, own.keys))
        part = np.trace(self._seen(np.outer(self.keys, self.keys), own.values, 0.0, own.keys))
        return float(part / whole) if whole > 0 else 0.0

    def output(self, own: _Blocks, scatter: float) -> Array:
        """Second moments of outputs."""
        q, k, v = own
        A = self.average
        varied = q * self._seen(k, v, scatter, k)
        varied -= np.outer(self.queries, self.queries) * self._seen(
            np.outer(self.keys, self.keys), v, 0.0, k
        )
        return np.asarray(A @ v @ A.T + self.features * varied)

    def _seen(self, X: Array, v: Array, scatter: float, k: Array) -> Array:
        """T(X)."""
        c = self.factor
        found = c @ (v * X) @ c.T
        if scatter:
            u = (c * np.sqrt(self._sizes(k, v))).sum(1)
            found = found + scatter * np.outer(u, u)
        if self.divided:
            read = v @ self.average.T
            crossed = c @ (read * (X @ c.T))
            found = found - crossed - crossed.T + (c @ X @ c.T) * (self.average @ read)
        return np.asarray(found)

    def _sizes(self, k: Array, v: Array) -> Array:
        """Variances of keys times squared values, of those less averages of rows if divided."""
        varied = k - np.outer(self.keys, self.keys)
        if self.divided:
            return distances(varied, self.average) * distances(v, self.average)
        return np.maximum(np.diagonal(varied), 0) * np.diagonal(v)

    def back(
        self, P: Array, own: _Blocks, features: int, scatter: float
    ) -> tuple[Array, Array, Array]:
        """Gradients of queries, keys and values."""
        (q, k, v), c, A = own, self.factor, self.average
        queries = features * P * self._seen(k, v, scatter, k)
        known = P * q
        inner = c.T @ known @ c
        keys = v * inner
        if self.divided:
            read = v @ A.T
            crossed = ((c.T @ known) * read) @ c
            keys = keys - crossed - crossed.T + c.T @ (known * (A @ read)) @ c
        means = np.outer(self.queries, self.queries), np.outer(self.keys, self.keys)
        values = A.T @ P @ A + self.features * (inner * k - (c.T @ (P * means[0]) @ c) * means[1])
        return queries, features * keys, values


def values_of(call: Call, scores: Scores) -> Moments:
    """The values that scores without a softmax multiply."""
    first, second = call.arguments[:2]
    if first is not scores or not isinstance(second, Moments) or scores.turned:
        raise UnpredictedError("attention scores that multiply no values")
    return second


def _keys_of(factor: Array) -> Array:
    """How many keys each row sees, as if all had one factor, of shape ``[T]``."""
    squares = (factor**2).sum(1)
    return np.asarray(np.abs(factor).sum(1) ** 2 / np.where(squares > 0, squares, 1.0))
