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
:mod:`..outputs`; where rows are divided, of keys and values less the averages of the row. A state
:math:`\sum_s k_s v_s^\top`, over all s or over earlier ones, that queries are multiplied with
later is the same product in another order.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from equipoise.theory.propagation.call import Pulled, Result
from equipoise.theory.propagation.exchangeable import Exchangeable
from equipoise.theory.propagation.layout import Atom, Layout, UnpredictedError
from equipoise.theory.propagation.rules.attention.softmax import distances
from equipoise.theory.propagation.values.covariances import arranged, from_covariance
from equipoise.theory.propagation.values.gradients import Gradient
from equipoise.theory.propagation.values.moments import Moments

Array = NDArray[np.float64]

NEAR_ZERO = "attention without a softmax, of rows that a few scores may bring near 0"
SCALED = "queries whose scale a norm behind takes off"
VARIED = "attention without a softmax, of rows whose sums vary much"
# Of fewer keys whose scores have both signs, sums may be near 0, where gradients of a norm behind
# them have no finite mean square.
_FEWEST_KEYS = 3.0
# Beyond this relative variance of sums, what they divide is not that over their averages; and of
# sizes of outputs, those are small where gradients of a norm behind are large.
MOST_VARIED, _MOST_UNEVEN = 0.03, 0.1
# Of the gradients of queries, what keys have on average makes more than that.
_MOST_OF_SCALE = 0.1


def attended(
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
    if any(head.varied > MOST_VARIED for head in heads):
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


def _keys_of(factor: Array) -> Array:
    """How many keys each row sees, as if all had one factor, of shape ``[T]``."""
    squares = (factor**2).sum(1)
    return np.asarray(np.abs(factor).sum(1) ** 2 / np.where(squares > 0, squares, 1.0))
