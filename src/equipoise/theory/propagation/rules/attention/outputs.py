r"""Attention: softmax of scores of queries and keys, times values.

With D features of a head and scale s, logits of query i vary over keys by
:math:`\sigma_i^2 = D s^2 K_q(i,i) U_i`, :math:`U_i` the variance of the keys that it sees. A bias,
:math:`-\infty` where a key is not seen, is added to them. Averages A of the weights a and the
factors F and R by which their squares and those of their derivatives are larger stand in
:mod:`.softmax`. Outputs and gradients are

.. math:: K_{out} = E[a K_v a^\top], \qquad
          \Pi_v = E[a^\top \Pi\, a], \qquad
          \Pi_q(i, i') = s^2 D\,\Pi(i, i')\,R_{ii'} \frac{(AA^\top)_{ii'}}
          {\lVert A_i \rVert \lVert A_{i'} \rVert} \sqrt{Q_i Q_{i'}}, \quad
          Q_i = \sum_{jj'} A_{ij} A_{ij'} K_v(j, j') K_k(j, j'), \\
          \Pi_k(j, j') = s^2 D \sum_{ii'} A_{ij} A_{i'j'} K_v(j, j') R_{ii'}
          (\Pi \circ K_q)(i, i')

with covariances of keys and values centred by row: softmax does not see what is added to all
logits. Keys and values are products of random matrices with one stream x of C features: the
same products :math:`x_j \cdot x_{j'} / C` stand in both. They scatter around their averages by
:math:`\varsigma = 1/C` in units of their sizes, and by what samples differ before, so that
:math:`E[(x_j \cdot x_{j'} / C)^2] = K(j, j')^2 + \varsigma K(j, j) K(j', j')`. Over all pairs of
unlike keys this adds to :math:`\Pi_q(i, i')`

.. math:: s^2 D\,\Pi(i, i')\,\varsigma\,u_i u_{i'}, \qquad
          u_i = h_i \sum_j A_{ij} \sqrt{K_v(j, j) K_k(j, j)},

a factor 1 + T/C for T independent tokens and small logits. Likewise outputs spread more, as
sums of pairs of keys: of :math:`K_{out}` the part with F - 1 is multiplied with
:math:`1 + \frac{\ln F}{F - 1}
\big((Q + \varsigma (\sum_j A_j \sqrt{K_v K_k})^2) / \sum_j A_j^2 K_v K_k - 1\big)`,
of which the fraction is the share of weights that is linear in logits. Products of queries, which
keys meet those of gradients with, have signs of their own, and nothing is added. Dropout of
variance ν adds :math:`\nu \sum_j A_{ij}^2 K_v(j,j) K_k(j,j)`, K_v not centred, to :math:`Q_i`,
and likewise to keys. Every head has a bias of its own; moments are averages over heads.

Of heads that share keys and values (grouped queries), each has queries and outputs with weights
of their own: gradients of keys and values are those of one head, times the number that share.

For many heads and features, and logits that do not depend on values. Sources: Noci et al. 2022
(arXiv:2206.03126), Dinan et al. 2023 (arXiv:2304.02034) for logits of small variance.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.linalg import block_diag
from scipy.special import softmax

from equipoise.theory.propagation.call import Call, Pulled, Result, known_tensor, rule
from equipoise.theory.propagation.exchangeable import Exchangeable
from equipoise.theory.propagation.layout import Atom, Axis, Layout, UnpredictedError
from equipoise.theory.propagation.rules.attention.heads import (
    of_own_heads,
    windows_first,
    with_copies,
)
from equipoise.theory.propagation.rules.attention.scores import (
    Scores,
    biased,
    masked,
    noise_of_dropout,
)
from equipoise.theory.propagation.rules.attention.softmax import SoftmaxWeights, distances, shared
from equipoise.theory.propagation.rules.linear import from_the_left
from equipoise.theory.propagation.values.covariances import arranged, from_covariance, measured
from equipoise.theory.propagation.values.gradients import Gradient
from equipoise.theory.propagation.values.known import Known
from equipoise.theory.propagation.values.moments import Moments

Array = NDArray[np.float64]


@rule(
    "_scaled_dot_product_flash_attention_for_cpu",
    "_scaled_dot_product_flash_attention",
    "_scaled_dot_product_efficient_attention",
    "_scaled_dot_product_cudnn_attention",
    "_scaled_dot_product_attention_math",
)
def fused(call: Call) -> Result:
    """``F.scaled_dot_product_attention``."""
    q, k, v = (call.argument(name) for name in ("query", "key", "value"))
    if isinstance(q, Known) and isinstance(k, Moments):
        q = _known_queries(q, k)
    if not all(isinstance(value, Moments) for value in (q, k, v)):
        raise UnpredictedError("attention over known queries, keys or values")
    if call.argument("dropout_mask") is not None:
        raise UnpredictedError("attention with a given mask of dropout")
    scale = call.argument("scale")
    scores = Scores(q, k, k, 1 / math.sqrt(q.layout.shape[-1]) if scale is None else scale)
    if call.argument("is_causal"):
        later = torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1)
        scores = masked(scores, later, scores.shape)
    mask = known_tensor(call.argument("attn_mask", call.argument("attn_bias")))
    if mask is not None and mask.dtype is torch.bool:
        scores = masked(scores, ~mask, scores.shape)
    elif mask is not None:
        scores = biased(scores, mask, scores.shape)
    noise = noise_of_dropout(call.argument("dropout_p"))
    result = attend(replace(scores, noise=noise, normalised=True), v)
    return Result(
        result.output, result.pullback, [(Known(o), None) for o in call.node.outputs[1:]]
    )


def _known_queries(q: Known, k: Moments) -> Moments:
    """Queries that are parameters, or depend on data alone, with the axes of the keys."""
    places = q.value.shape[-2]
    place = (Atom.new("position", places),) if places > 1 else ()
    return measured(q.value, Layout((*k.layout.axes[:-2], place, k.layout.axes[-1])))


@dataclass(frozen=True, eq=False)
class _Head:
    """One head.

    Args:
        weights: Its softmax weights.
        queries: Their second moments, of shape ``[T, T]``; keys and values likewise.
        keys: See above.
        values: See above.
        size: :math:`s^2 D`.
        scatter: ς, what the products that keys and values share vary by.
    """

    weights: SoftmaxWeights
    queries: Array
    keys: Array
    values: Array
    size: float
    scatter: float

    @staticmethod
    def of(
        bias: Array,
        noise: float,
        moments: tuple[Array, Array, Array],
        size: float,
        scatter: float,
    ) -> _Head:
        """Weights of a softmaxed bias, of shape ``[T, S]``."""
        queries, keys, values = moments
        n = 1 / (bias**2).sum(1)
        between = (bias * distances(keys, bias)).sum(1)
        own = np.diagonal(queries)
        variance = size * own * between * n / np.maximum(n - 1, 1)
        root = np.sqrt(own)
        scale = np.outer(root, root)
        correlation = queries / np.where(scale > 0, scale, np.inf)
        weights = SoftmaxWeights.of(bias, variance, correlation, noise)
        return _Head(weights, queries, keys, values, size, scatter)

    @cached_property
    def _pairs(self) -> Array:
        """Q, of shape ``[T]``."""
        return np.maximum(shared(self.values, self.keys, self.weights.mean), 0)

    @cached_property
    def _sizes(self) -> Array:
        """Roots of the products of squared distances of keys and values, of shape ``[T, S]``."""
        A = self.weights.mean
        return np.sqrt(distances(self.keys, A) * distances(self.values, A))

    def averaged(self) -> Array:
        """The second moments of outputs."""
        A, F = self.weights.mean, np.diagonal(self.weights.concentration)
        alone = ((A * self._sizes) ** 2).sum(1)
        pairs = self._pairs + self.scatter * (A * self._sizes).sum(1) ** 2
        more = pairs / np.where(alone > 0, alone, np.inf) - 1
        linear = np.log(F) / np.where(F > 1, F - 1, np.inf)
        return self.weights.averaged(self.values, np.maximum(1 + linear * more, 0.0))

    def pulled_back(self, P: Array) -> tuple[Array, Array, Array]:
        """The gradients of queries, keys and values."""
        A, noise = self.weights.mean, self.weights.noise
        logits, sizes = P * self.weights.sensitivity, np.diagonal(self.values)
        root = np.sqrt(self._pairs / (A**2).sum(1))
        queries = logits * (A @ A.T) * np.outer(root, root)
        unlike = self.weights.contrast * (A * self._sizes).sum(1)
        queries += self.scatter * P * np.outer(unlike, unlike)
        own = np.diagonal(logits) * ((A**2 * distances(self.keys, A)) @ sizes)
        queries[np.diag_indices_from(queries)] += noise * own
        known = logits * self.queries
        keys = self._of_keys(known, self.values)
        keys += noise * self._of_keys(np.diag(np.diagonal(known)), np.diag(sizes))
        return self.size * queries, self.size * keys, self.weights.pulled_back(P)

    def _of_keys(self, known: Array, values: Array) -> Array:
        """Gradients of keys over s²D, for Π ∘ R ∘ K_q."""
        A, read = self.weights.mean, self.weights.mean @ values
        crossed = ((A.T @ known) * read.T) @ A
        common = A.T @ (known * (read @ A.T)) @ A
        return np.asarray(values * (A.T @ known @ A) - crossed - crossed.T + common)


def times_values(call: Call, scores: Scores) -> Result:
    """``a @ v``, and ``v.T @ a.T``, as ``einsum`` may write it."""
    factors = list(call.arguments[:2])
    v = factors.pop(0 if scores.turned else 1)
    if not isinstance(v, Moments) or factors != [scores]:
        raise UnpredictedError("attention weights that multiply no values")
    if scores.turned:
        return from_the_left(v, lambda values: attend(scores, values))
    return attend(scores, v)


def attend(scores: Scores, v: Moments) -> Result:
    """Softmax weights times values."""
    if not scores.normalised:
        raise UnpredictedError("scores times values without a softmax")
    q, given = scores.queries, (scores.origin, v)
    k, v = (of_own_heads(value, q) for value in (scores.keys, v))
    sharing = _features(q.layout.axes[:-1]) / _features(k.layout.axes[:-2])
    orders = [windows_first(value) for value in (q, k, v)]
    if k.positions != v.positions:
        raise UnpredictedError("keys and values of different positions")
    Kq, Kk, Kv = (
        arranged(value.covariance, value.order, order)
        for value, order in zip((q, k, v), orders, strict=True)
    )
    moments, size = (Kq.same, Kk.same, Kv.same), q.layout.shape[-1] * scores.scale**2
    scatter = math.sqrt(max(k.scatter, 0.0) * max(v.scatter, 0.0))
    heads = [
        _Head.of(b, scores.noise, moments, size, scatter) for b in _softmax_of_bias(scores, k)
    ]
    same = np.mean([head.averaged() for head in heads], 0)
    diff = np.mean([head.weights.mean @ Kv.diff @ head.weights.mean.T for head in heads], 0)
    mean = np.mean([head.weights.mean for head in heads], 0) @ v.mean[v.places(orders[2])]
    layout = Layout((*q.layout.axes[:-1], v.layout.axes[-1]))
    output = from_covariance(layout, orders[0], Exchangeable(same, diff, Kv.samples), mean)

    def pullback(gradient: Gradient) -> Pulled:
        P, N = gradient.pairs, gradient.pairs.samples
        blocks = zip(*(head.pulled_back(P.same) for head in heads), strict=True)
        own = [np.mean(block, 0) for block in blocks]
        across = np.mean([head.weights.mean.T @ P.diff @ head.weights.mean for head in heads], 0)
        others = (np.zeros_like(own[0]), np.zeros_like(own[1]), across)
        inputs = []
        whole = zip((q, *given), (q, k, v), orders, own, others, strict=True)
        for x, alone, order, same, diff in whole:
            pairs = arranged(Exchangeable(same, diff, N), order, alone.order)
            if x is not q:
                pairs = with_copies(pairs * sharing, alone, x)
            inputs.append((x, Gradient(pairs)))
        return Pulled(inputs)

    return Result(output, pullback)


def _features(axes: Sequence[Axis]) -> float:
    """How many features there are taken to be."""
    return Layout(tuple(axes)).count("feature")


def _softmax_of_bias(scores: Scores, k: Moments) -> list[Array]:
    """For every head that differs from the others, over all windows: rows that sum to 1."""
    q = scores.queries
    T = math.prod(a.size for a in q.layout.axes[-2] if a.role == "position")
    S = scores.shape[-1]
    windows = q.positions // T
    if q.positions != windows * T or k.positions != windows * S:
        raise UnpredictedError("queries and keys of different windows")
    bias = np.broadcast_to(scores.bias, np.broadcast_shapes(np.shape(scores.bias), (1, 1, T, S)))
    if np.isneginf(bias).all(-1).any():
        raise UnpredictedError("queries that see no key")
    heads = [softmax(head, -1) for head in bias]
    if all(np.array_equal(head, heads[0]) for head in heads):
        heads = heads[:1]
    return [block_diag(*np.broadcast_to(head, (windows, T, S))) for head in heads]
