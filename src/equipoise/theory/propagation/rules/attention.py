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
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.linalg import block_diag
from scipy.special import softmax
from torch import Tensor

from equipoise.theory.propagation.call import Call, Pulled, Result, known_tensor, rule
from equipoise.theory.propagation.exchangeable import Exchangeable
from equipoise.theory.propagation.layout import Atom, Axis, Layout, UnpredictedError
from equipoise.theory.propagation.rules.linear import from_the_left
from equipoise.theory.propagation.rules.positions.features import (
    positions_as_features,
    spread_over,
)
from equipoise.theory.propagation.rules.shape import FOLLOWED
from equipoise.theory.propagation.rules.softmax import SoftmaxWeights, distances, shared
from equipoise.theory.propagation.tensors import is_uniform
from equipoise.theory.propagation.values import (
    Gradient,
    Known,
    Moments,
    Unfinished,
    arranged,
    from_covariance,
    measured,
)

Array = NDArray[np.float64]

# What is added to the logits of keys that are not seen, in half precision the least.
_UNSEEN = -1e4


@dataclass(frozen=True, slots=True, eq=False)
class Scores(Unfinished):
    """Products of queries and keys on their way through masks and softmax.

    Args:
        queries: Of shape ``[..., T, D]``.
        keys: Of shape ``[..., S, D]``.
        origin: The keys as the product took them.
        scale: What the products are multiplied with.
        bias: What is added to them, of shape ``[heads, windows, T, S]`` or broadcast to it.
        noise: Variance of what weights are multiplied with after softmax, around 1.
        normalised: Whether softmax was taken.
        turned: Whether the axes of queries and keys were exchanged after it.
        factor: Instead of a softmax, what they are multiplied with, of the bias's shape.
        divided: Instead of a softmax, whether rows are divided by their sums.
    """

    queries: Moments
    keys: Moments
    origin: Moments
    scale: float = 1.0
    bias: Array | float = 0.0
    noise: float = 0.0
    normalised: bool = False
    turned: bool = False
    factor: Array | float = 1.0
    divided: bool = False

    @property
    def latents(self) -> frozenset[Hashable]:
        """Of queries and keys."""
        return self.queries.latents | self.keys.latents

    @property
    def shape(self) -> tuple[int, ...]:
        """With the axes of the queries."""
        return (*self.queries.layout.shape[:-1], self.keys.layout.shape[-2])


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
        scores = _masked(scores, later, scores.shape)
    mask = known_tensor(call.argument("attn_mask", call.argument("attn_bias")))
    if mask is not None and mask.dtype is torch.bool:
        scores = _masked(scores, ~mask, scores.shape)
    elif mask is not None:
        scores = _biased(scores, mask, scores.shape)
    noise = _noise_of_dropout(call.argument("dropout_p"))
    result = attend(replace(scores, noise=noise, normalised=True), v)
    return Result(
        result.output, result.pullback, [(Known(o), None) for o in call.node.outputs[1:]]
    )


def _known_queries(q: Known, k: Moments) -> Moments:
    """Queries that are parameters, or depend on data alone, with the axes of the keys."""
    places = q.value.shape[-2]
    place = (Atom.new("position", places),) if places > 1 else ()
    return measured(q.value, Layout((*k.layout.axes[:-2], place, k.layout.axes[-1])))


def is_product_of_moments(call: Call) -> bool:
    """Whether two random tensors are multiplied as queries and keys are."""
    factors = call.arguments[-2:]
    return call.node.name in ("bmm", "baddbmm") and all(isinstance(f, Moments) for f in factors)


def scores(call: Call) -> Scores:
    """``q @ k.T``, and ``bias + q @ k.T``."""
    q, k = call.arguments[-2:]
    axes = list(k.layout.axes)
    axes[-1], axes[-2] = axes[-2], axes[-1]
    found = Scores(q, k.with_layout(Layout(tuple(axes)), {}), k)
    if call.node.name == "bmm":
        return found
    bias = known_tensor(call.argument("self"))
    if bias is None or call.argument("beta") != 1:
        raise UnpredictedError("attention scores added to something random")
    found = replace(found, scale=float(call.argument("alpha")))
    return _biased(found, bias, tuple(call.output.shape))


