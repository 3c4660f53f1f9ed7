"""Carry moments forward and gradients back through a traced graph."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from importlib import import_module
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from equipoise.instrument.recording.graph import Given, Graph, Made, Node
from equipoise.theory.propagation.call import RULES, Call, Pullback, Pulled, Result
from equipoise.theory.propagation.layout import Atom, Layout, LayoutError
from equipoise.theory.propagation.rules import attention
from equipoise.theory.propagation.rules.joining import FEATUREWISE, each_part
from equipoise.theory.propagation.rules.pointwise import pointwise
from equipoise.theory.propagation.rules.shape import FOLLOWED
from equipoise.theory.propagation.values import (
    Gradient,
    Known,
    Moments,
    UnpredictedError,
    Value,
    arranged,
    features_last,
    measured,
    products,
)

for _family in (
    "attention",
    "convolution",
    "joining",
    "linear",
    "normalisers",
    "pooling",
    "positions",
    "sums",
):
    import_module(f"equipoise.theory.propagation.rules.{_family}")

# What these give does not depend on the values that they get.
_OF_SHAPES = {
    *("empty_like", "zeros_like", "ones_like", "full_like", "rand_like", "randn_like"),
    *("new_zeros", "new_ones", "new_empty", "new_full"),
}


@dataclass(frozen=True, slots=True)
class Site:
    r"""The output of one operation.

    Args:
        node: Number of the operation.
        operation: Its name.
        module: Name of the module that it ran in.
        second_moment: Predicted average of the squared elements; None if nothing is predicted.
        correlation: Predicted second moment of two samples over that of one.
        gradient: Predicted mean square of the derivative of the loss by an element.
        measured_second_moment: The same, of the traced pass.
        measured_gradient: The same; None where it was not measured.
        reason: Why nothing was predicted; empty otherwise.
        is_start: Whether the way back begins here, with the measured gradient.
        backward_reason: Why the gradient was not pulled back through the operation, so that the
            way back begins anew before it; empty otherwise.
    """

    node: int
    operation: str
    module: str
    second_moment: float | None
    correlation: float | None
    gradient: float | None
    measured_second_moment: float
    measured_gradient: float | None
    reason: str = ""
    is_start: bool = False
    backward_reason: str = ""


@dataclass(frozen=True, slots=True)
class Weight:
    """The gradient of one parameter: the mean square of its elements."""

    name: str
    gradient: float


@dataclass(frozen=True, slots=True)
class Propagation:
    """What is predicted for a traced pass.

    Args:
        sites: One for each operation that random weights lie before, in order.
        weights: One for each matrix of weights.
    """

    sites: tuple[Site, ...]
    weights: tuple[Weight, ...]


def propagate(graph: Graph) -> Propagation:
    """Predict second moments and gradients at every operation of a traced pass.

    Where no rule applies, the way forward goes on from the measured moments of that operation,
    and the way back from the measured gradient.
    """
    forward = _Forward(graph)
    for node in graph.nodes:
        forward.step(node)
    back = _backward(graph, forward)
    sites = []
    for node in graph.nodes:
        value = forward.values[node.number][0]
        reason = forward.reasons.get(node.number, "")
        if isinstance(value, Moments) or reason:
            site = _site(node, value, back.gradients.get(id(value)), reason)
            why = back.reasons.get(node.number, "")
            sites.append(replace(site, is_start=id(value) in back.starts, backward_reason=why))
    return Propagation(tuple(sites), tuple(Weight(*item) for item in back.weights.items()))


class _Forward:
    """The values of all nodes, and the ways back."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.values: dict[int, list[Value]] = {}
        self.pullbacks: dict[int, list[Pullback | None]] = {}
        self.reasons: dict[int, str] = {}
        self._given: dict[int, Known] = {}
        data = [
            leaf.value
            for node in graph.nodes
            for leaf in node.inputs
            if isinstance(leaf, Given) and leaf.kind == "data" and leaf.value.ndim
        ]
        self._samples = len(data[0]) if data else 0

    def step(self, node: Node) -> None:
        """Find what is known of the outputs of a node."""
        arguments, keywords = pytree.tree_map_only(
            (Made, Given), self._value, (node.arguments, node.keywords)
        )
        leaves = [v for v in pytree.tree_leaves((arguments, keywords)) if _is_value(v)]
        call = Call(node, arguments, keywords)
        random = not all(isinstance(leaf, Known) for leaf in leaves)
        try:
            result = self._result(call, leaves, random=random)
        except Exception as error:  # whatever an operation is, the others are predicted
            self.reasons[node.number] = _reason(node, error, "the rule for")
            result = self._cut(node, leaves)
        outputs, pullbacks = zip(*result, strict=True)
        self.values[node.number] = list(outputs)
        self.pullbacks[node.number] = list(pullbacks)

    def _result(self, call: Call, leaves: Sequence[Value], *, random: bool) -> Result:
        node = call.node
        known = [leaf for leaf in leaves if isinstance(leaf, Known)]
        if not random:
            return self._of_known(call, known)
        if node.in_part:
            raise UnpredictedError("a tensor that was written in part, in place")
        if node.name in _OF_SHAPES:
            return _all_known(node, None)
        scores = attention.parts_of(leaves)
        if scores is not None:
            return self._of_scores(call, scores)
        if attention.is_product_of_moments(call):
            return _with(node, attention.scores(call))
        rule = RULES.get(node.name)
        moments = [leaf for leaf in leaves if isinstance(leaf, Moments)]
        alone = len(moments) == 1 and moments[0].parts
        if rule is not None:
            return each_part(call, rule) if alone and node.name in FEATUREWISE else rule(call)
        if torch.Tag.pointwise in node.operator.tags:
            if len(moments) == 1 and not any(
                leaf.value.ndim and leaf.value.numel() > 1 for leaf in known
            ):
                return each_part(call, pointwise) if alone else pointwise(call)
            raise UnpredictedError(f"{node.name} of several tensors")
        raise UnpredictedError(f"no rule for {node.name}")

    def _of_scores(self, call: Call, scores: attention.Scores) -> Result:
        """Between the two products of attention."""
        if call.node.name == "bmm":
            values = call.arguments[1]
            if not isinstance(values, Moments) or call.arguments[0] is not scores:
                raise UnpredictedError("attention weights that multiply no values")
            return attention.attend(scores, values)
        return _with(call.node, attention.changed(call, scores))

    def _of_known(self, call: Call, known: Sequence[Known]) -> Result:
        """Values stay values, until weights are multiplied with data."""
        node = call.node
        data = any(leaf.data for leaf in known)
        names = {leaf.parameter for leaf in known if leaf.parameter}
        if node.name in FOLLOWED:
            try:
                return RULES[node.name](call)
            except LayoutError:
                return _all_known(node, Known(node.outputs[0], data=data))
        if data and names and node.name in ("mm", "bmm", "addmm", "baddbmm", "convolution"):
            return RULES[node.name](call)
        shape = tuple(node.outputs[0].shape)
        layout = next(
            (leaf.layout for leaf in known if leaf.layout and leaf.layout.shape == shape), None
        )
        if node.name == "embedding" and known[1].layout is not None:
            layout = Layout((*known[1].layout.axes, (Atom.new("open", shape[-1]),)))
        if layout is None and data:
            layout = self._data(node).layout
        parameter = " and ".join(sorted(names)) if names and not data else None
        return _all_known(node, Known(node.outputs[0], layout, parameter, data))

    def _cut(self, node: Node, leaves: Sequence[Value]) -> Result:
        """Go on from measured moments, if the axes are those of an input."""
        for output in node.outputs[:1]:
            for leaf in leaves:
                if isinstance(leaf, Moments) and leaf.layout.shape == tuple(output.shape):
                    try:
                        found = measured(output, leaf.layout)
                    except (UnpredictedError, LayoutError):
                        break
                    others: list[tuple[Value, Pullback | None]] = [
                        (Known(other), None) for other in node.outputs[1:]
                    ]
                    return Result(found, None, others)
        data = any(not isinstance(leaf, Known) or leaf.data for leaf in leaves)
        return _all_known(node, self._data(node) if data else None)

    def _data(self, node: Node) -> Known:
        """The values of an output as if they were the batch's."""
        shape = tuple(node.outputs[0].shape)
        whole = bool(shape) and shape[0] == self._samples
        return Known(node.outputs[0], Layout.of_batch(shape) if whole else None, data=True)

    def _value(self, source: Made | Given) -> Value:
        if isinstance(source, Made):
            return self.values[source.node][source.index]
        found = self._given.get(id(source.value))
        if found is None:
            data = source.kind == "data" and source.value.ndim > 0
            layout = None
            if data and len(source.value) == self._samples:
                layout = Layout.of_batch(source.value.shape)
            name = source.name if source.kind == "parameter" else None
            found = Known(source.value, layout, name, data)
            self._given[id(source.value)] = found
        return found


