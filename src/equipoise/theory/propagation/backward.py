"""Pull gradients back through a traced graph."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from torch import Tensor

from equipoise.instrument.recording.graph import Graph, Made, Node
from equipoise.numerics.pieces import cosine
from equipoise.theory.propagation import losses
from equipoise.theory.propagation.attribution import Edge
from equipoise.theory.propagation.call import OF_SHAPES, WEIGHTED, Pullback, Pulled, reason_of
from equipoise.theory.propagation.exchangeable import Exchangeable
from equipoise.theory.propagation.forward import Forward
from equipoise.theory.propagation.layout import LayoutError, UnpredictedError
from equipoise.theory.propagation.tensors import SecondMoments, mean_square, samples_apart
from equipoise.theory.propagation.values.covariances import arranged
from equipoise.theory.propagation.values.gradients import Gradient
from equipoise.theory.propagation.values.known import Known, Unfinished
from equipoise.theory.propagation.values.moments import Moments

# What a gradient along outputs may add to the prediction of the gradient before.
_MOST_ALONG = 0.1
# ln of a gradient one operation before a measured one, predicted over measured: beyond it, slopes
# are not independent of where the gradient is.
_ALIKE = 0.25


@dataclass(slots=True)
class Back:
    """The way back.

    Args:
        gradients: By the identity of a value; those that are kept.
        sizes: Mean squares of all gradients, by the identity of a value.
        uses: Mean squared gradients of weights, by name and number of the operation.
        starts: Values whose gradient is that of the loss, measured or drawn.
        edges: Where the gradient of a value comes from.
        unknown: Why the gradient of a value is neither predicted nor measured.
        reasons: Why the gradient at an operation was not pulled through it, by number.
    """

    gradients: dict[int, Gradient] = field(default_factory=dict)
    sizes: dict[int, float] = field(default_factory=dict)
    uses: dict[str, dict[int, float]] = field(default_factory=dict)
    starts: set[int] = field(default_factory=set)
    edges: dict[int, list[Edge]] = field(default_factory=dict)
    unknown: dict[int, str] = field(default_factory=dict)
    reasons: dict[int, str] = field(default_factory=dict)

    @property
    def weights(self) -> dict[str, float]:
        """Mean squared gradients of weights, by name, all uses together."""
        return {name: sum(sizes.values()) for name, sizes in self.uses.items()}


def backward(graph: Graph, forward: Forward, *, keep: bool = True) -> Back:
    """Pull gradients back, from the measured ones where there is no way to a value.

    Args:
        graph: The traced pass.
        forward: The way forward.
        keep: Whether gradients and the ways back are kept after use, which takes memory.
    """
    walk = _Walk(graph, forward, keep=keep)
    for node in reversed(graph.nodes):
        for index, value in enumerate(forward.values[node.number]):
            if isinstance(value, Moments):
                walk.pass_output(node, index, value)
    return walk.back


class _Walk:
    """From the last operation to the first."""

    def __init__(self, graph: Graph, forward: Forward, *, keep: bool) -> None:
        self.back, self._forward, self._keep = Back(), forward, keep
        self._scale = float(graph.samples) ** -2 if losses.is_mean(graph) else 1.0
        # Values whose gradient is taken from the traced pass.
        self._cut = _consumed_without_a_way_back(graph, forward)
        self._drawn = _drawn(graph, forward, self._cut)
        self._failures: dict[int, str] = {}
        # Beginnings from which no weights lie between, which decorrelate what they bring.
        self._begun: dict[int, set[int]] = {}

    def pass_output(self, node: Node, index: int, value: Moments) -> None:
        """Take the gradient of an output to the inputs of its operation."""
        found, unknown = self.back.gradients, self.back.unknown
        if len(self._begun.get(id(value), ())) > 1 and _has_values(node.gradients[index]):
            self._cut.add(id(value))  # how they add up, or cancel, is measured
        if id(value) in self._cut:
            self._begin(node, index, value)
        if id(value) in unknown:  # if only in part
            for v in _moments_of(node, self._forward):
                unknown.setdefault(id(v), unknown[id(value)])
            found.pop(id(value), None)
        gradient = found.get(id(value))
        if gradient is None:
            return
        self.back.sizes[id(value)] = gradient.pairs.mean_diagonal
        pullbacks = self._forward.pullbacks[node.number]
        pullback = pullbacks[index]
        if pullback is None:
            return
        self._give(node, value, self._pulled(node, index, value, pullback))
        if not self._keep:
            pullbacks[index] = None
            if found[id(value)] is gradient:
                del found[id(value)]

    def _begin(self, node: Node, index: int, value: Moments) -> None:
        """Start from the gradient that was measured or drawn, as other ways do not bring all."""
        share, measured = self.back.gradients.pop(id(value), None), node.gradients[index]
        fresh = self._drawn.get(Made(node.number, index), [])
        begin = _start(value, measured, fresh, share, self._scale)
        if begin is not None:
            self.back.gradients[id(value)] = begin
            self.back.starts.add(id(value))
            self._begun[id(value)] = {id(value)}
            along = node.name not in WEIGHTED and _cosine(node, index) ** 2 > _MOST_ALONG
            if not along:  # else slopes are not independent of it
                return
        elif measured is not None and measured.is_meta:
            reason = self._failures.get(id(value), "a gradient of the loss before the change")
            self.back.unknown.setdefault(id(value), reason)
            return
        self._cut.update(id(v) for v in _moments_of(node, self._forward))

    def _pulled(self, node: Node, index: int, value: Moments, pullback: Pullback) -> Pulled:
        """What the inputs of an operation get; nothing where that is not predicted."""
        try:
            pulled = pullback(self.back.gradients[id(value)])
            begun = self._begun.get(id(value), ())
            reason = _of_the_weights(node, index, self._forward, begun)
        except Exception as error:  # as forward, the others are predicted
            pulled, reason = Pulled(), reason_of(node, error, "the way back of")
        if reason:
            self.back.reasons[node.number] = reason
            pulled = Pulled(weights=pulled.weights)
            for v in _moments_of(node, self._forward):
                self._cut.add(id(v))
                self._failures[id(v)] = reason
        return pulled

    def _give(self, node: Node, value: Moments, pulled: Pulled) -> None:
        """Add what inputs and weights get of the gradient of an output to what they have."""
        back = self.back
        for name, size in pulled.weights:
            sizes = back.uses.setdefault(name, {})
            sizes[node.number] = sizes.get(node.number, 0.0) + size
        if id(value) in back.starts and node.name not in WEIGHTED:
            self._cut.update(_beside_measured(pulled, node, self._forward, self._scale))
        for receiver, share in pulled.inputs:
            before = back.gradients.get(id(receiver))
            back.gradients[id(receiver)] = share if before is None else before + share
            if not pulled.weights:
                begun = self._begun.setdefault(id(receiver), set())
                begun.update(self._begun.get(id(value), ()))
            size = size_of(receiver, share.pairs.mean_diagonal)
            width = receiver.layout.count("feature") if pulled.weights else None
            names = tuple(name for name, _ in pulled.weights)
            edge = Edge(id(value), size, width, names, pulled.doubt)
            back.edges.setdefault(id(receiver), []).append(edge)


def _of_the_weights(node: Node, index: int, forward: Forward, begun: Collection[int]) -> str:
    r"""Why the gradient at a product with weights W is not independent of them; empty if it is.

    Of outputs :math:`y = W x` and a gradient that has the share :math:`c^2` along y,
    :math:`W^\top y = W^\top W x` is longer by :math:`1 + C_{out}/C_{in}` than without common
    weights.

    Args:
        node: Any operation.
        index: Of its output.
        forward: The way forward.
        begun: Where the gradient was measured, if no other weights lie between.
    """
    if node.number in forward.turned:
        return "weights whose transpose comes after them"
    value = forward.values[node.number][index]
    if node.name not in WEIGHTED or not begun or not isinstance(value, Moments):
        return ""
    outputs = value.layout.count("feature")
    inputs = [moments.layout.count("feature") for moments in _moments_of(node, forward)]
    if node.name == "convolution" and inputs:
        ratio = outputs / inputs[0]
    else:
        weights = [weight.value.numel() for weight in _weights_of(node, forward)]
        if not weights:  # a product of two random tensors
            return ""
        ratio = outputs**2 / max(weights)
    along = _cosine(node, index) ** 2 * ratio > _MOST_ALONG
    return "a gradient along the output, which these weights made" if along else ""


def _beside_measured(pulled: Pulled, node: Node, forward: Forward, scale: float) -> set[int]:
    """Inputs whose gradient one operation before a measured one is not what was measured there.

    Such as that of a ReLU behind which identities copy the zeros on which a gradient is zero, too.
    """
    found = set()
    for source in node.inputs:
        if not isinstance(source, Made):
            continue
        value = forward.values[source.node][source.index]
        measured = forward.graph.nodes[source.node].gradients[source.index]
        for receiver, share in pulled.inputs:
            if receiver is value and measured is not None and not measured.is_meta:
                size, own = share.pairs.mean_diagonal, mean_square(measured) * scale
                if min(size, own) > 0 and abs(math.log(size) - math.log(own)) > _ALIKE:
                    found.add(id(receiver))
    return found


def _weights_of(node: Node, forward: Forward) -> list[Known]:
    values = [forward.value(source) for source in node.inputs]
    return [value for value in values if isinstance(value, Known) and value.parameter]


def _cosine(node: Node, index: int) -> float:
    """Of an output and its gradient; 0 where they were not measured."""
    gradient, output = node.gradients[index], node.outputs[index]
    if gradient is None or gradient.is_meta or output.is_meta or output.is_complex():
        return 0.0
    return cosine(gradient, output)


def _has_values(gradient: Tensor | None) -> bool:
    """Whether a gradient was measured, and still holds."""
    return gradient is not None and not gradient.is_meta


def _moments_of(node: Node, forward: Forward) -> list[Moments]:
    """The moments among the inputs of a node, also those of unfinished products."""
    sources = [s for s in node.inputs if isinstance(s, Made)]
    if any(isinstance(forward.values[s.node][s.index], Unfinished) for s in sources):
        sources = list(_read_by(node, forward))
    values = [forward.values[s.node][s.index] for s in sources]
    return [value for value in values if isinstance(value, Moments)]


def _consumed_without_a_way_back(graph: Graph, forward: Forward) -> set[int]:
    """Values that reach the loss through an operation without a rule."""
    found: set[int] = set()
    for node in graph.nodes:
        if any(pullback is not None for pullback in forward.pullbacks[node.number]):
            continue
        if node.name in OF_SHAPES:
            continue
        for source in _read_by(node, forward):
            value = forward.values[source.node][source.index]
            if isinstance(value, Moments):
                found.add(id(value))
    return found


def _read_by(node: Node, forward: Forward) -> set[Made]:
    """What an operation reads.

    That which an autograd function ends with reads the inputs of the function, and what takes
    scores reads queries and keys.
    """
    found: set[Made] = set()
    left = [node]
    for reader in left:
        for source in reader.inputs:
            if isinstance(source, Made) and source not in found:
                found.add(source)
                maker, value = forward.graph.nodes[source.node], forward.values[source.node]
                inside = node.function and not maker.records_gradients
                if inside or isinstance(value[source.index], Unfinished):
                    left.append(maker)
    return found


def _drawn(graph: Graph, forward: Forward, cut: set[int]) -> dict[Made, list[Exchangeable]]:
    """Second moments of gradients at the end of theory where those measured do not hold any more.

    One for every draw, which is not kept.
    """
    inputs = {
        Made(node.number, index): value
        for node in graph.nodes
        for index, value in enumerate(forward.values[node.number])
        if isinstance(value, Moments)
        and id(value) in cut
        and (gradient := node.gradients[index]) is not None
        and gradient.is_meta
    }
    found: dict[Made, list[Exchangeable]] = {}
    if inputs:
        for draw in losses.gradients(graph, forward.values, inputs):
            for source in list(draw):
                with suppress(UnpredictedError, LayoutError):
                    moments = of_tensor(draw.pop(source), inputs[source])
                    found.setdefault(source, []).append(moments)
    return found


def _start(
    value: Moments,
    measured: Tensor | None,
    drawn: Sequence[Exchangeable],
    share: Gradient | None,
    scale: float,
) -> Gradient | None:
    """The gradient at an end of theory; None if nothing says how large it is.

    Args:
        value: What the gradient is of.
        measured: All of the gradient, if any; without values if they do not hold any more.
        drawn: Instead, what comes straight from the loss, for every draw.
        share: What other ways bring.
        scale: Of squares, for the size of the batch.
    """
    if measured is None or (measured.is_meta and not drawn):
        return None
    try:
        if not measured.is_meta:
            return Gradient(of_tensor(measured, value) * scale)
        start = Gradient(sum(drawn[1:], drawn[0]) * (scale / len(drawn)))
    except (UnpredictedError, LayoutError):
        return None
    return start if share is None else share + start


def of_tensor(gradient: Tensor, like: Moments) -> Exchangeable:
    """Second moments of one gradient, in the positions of a value."""
    read = SecondMoments()
    for array in samples_apart(gradient, like.layout):
        read.add(array)
    pairs = read.of(like.correlation.samples)
    order = [atom for atom in like.layout.with_role("position") if atom.size > 1]
    return arranged(pairs, order, like.order)


def size_of(value: Moments, gradient: float) -> float:
    """The squared norm of a gradient, times the mean square of what it is of."""
    return gradient * value.second_moment * value.layout.elements