def changed(call: Call, value: Scores) -> Scores:
    """Scores after a step between the two products."""
    name, shape = call.node.name, tuple(call.output.shape)
    if name in ("view", "_unsafe_view", "clone", "expand", "detach", "_to_copy"):
        return value
    if name in ("unsqueeze", "squeeze") or (name == "permute" and moves_short_axes(call)):
        return value
    if value.normalised and name in ("permute", "transpose", "t") and exchanges_last(call):
        return replace(value, turned=not value.turned)
    if value.normalised:
        return replace(value, noise=(1 + value.noise) * (1 + _noise(call)) - 1)
    others = [a for a in call.arguments if not isinstance(a, Scores)]
    if name in ("mul", "div") and _differs(others[0]):
        if np.any(value.bias) or (name == "div" and not others[0].value.all()):
            raise UnpredictedError("attention scores and numbers that differ")
        numbers = others[0].value if name == "mul" else 1 / others[0].value.double()
        return replace(value, factor=value.factor * _by_heads(value, numbers, shape))
    if name in ("mul", "div"):
        factor = _number(others[0])
        factor = factor if name == "mul" else 1 / factor
        return replace(value, scale=value.scale * factor, bias=value.bias * factor)
    if name in ("_softmax", "_safe_softmax") and call.argument("dim") in (-1, len(shape) - 1):
        if np.ndim(value.factor) or value.divided:
            raise UnpredictedError("attention scores and numbers that differ")
        return replace(value, normalised=True)
    if name == "add" and isinstance(others[0], Known) and call.argument("alpha") == 1:
        return _biased(value, others[0].value, shape)
    if name == "masked_fill" and not _number(call.argument("value")) and not np.any(value.bias):
        seen = ~call.argument("mask").value
        return replace(value, factor=value.factor * _by_heads(value, seen, shape))
    if name == "masked_fill" and _number(call.argument("value")) <= _UNSEEN:
        return _masked(value, call.argument("mask").value, shape)
    if name == "where" and call.argument("self") is value and _number(others[1]) <= _UNSEEN:
        return _masked(value, ~call.argument("condition").value, shape)
    raise UnpredictedError(f"{name} of attention scores")


def moves_short_axes(call: Call) -> bool:
    """Whether all axes but those of length 1 stay in order, as ``einsum`` permutes scores."""
    long = _long_axes(call)
    return long == sorted(long)


def exchanges_last(call: Call) -> bool:
    """Whether queries and keys are exchanged, and all else but axes of length 1 stays in order."""
    *others, last, first = _long_axes(call)
    return [*others, first, last] == sorted([*others, first, last])


def _long_axes(call: Call) -> list[int]:
    """The axes of length above 1 as an operation orders them."""
    numbered = Layout(tuple((Atom.new("open", i),) for i in range(call.output.ndim)))
    moved, _ = FOLLOWED[call.node.name](call, numbered)
    sizes = zip(moved.axes, call.output.shape, strict=True)
    return [axis[0].size for axis, size in sizes if size > 1]


def _noise(call: Call) -> float:
    """The variance of dropout of weights."""
    if call.node.name == "native_dropout":
        return _noise_of_dropout(call.argument("p") if call.argument("train") else 0.0)
    masks = [a.value for a in call.arguments if isinstance(a, Known)]
    if call.node.name == "mul" and masks and masks[0].ndim:
        mask = masks[0].detach().double()
        top = float(mask.max())
        # Zeros, and so many equal numbers that they average to 1.
        error = math.sqrt(max(top - 1, 0) / mask.numel())
        if bool(((mask == 0) | (mask == top)).all()) and abs(float(mask.mean()) - 1) <= 5 * error:
            return top - 1
    raise UnpredictedError(f"{call.node.name} of attention weights")


def _noise_of_dropout(p: float) -> float:
    if p >= 1:
        raise UnpredictedError("dropout of all attention weights")
    return p / (1 - p)


def _number(value: Any) -> float:
    """A constant."""
    if isinstance(value, Known) and is_uniform(value.value):
        return float(value.value.detach().flatten()[0])
    if isinstance(value, int | float):
        return float(value)
    raise UnpredictedError("attention scores and numbers that differ")