def _is_value(leaf: Any) -> bool:
    return isinstance(leaf, Known | Moments | attention.Scores)


def _with(node: Node, value: Any) -> Result:
    """A value, whose way back is that of what comes later."""
    others: list[tuple[Value, Pullback | None]] = [(Known(o), None) for o in node.outputs[1:]]
    return Result(value, lambda _: Pulled(), others)


def _all_known(node: Node, first: Known | None) -> Result:
    outputs: list[tuple[Value, Pullback | None]] = [(Known(o), None) for o in node.outputs]
    if first is not None:
        outputs[0] = first, None
    return Result(outputs[0][0], None, outputs[1:])


@dataclass(frozen=True, slots=True, eq=False)
class _Backward:
    """What came back through a graph.

    Args:
        gradients: By the identity of a value.
        weights: By name.
        starts: Values whose gradient is the measured one.
        reasons: Why the gradient at an operation was not pulled through it, by number.
    """

    gradients: dict[int, Gradient]
    weights: dict[str, float]
    starts: set[int]
    reasons: dict[int, str]


def _backward(graph: Graph, forward: _Forward) -> _Backward:
    """Pull gradients back, from the measured ones where there is no way to a value."""
    back = _Backward({}, {}, set(), {})
    found = back.gradients
    cut = _consumed_without_a_way_back(graph, forward)
    for node in reversed(graph.nodes):
        pairs = zip(forward.values[node.number], forward.pullbacks[node.number], strict=True)
        for index, (value, pullback) in enumerate(pairs):
            if not isinstance(value, Moments):
                continue
            if id(value) in cut:
                # What other ways brought is not all of it.
                found.pop(id(value), None)
                gradient = _measured_gradient(node.gradients[index], value)
                if gradient is not None:
                    found[id(value)] = gradient
                    back.starts.add(id(value))
                else:
                    cut.update(id(v) for v in _moments_of(node, forward))
            gradient = found.get(id(value))
            if gradient is None or pullback is None:
                continue
            try:
                pulled = pullback(gradient)
            except Exception as error:  # as forward, the others are predicted
                back.reasons[node.number] = _reason(node, error, "the way back of")
                cut.update(id(v) for v in _moments_of(node, forward))
                continue
            for name, size in pulled.weights:
                back.weights[name] = back.weights.get(name, 0.0) + size
            for receiver, share in pulled.inputs:
                before = found.get(id(receiver))
                found[id(receiver)] = share if before is None else before + share
    return back


