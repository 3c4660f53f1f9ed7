r"""Attention: softmax of scores of queries and keys, times values.

Logits of a head have the variance :math:`D s^2 K_q(i,i) U_k` over keys, with D features, scale s
and :math:`U_k` the variance of keys between
positions. Weights then average to
:math:`A_{ij} = 1/n_i` over the n_i keys that a query may see, and

.. math:: E[a_{ij}a_{i'j}] = A_{ij}A_{i'j}F_{ii'}, \qquad F_{ii} = n_i\,E\sum_j a_{ij}^2,

computed for independent Gaussian logits; F of two queries has the power of their correlation.
Outputs and gradients are

.. math:: K_{out} = A K_v A^\top + (F-1)\circ\big[A\,\mathrm{diag}(K_v)A^\top
          - AA^\top\circ A K_v A^\top\big], \qquad
          \Pi_q = s^2 D\,U_v U_k\,\Pi \circ F \circ AA^\top .

For many heads and features, and logits that do not depend on values. Sources: Noci et al. 2022
(arXiv:2206.03126), Dinan et al. 2023 (arXiv:2304.02034) for logits of small variance.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from equipoise.theory.propagation import latent
from equipoise.theory.propagation.call import Call, Pulled, Result, rule
from equipoise.theory.propagation.exchangeable import Exchangeable, kron
from equipoise.theory.propagation.layout import Atom, Layout
from equipoise.theory.propagation.values import (
    Gradient,
    Known,
    Moments,
    UnpredictedError,
    arranged,
    from_covariance,
)

Array = NDArray[np.float64]

# More queries than this share interpolated averages of softmax weights.
_MOST_SOLVED = 24


@dataclass(frozen=True, slots=True, eq=False)
class Scores:
    """Products of queries and keys on their way through masks and softmax.

    Args:
        queries: Of shape ``[..., T, D]``.
        keys: Of shape ``[..., S, D]``.
        origin: The keys as the product took them.
        scale: What the products are multiplied with.
        seen: Which keys a query may see, ``[T, S]``; all by default.
        normalised: Whether softmax was taken.
    """

    queries: Moments
    keys: Moments
    origin: Moments
    scale: float = 1.0
    seen: Array | None = None
    normalised: bool = False


@rule(
    "_scaled_dot_product_flash_attention_for_cpu",
    "_scaled_dot_product_flash_attention",
    "_scaled_dot_product_efficient_attention",
    "_scaled_dot_product_cudnn_attention",
    "_scaled_dot_product_attention_math",
)
def fused(call: Call) -> Result:
    """``F.scaled_dot_product_attention``."""
    q, k, v = call.arguments[:3]
    mask = next(
        (a for a in (*call.arguments[3:], call.keywords.get("attn_mask")) if isinstance(a, Known)),
        None,
    )
    causal = any(a is True for a in call.arguments[3:]) or bool(call.keywords.get("is_causal"))
    if not all(isinstance(value, Moments) for value in (q, k, v)):
        raise UnpredictedError("attention over known queries, keys or values")
    scale = call.keywords.get("scale") or 1 / math.sqrt(q.layout.shape[-1])
    T, S = q.layout.shape[-2], k.layout.shape[-2]
    seen = np.tri(T, S) if causal else np.ones((T, S))
    if mask is not None:
        seen = seen * _seen_by(mask.value)
    result = attend(Scores(q, k, k, scale, seen, normalised=True), v)
    return Result(
        result.output, result.pullback, [(Known(o), None) for o in call.node.outputs[1:]]
    )


def scores(call: Call) -> Scores:
    """``q @ k.T``."""
    q, k = call.arguments[-2:]
    axes = list(k.layout.axes)
    axes[-1], axes[-2] = axes[-2], axes[-1]
    return Scores(q, k.with_layout(Layout(tuple(axes)), {}), k)


def changed(call: Call, value: Scores) -> Scores:
    """Scores after a step between the two products."""
    name = call.node.name
    others = [a for a in call.arguments if not isinstance(a, Scores)]
    if name in ("view", "_unsafe_view", "clone", "expand", "detach", "_to_copy"):
        return value
    if name in ("mul", "div") and not value.normalised:
        factor = others[0].value if isinstance(others[0], Known) else others[0]
        factor = float(factor)
        return replace(value, scale=value.scale * (factor if name == "mul" else 1 / factor))
    if name in ("mul", "native_dropout"):
        return value  # dropout
    if name in ("_softmax", "_safe_softmax"):
        return replace(value, normalised=True)
    if name in ("add", "masked_fill") and isinstance(others[0], Known):
        mask = others[0].value
        seen = _seen_by(~mask if name == "masked_fill" else mask)
        return replace(value, seen=seen if value.seen is None else value.seen * seen)
    raise UnpredictedError(f"{name} of attention scores")


def _seen_by(mask: Tensor) -> Array:
    """A mask as numbers, the same for all samples and heads."""
    allowed = mask if mask.dtype is torch.bool else mask > -1e4
    flat = allowed.reshape(-1, *allowed.shape[-2:])
    if not bool((flat == flat[0]).all()):
        raise UnpredictedError("a mask that differs between samples or heads")
    return np.asarray(flat[0].double().numpy())


def attend(weights: Scores, v: Moments) -> Result:
    """Softmax weights times values."""
    q, k = weights.queries, weights.keys
    if not weights.normalised:
        raise UnpredictedError("scores times values without a softmax")
    T, S = q.layout.shape[-2], k.layout.shape[-2]
    orders = [_windows_first(value) for value in (q, k, v)]
    seen = np.broadcast_to(np.ones(()) if weights.seen is None else weights.seen, (T, S))
    seen = kron(np.eye(q.positions // T), seen)
    if seen.shape != (q.positions, k.positions) or k.positions != v.positions:
        raise UnpredictedError("queries and keys of different windows")
    D, scale = q.layout.shape[-1], weights.scale
    Kq, Kk, Kv = (
        arranged(value.covariance, value.order, order)
        for value, order in zip((q, k, v), orders, strict=True)
    )
    n = seen.sum(1)
    if (n == 0).any():
        raise UnpredictedError("queries that see no key")
    A = seen / n[:, None]
    AA = A @ A.T
    Uk, Uv = (_between(K.same, A) for K in (Kk, Kv))
    variance = D * scale**2 * Kq.diagonal * Uk * n / np.maximum(n - 1, 1)
    alike = _alike(Kk.same, Kv.same, A)
    gain = np.log(np.maximum(_concentration(variance, n), 1.0))
    root = np.sqrt(Kq.diagonal)
    r = Kq.same / np.where(np.outer(root, root) > 0, np.outer(root, root), np.inf)
    F = np.exp(r * np.sqrt(np.outer(gain, gain)))
    AKA = A @ Kv.same @ A.T
    same = AKA + (F - 1) * ((A * Kv.diagonal) @ A.T - AA * AKA)
    covariance = Exchangeable(same, A @ Kv.diff @ A.T, Kv.samples)
    layout = Layout((*q.layout.axes[:-1], v.layout.axes[-1]))
    mean = A @ v.mean[v.places(orders[2])]
    output = from_covariance(layout, orders[0], covariance, mean)

    def pullback(gradient: Gradient) -> Pulled:
        P, N = gradient.pairs, gradient.pairs.samples
        extra = P.same * (F - 1)
        values = A.T @ (P.same - extra * AA) @ A
        values[np.diag_indices_from(values)] += ((A.T @ extra) * A.T).sum(1)
        size = scale**2 * D
        joint = np.sqrt(np.outer(Uv * Uk, Uv * Uk))
        queries = size * P.same * F * AA * joint * np.sqrt(np.outer(alike, alike))
        own = size * (((A * Uv[:, None]).T @ (P.same * F * Kq.same)) * A.T).sum(1)
        # Softmax does not see what is added to all keys: their gradients sum to zero.
        keys = -np.outer(own, own) / max(float(own.sum()), 1e-300)
        np.fill_diagonal(keys, own)
        none_q, none_k = np.zeros_like(queries), np.zeros_like(keys)
        found = (
            (q, orders[0], Exchangeable(queries, none_q, N)),
            (weights.origin, orders[1], Exchangeable(keys, none_k, N)),
            (v, orders[2], Exchangeable(values, A.T @ P.diff @ A, N)),
        )
        return Pulled(
            [(x, Gradient(arranged(pairs, order, x.order))) for x, order, pairs in found]
        )

    return Result(output, pullback)


def _windows_first(value: Moments) -> list[Atom]:
    """Positions that attention does not mix, then those that it does."""
    atoms = [a for axis in value.layout.axes[:-1] for a in axis if a.role == "position"]
    if set(atoms) != set(value.order):
        raise UnpredictedError("attention over an axis with both positions and features")
    return atoms


def _between(K: Array, A: Array) -> Array:
    """Mean squared distance from their average of the keys that each query sees."""
    return np.asarray(np.maximum(A @ np.diagonal(K) - ((A @ K) * A).sum(1), 0.0))


def _alike(first: Array, second: Array, A: Array) -> Array:
    """Sum over pairs of keys of what two centred covariances share, over that of the diagonal."""
    where = _solved(len(A))
    found = []
    for i in where:
        a = A[i]
        centred = []
        for K in (first, second):
            rows = K @ a
            centred.append(K - rows - rows[:, None] + a @ rows)
        shared = centred[0] * centred[1]
        diagonal = a @ (np.diagonal(shared) * a)
        found.append(a @ shared @ a / diagonal if diagonal > 0 else 1.0)
    return np.asarray(np.interp(np.arange(len(A)), where, found))


def _solved(count: int) -> NDArray[np.intp]:
    """For which queries averages are computed; the others are interpolated."""
    if count <= _MOST_SOLVED:
        return np.arange(count)
    return np.unique(np.geomspace(1, count, _MOST_SOLVED).astype(int) - 1)


def _concentration(variance: Array, n: Array) -> Array:
    """N times the mean sum of squares of softmax weights of n Gaussian logits."""
    where = _solved(len(n))
    found = [_softmax_squares(float(variance[i]), float(n[i])) for i in where]
    return np.asarray(np.interp(np.arange(len(n)), where, found))


def _softmax_squares(variance: float, n: float) -> float:
    r"""n² E[a²] with a = e^z/Σe^z: ∫ t E[e^{2z - te^z}] E[e^{-te^z}]^{n-1} dt."""
    if n <= 1 or variance <= 0:
        return 1.0
    g, weights = latent.nodes()
    z = math.sqrt(variance) * g
    u = np.arange(-30.0, 8.0, 0.1) - math.log(n) - variance / 2 + 4
    t = np.exp(u)[:, None]
    decay = np.exp(-t * np.exp(z))
    inner = (decay * np.exp(2 * z)) @ weights
    rest = np.log(np.maximum(decay @ weights, 1e-300))
    return float(n * n * (inner * np.exp((n - 1) * rest + 2 * u)).sum() * 0.1)


def parts_of(arguments: Sequence[Any]) -> Scores | None:
    """The scores among the arguments."""
    return next((a for a in arguments if isinstance(a, Scores)), None)