def _masked(scores: Scores, hidden: Tensor, shape: Sequence[int]) -> Scores:
    """Scores that softmax does not see where a mask says so."""
    bias = torch.zeros(hidden.shape).masked_fill(hidden, -math.inf)
    return _biased(scores, bias, shape)


def _differs(value: Any) -> bool:
    return isinstance(value, Known) and not is_uniform(value.value)


def _biased(scores: Scores, bias: Tensor, shape: Sequence[int]) -> Scores:
    """Scores, seen in a shape, with something added; the same for all samples."""
    if np.ndim(scores.factor):
        raise UnpredictedError("attention scores and numbers that differ")
    return replace(scores, bias=scores.bias + _by_heads(scores, bias, shape))


def _by_heads(scores: Scores, bias: Tensor, shape: Sequence[int]) -> Array:
    """Numbers beside scores that are seen in a shape, ``[heads, windows, T, S]``."""
    axes = Layout(scores.queries.layout.axes[:-1]).viewed(shape[:-1])[0].axes
    whole = bias.detach().double().cpu().reshape((1,) * (len(shape) - bias.ndim) + bias.shape)
    lengths = whole.shape[:-1]
    atoms = [atom for axis in axes for atom in axis]
    sizes = [
        atom.size if length > 1 else 1
        for axis, length in zip(axes, lengths, strict=True)
        for atom in axis
    ]
    split = whole.expand(*lengths, shape[-1]).reshape(*sizes, shape[-1])
    for place, atom in enumerate(atoms):
        if atom.role == "sample":
            first = split.narrow(place, 0, 1)
            if not bool((split == first).all()):
                raise UnpredictedError("a mask or bias that differs between samples")
            split = first
    heads = [i for i, atom in enumerate(atoms) if atom.role == "feature"]
    tokens = [i for i, atom in enumerate(atoms) if atom in axes[-1] and i not in heads]
    windows = [i for i in range(len(atoms)) if i not in (*heads, *tokens)]
    split = split.permute(*heads, *windows, *tokens, -1)
    counts = [
        math.prod(split.shape[a:b])
        for a, b in pairwise(np.cumsum([0, len(heads), len(windows), len(tokens)]))
    ]
    return np.asarray(split.reshape(*counts, shape[-1]).numpy())


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
                pairs = _with_copies(pairs * sharing, alone, x)
            inputs.append((x, Gradient(pairs)))
        return Pulled(inputs)

    return Result(output, pullback)


def of_own_heads(x: Moments, q: Moments) -> Moments:
    """Keys or values; where they are repeated for several heads of queries, the copies are heads.

    What a head makes of its copy has weights of its own before and behind.
    """
    atoms = _copies(x, q)
    output = positions_as_features(x, atoms).output if atoms else x
    assert isinstance(output, Moments)
    return output if output is x else replace(output, scatter=x.scatter)


def _copies(x: Moments, q: Moments) -> list[Atom]:
    """Positions of keys or values in place of which queries have features."""
    return [
        atom
        for own, theirs in zip(x.layout.axes[:-2], q.layout.axes[:-2], strict=True)
        if not any(atom.role == "position" for atom in theirs)
        for atom in own
        if atom.role == "position"
    ]


def _with_copies(pairs: Exchangeable, alone: Moments, x: Moments) -> Exchangeable:
    """The gradient of keys or values, from that of what :func:`of_own_heads` made of them."""
    if x.positions == alone.positions:
        return pairs
    copies = [atom for atom in x.order if atom not in alone.order]
    spread = spread_over(pairs, x.positions // alone.positions)
    return arranged(spread, [*alone.order, *copies], x.order)


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


def windows_first(value: Moments) -> list[Atom]:
    """Positions that attention does not mix, then those that it does."""
    atoms = [a for axis in value.layout.axes[:-1] for a in axis if a.role == "position"]
    if set(atoms) != set(value.order):
        raise UnpredictedError("attention over an axis with both positions and features")
    return atoms


def parts_of(arguments: Sequence[Any]) -> Scores | None:
    """The scores among the arguments."""
    return next((a for a in arguments if isinstance(a, Scores)), None)