def _reason(node: Node, error: Exception, what: str) -> str:
    """What a rule says, or how it failed."""
    if isinstance(error, UnpredictedError | LayoutError):
        return str(error)
    return f"{what} {node.name} failed: {type(error).__name__}: {error}"


def _moments_of(node: Node, forward: _Forward) -> list[Moments]:
    """The moments among the inputs of a node."""
    values = [forward.values[s.node][s.index] for s in node.inputs if isinstance(s, Made)]
    return [value for value in values if isinstance(value, Moments)]


def _consumed_without_a_way_back(graph: Graph, forward: _Forward) -> set[int]:
    """Values that reach the loss through an operation without a rule."""
    found: set[int] = set()
    for node in graph.nodes:
        if any(pullback is not None for pullback in forward.pullbacks[node.number]):
            continue
        if node.name in _OF_SHAPES:
            continue
        found.update(id(value) for value in _moments_of(node, forward))
    return found


def _measured_gradient(gradient: Tensor | None, like: Moments) -> Gradient | None:
    """Second moments of a measured gradient, in the positions of a value; None without any."""
    if gradient is None:
        return None
    try:
        pairs = products(features_last(gradient, like.layout))
        order = [atom for atom in like.layout.with_role("position") if atom.size > 1]
        return Gradient(arranged(pairs, order, like.order))
    except (UnpredictedError, LayoutError):
        return None


def _site(node: Node, value: Value, gradient: Gradient | None, reason: str) -> Site:
    output, grad = node.outputs[0].detach(), node.gradients[0]
    predicted = isinstance(value, Moments) and not reason
    return Site(
        node.number,
        node.name,
        node.module,
        value.second_moment if predicted and isinstance(value, Moments) else None,
        value.sample_correlation if predicted and isinstance(value, Moments) else None,
        gradient.pairs.mean_diagonal if gradient is not None else None,
        float(output.double().square().mean()) if output.is_floating_point() else np.nan,
        float(grad.double().square().mean()) if grad is not None else None,
        reason,
    )
