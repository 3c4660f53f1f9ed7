"""Logits that differ by little, whatever the weights, as cosines without a temperature."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from equipoise.diagnosis.mistakes.traced_pass import TracedPass
from equipoise.diagnosis.sources import ARRANGING, PRODUCTS
from equipoise.instrument.recording.graph import Given, Made, Node
from equipoise.numerics.pieces import deviation, slabs
from equipoise.records import wording
from equipoise.records.finding import Finding

_ACTIVATIONS = {"sigmoid": (0.0, 1.0), "tanh": (-1.0, 1.0), "_softmax": (0.0, 1.0)}
# Where logits differ by as much as two cosines or by less, cross-entropy stays far from zero.
# Contrastive losses with a temperature of 0.5, and so with 4, are healthy.
_NARROW = 2.0
# Where they differ by less than this, it is never lower than guessing by more.
_UNIFORM = 0.2
# Logits less than this are masks, and so are those that lie below the others by as much.
_MASK, _APART = -1e3, 20.0
# By which lengths of normalised vectors are not 1.
_ROUNDING = 1e-3
# Logits that a number makes so much smaller, and that vary by no more than that.
_SMALLER = 0.01


@dataclass(frozen=True, slots=True)
class _Bounds:
    """Between which numbers logits lie, whatever the weights.

    Args:
        low: The least.
        high: The largest.
        kind: What they are made of.
        scaled: Whether a number was multiplied with.
    """

    low: float
    high: float
    kind: str
    scaled: bool = False

    def times(self, factor: float) -> _Bounds:
        low, high = sorted((self.low * factor, self.high * factor))
        return replace(self, low=low, high=high, scaled=True)

    def plus(self, number: float) -> _Bounds:
        return replace(self, low=self.low + number, high=self.high + number)


def narrow(node: Node, traced: TracedPass, *, is_loss: bool) -> Finding | None:
    """Logits of a cross-entropy that cannot tell classes apart as they are scaled.

    Args:
        node: The logarithm of a softmax.
        traced: The pass.
        is_loss: Whether a likelihood of classes takes it; else it may be compared with other
            probabilities, which are as narrow.
    """
    if node.name != "_log_softmax":
        return None
    bounds = _bounds(node.inputs[0], traced) if is_loss else None
    if bounds is None:
        return _scaled_down(node, traced)
    if bounds.kind != "cosines" and not bounds.scaled:  # the activation itself is found elsewhere
        return None
    spread = bounds.high - bounds.low
    least = _least(node, traced, bounds)
    if least is None or spread > _NARROW * (1 + _ROUNDING):
        return None
    made_of = "products of vectors of length 1" if bounds.kind == "cosines" else bounds.kind
    lie = f"between {wording.number(bounds.low)} and {wording.number(bounds.high)}"
    if spread < _UNIFORM:
        return Finding(
            "critical",
            "The softmax stays nearly uniform, whatever the weights",
            f"Logits are {made_of}, scaled to lie {lie}: cross-entropy cannot come below "
            f"{wording.number(least)}, hardly less than by guessing.",
            "Divide cosines by a temperature below 1, such as 0.07, or learn their scale; a "
            "temperature divides, and does not multiply.",
        )
    return Finding(
        "warning",
        f"{bounds.kind.capitalize()} before cross-entropy",
        f"Logits are {made_of}, {lie}: cross-entropy cannot come below {wording.number(least)}.",
        "Divide them by a temperature, such as 0.07, or learn their scale.",
    )


def _bounds(source: Made | Given, traced: TracedPass) -> _Bounds | None:
    """Between which numbers an operand lies; None if weights move it without bound."""
    if isinstance(source, Given) or source.node not in traced.nodes:
        return None
    node = traced.nodes[source.node]
    if node.name in ARRANGING or node.name == "expand":
        return _bounds(node.inputs[0], traced)
    if node.name in _ACTIVATIONS:
        return _Bounds(*_ACTIVATIONS[node.name], node.name.strip("_"))
    if _are_cosines(node, traced):
        return _Bounds(-1.0, 1.0, "cosines")
    if node.name == "cat":
        parts = [_bounds(one, traced) for one in node.inputs]
        found = [part for part in parts if part is not None]
        if not found or len(found) < len(parts) or len({part.kind for part in found}) > 1:
            return None
        low, high = min(part.low for part in found), max(part.high for part in found)
        return replace(found[0], low=low, high=high, scaled=any(part.scaled for part in found))
    if node.name in ("masked_fill", "where"):
        return _bounds_beside_mask(node, traced)
    return _bounds_of_arithmetic(node, traced)


def _bounds_beside_mask(node: Node, traced: TracedPass) -> _Bounds | None:
    """Of what is not replaced by large negative numbers."""
    if node.name == "masked_fill":
        value = node.arguments[2]
        number = float(traced.tensor(value)) if isinstance(value, Made | Given) else float(value)
        return _bounds(node.inputs[0], traced) if number <= _MASK else None
    kept = [one for one in node.inputs[1:] if traced.depends_on_weights(one)]
    others = [traced.tensor(one) for one in node.inputs[1:] if one not in kept]
    if len(kept) != 1 or any(bool((other > _MASK).any()) for other in others):
        return None
    return _bounds(kept[0], traced)


def _bounds_of_arithmetic(node: Node, traced: TracedPass) -> _Bounds | None:
    """Of a multiple, or of a sum with a number or a mask."""
    if node.name == "neg":
        found = _bounds(node.inputs[0], traced)
        return None if found is None else found.times(-1.0)
    if node.name not in ("mul", "div", "add", "sub") or node.keywords:
        return None
    first, second = (*node.arguments[:2],)
    flipped = not _moves(first, traced) and node.name in ("mul", "add")
    moved, other = (second, first) if flipped else (first, second)
    if not _moves(moved, traced) or _moves(other, traced):
        return None
    found = _bounds(moved, traced)
    if found is None:
        return None
    if isinstance(other, Made | Given):
        values = traced.tensor(other).detach()
        if node.name == "add" and bool(((values == 0) | (values <= _MASK)).all()):
            return found
        if values.numel() != 1:
            return None
        other = float(values)
    if node.name in ("mul", "div"):
        factor = other if node.name == "mul" else 1 / other if other else math.nan
        return found.times(factor) if math.isfinite(factor) else None
    return found.plus(other if node.name == "add" else -other)


def _moves(value: object, traced: TracedPass) -> bool:
    """Whether weights move it."""
    return isinstance(value, Made | Given) and traced.depends_on_weights(value)


def _are_cosines(node: Node, traced: TracedPass) -> bool:
    """Whether it gives products of vectors of length 1."""
    if node.name in ("mm", "bmm"):
        first, second = node.inputs[:2]
        return _are_unit(first, -1, traced) and _are_unit(second, -2, traced)
    if node.name != "sum" or len(node.arguments) < 2 or len(node.arguments[1]) != 1:
        return False
    product = traced.origin_of(node.inputs[0])
    if product is None or product.name != "mul" or len(product.inputs) != 2:
        return False
    (axis,) = node.arguments[1]
    axes = product.outputs[0].ndim
    axis = axis - axes if axis >= 0 else axis  # of factors that have fewer axes it is the same
    return all(_are_unit(one, axis, traced) for one in product.inputs)


def _are_unit(source: Made | Given, axis: int, traced: TracedPass) -> bool:
    """Whether vectors have length 1 because they are divided by theirs.

    Those of a parameter may merely start like this, as orthogonal ones do.
    """
    origin = traced.origin_of(source)
    if traced.depends_on_weights(source) and (origin is None or origin.name not in ("div", "mul")):
        return False
    values = traced.tensor(source).detach()
    if not values.is_floating_point() or values.ndim < -axis:
        return False
    lengths: Tensor = torch.linalg.vector_norm(values.double(), dim=axis)
    return bool(((lengths - 1).abs() < _ROUNDING).all())


def _least(node: Node, traced: TracedPass, bounds: _Bounds) -> float | None:
    """The least cross-entropy of logits between two bounds; None if they are not between them."""
    axis = int(node.arguments[1] if len(node.arguments) > 1 else node.keywords.get("dim", -1))
    values = traced.tensor(node.inputs[0]).detach()
    margin = _ROUNDING * max(1.0, bounds.high - bounds.low)
    total = 0.0
    for slab in slabs(values, axis):
        inside = slab >= bounds.low - margin
        masked = slab < bounds.low - _APART
        if not bool((inside | masked).all()):
            return None
        rivals = (inside.sum(axis) - 1).clamp(min=0).to(slab.dtype)
        total += float(torch.log1p(rivals * math.exp(bounds.low - bounds.high)).sum())
    return total * values.shape[axis] / values.numel()


def _scaled_down(node: Node, traced: TracedPass) -> Finding | None:
    """Outputs of a layer that a number makes so small that the softmax is uniform at first."""
    source, factor = node.inputs[0], 1.0
    while isinstance(source, Made) and (made := traced.nodes[source.node]).name not in PRODUCTS:
        if made.name in ("mul", "div") and len(made.inputs) == 1:
            number = float(made.arguments[1])
            factor *= number if made.name == "mul" else 1 / number if number else math.nan
        elif made.name not in ARRANGING:
            return None
        source = made.inputs[0]
    if isinstance(source, Given) or not abs(factor) <= _SMALLER:
        return None
    spread = deviation(traced.tensor(node.inputs[0]))
    if not spread <= _SMALLER:
        return None
    return Finding(
        "warning",
        "Logits are scaled down to nothing",
        f"Before cross-entropy they are multiplied by {wording.number(factor)}, and their "
        f"standard deviation is {wording.number(spread)}: the softmax is uniform until "
        "weights have grown many times.",
        "Take the factor away; a temperature divides logits, and is seldom far from 1.",
    )
