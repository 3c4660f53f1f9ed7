"""Products of keys and values, and sums of their weights, on the way to the queries."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, replace
from typing import TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.linalg import block_diag

from equipoise.theory.propagation.call import Call, Pulled, Result, chained, of_the_width
from equipoise.theory.propagation.layout import Layout, UnpredictedError
from equipoise.theory.propagation.rules.arithmetic.products import multiply
from equipoise.theory.propagation.rules.attention.heads import of_own_heads, windows_first
from equipoise.theory.propagation.rules.attention.linear.outputs import (
    MOST_VARIED,
    VARIED,
    attended,
)
from equipoise.theory.propagation.rules.attention.scores import (
    Scores,
    exchanges_last,
    moves_short_axes,
)
from equipoise.theory.propagation.rules.positions.averages import of_sum
from equipoise.theory.propagation.values.gradients import Gradient
from equipoise.theory.propagation.values.known import Unfinished
from equipoise.theory.propagation.values.moments import Moments

Array = NDArray[np.float64]


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
        result = attended(q, k, v, given, [self.factor], orders, divided=True)
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
        if features * float(spread.mean()) > MOST_VARIED:
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
    result = attended(q, k, v, (state.origin, v), [factor], orders)
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
    return attended(q, k, v, given, heads, orders, divided=scores.divided)


def values_of(call: Call, scores: Scores) -> Moments:
    """The values that scores without a softmax multiply."""
    first, second = call.arguments[:2]
    if first is not scores or not isinstance(second, Moments) or scores.turned:
        raise UnpredictedError("attention scores that multiply no values")
    return second
