"""Another activation."""

from __future__ import annotations

from collections.abc import Container

from torch.nn import functional as F

from equipoise.instrument.recording.graph import Given, Graph, Made, Node
from equipoise.theory.activation.adapt import ActivationLike, as_activation
from equipoise.theory.activation.catalogue import Activation, Elementwise, named_activation
from equipoise.theory.propagation.rules.shape import FOLLOWED
from equipoise.theory.propagation.what_if.editor import Editor
from equipoise.theory.propagation.what_if.structure import Structure

_ACTIVATIONS = {
    *("relu", "gelu", "silu", "tanh", "sigmoid", "leaky_relu", "elu", "celu", "mish", "softplus"),
    *("hardtanh", "hardswish", "hardsigmoid", "_prelu_kernel", "log_sigmoid_forward", "sin"),
}
_GATES = {"sigmoid", "hardsigmoid"}


def with_activation(
    graph: Graph, activation: ActivationLike, among: Container[int] | None = None
) -> Graph:
    """Replace every activation before weights, or those of them with certain numbers."""
    found = exchangeable(graph)
    if among is not None:
        found = {number for number in found if number in among}
    if not found:
        raise ValueError(
            "this model has no activation that could be another: it has "
            f"{Structure(graph).described()}."
        )
    function = _as_pytorch_has_it(activation)
    editor = Editor(graph)
    for node in graph.nodes:
        if node.number in found:
            editor.put(node, function, node.inputs[:1])
        else:
            editor.copy(node)
    return editor.finished()


def is_activation(node: Node) -> bool:
    """Whether an operation is an activation, wherever it stands."""
    return node.name in _ACTIVATIONS


def exchangeable(graph: Graph) -> set[int]:
    """Numbers of the activations of hidden features that could be others.

    Sigmoids that are multiplied with are gates. What meets another function of the same features
    again, element by element, is a part of a formula, such as tanh in GELU's approximation.
    """
    structure, origins = Structure(graph), _Origins(graph)
    return {
        node.number
        for node in graph.nodes
        if is_activation(node)
        and structure.is_inside(node)
        and any(map(structure.is_random, node.inputs))
        and not (node.name in _GATES and _is_factor(node, structure))
        and not _is_in_formula(node, structure, origins)
    }


def _as_pytorch_has_it(activation: ActivationLike) -> Elementwise:
    """PyTorch's own function, which is one operation, where there is one."""
    adapted = as_activation(activation)
    word, _, numbers = adapted.name.partition("(")
    own = getattr(F, word.replace("log_sigmoid", "logsigmoid"), None)
    if own is None or not _is_listed(adapted):
        return adapted.function
    values = [float(number) for number in numbers.rstrip(")").split(",") if number]
    return lambda x: own(x, *values)


def _is_listed(activation: Activation) -> bool:
    """Whether an activation is the one of its name, and no function of a user's."""
    try:
        return named_activation(activation.name) is activation
    except ValueError:
        return False


def _is_factor(node: Node, structure: Structure) -> bool:
    """Whether data are multiplied with what an operation made."""
    left = list(structure.consumers[node.number])
    while left:
        consumer = left.pop()
        if consumer.name == "mul" and all(map(structure.has_data, consumer.inputs)):
            return True
        if consumer.name in FOLLOWED:
            left += structure.consumers[consumer.number]
    return False


class _Origins:
    """Which tensors the elements of a tensor are functions of, element by element."""

    def __init__(self, graph: Graph) -> None:
        self._structure = Structure(graph)
        self._of_nodes: list[frozenset[Made | Given]] = []
        for node in graph.nodes:
            found: frozenset[Made | Given] = frozenset()
            if node.is_pointwise and len(node.outputs) == 1:
                found = frozenset().union(*map(self.of, node.inputs))
            self._of_nodes.append(found or frozenset({Made(node.number, 0)}))

    def of(self, source: Made | Given) -> frozenset[Made | Given]:
        """The tensors; none of what does not depend on data."""
        if not self._structure.has_data(source):
            return frozenset()
        if isinstance(source, Made) and source.index == 0:
            return self._of_nodes[source.node]
        return frozenset({source})


def _is_in_formula(node: Node, structure: Structure, origins: _Origins) -> bool:
    """Whether its result meets another function of what it is a function of."""
    start = origins.of(node.inputs[0])
    left, seen = [node], set()
    while left:
        last = left.pop()
        for consumer in structure.consumers[last.number]:
            if consumer.number in seen or not consumer.is_pointwise:
                continue
            seen.add(consumer.number)
            others = [s for s in consumer.inputs if s != Made(last.number, 0)]
            if any(origins.of(other) == start for other in others):
                return True
            if not any(map(structure.has_data, others)):
                left.append(consumer)
    return False
