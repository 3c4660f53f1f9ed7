"""Products of queries and keys on their way through scales, masks, softmax and dropout."""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from equipoise.theory.propagation.call import Call, known_tensor
from equipoise.theory.propagation.layout import Atom, Layout, UnpredictedError
from equipoise.theory.propagation.rules.shape import FOLLOWED
from equipoise.theory.propagation.tensors import is_uniform
from equipoise.theory.propagation.values.known import Known, Unfinished
from equipoise.theory.propagation.values.moments import Moments

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


def is_product_of_moments(call: Call) -> bool:
    """Whether two random tensors are multiplied as queries and keys are."""
    factors = call.arguments[-2:]
    return call.node.name in ("bmm", "baddbmm") and all(isinstance(f, Moments) for f in factors)


def of_product(call: Call) -> Scores:
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
    return biased(found, bias, tuple(call.output.shape))


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
        return biased(value, others[0].value, shape)
    if name == "masked_fill" and not _number(call.argument("value")) and not np.any(value.bias):
        seen = ~call.argument("mask").value
        return replace(value, factor=value.factor * _by_heads(value, seen, shape))
    if name == "masked_fill" and _number(call.argument("value")) <= _UNSEEN:
        return masked(value, call.argument("mask").value, shape)
    if name == "where" and call.argument("self") is value and _number(others[1]) <= _UNSEEN:
        return masked(value, ~call.argument("condition").value, shape)
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
        return noise_of_dropout(call.argument("p") if call.argument("train") else 0.0)
    masks = [a.value for a in call.arguments if isinstance(a, Known)]
    if call.node.name == "mul" and masks and masks[0].ndim:
        mask = masks[0].detach().double()
        top = float(mask.max())
        # Zeros, and so many equal numbers that they average to 1.
        error = math.sqrt(max(top - 1, 0) / mask.numel())
        if bool(((mask == 0) | (mask == top)).all()) and abs(float(mask.mean()) - 1) <= 5 * error:
            return top - 1
    raise UnpredictedError(f"{call.node.name} of attention weights")


def noise_of_dropout(p: float) -> float:
    """The variance of what weights that are not dropped are multiplied with, around 1."""
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


def masked(scores: Scores, hidden: Tensor, shape: Sequence[int]) -> Scores:
    """Scores that softmax does not see where a mask says so."""
    bias = torch.zeros(hidden.shape).masked_fill(hidden, -math.inf)
    return biased(scores, bias, shape)


def _differs(value: Any) -> bool:
    return isinstance(value, Known) and not is_uniform(value.value)


def biased(scores: Scores, bias: Tensor, shape: Sequence[int]) -> Scores:
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
