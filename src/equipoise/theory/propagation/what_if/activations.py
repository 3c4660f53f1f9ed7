"""Another activation."""

from __future__ import annotations

import itertools
from collections.abc import Container, Iterator
from dataclasses import dataclass

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


@dataclass(frozen=True, slots=True)
class Exchangeable:
    """An activation of hidden features, as operations of a graph.

    Args:
        number: Of the operation that makes its result.
        source: The features.
        inner: Numbers of the other operations, of a module that computes a formula.
    """

    number: int
    source: Made | Given
    inner: frozenset[int] = frozenset()


def with_activation(
    graph: Graph, activation: ActivationLike, among: Container[int] | None = None
) -> Graph:
    """Replace every activation before weights, or those of them with certain numbers."""
    found = {one.number: one for one in exchangeable(graph)}
    if among is not None:
        found = {number: one for number, one in found.items() if number in among}
    if not found:
        raise ValueError(
            "this model has no activation that could be another: it has "
            f"{Structure(graph).described()}."
        )
    inner = frozenset().union(*(one.inner for one in found.values()))
    function = _as_pytorch_has_it(activation)
    editor = Editor(graph)
    for node in graph.nodes:
        if node.number in found:
            editor.put(node, function, [found[node.number].source])
        elif node.number not in inner:
            editor.copy(node)
    return editor.finished()


def is_activation(node: Node) -> bool:
    """Whether an operation is an activation, wherever it stands."""
    return node.name in _ACTIVATIONS


def exchangeable(graph: Graph) -> tuple[Exchangeable, ...]:
    """The activations of hidden features.

    Sigmoids that are multiplied with are gates. What meets another function of the same features
    again, element by element, is a part of a formula, such as tanh in GELU's approximation: if a
    module computes nothing but the formula, this is an activation as a whole.
    """
    structure, origins = Structure(graph), _Origins(graph)
    formulas = {
        number: formula
        for formula in _formulas(graph, structure)
        for number in (formula.number, *formula.inner)
    }
    found = {}
    for node in graph.nodes:
        if not (is_activation(node) or node.name == "erf") or not structure.is_inside(node):
            continue
        if not any(map(structure.is_random, node.inputs)):
            continue
        if _is_in_formula(node, structure, origins):
            whole = formulas.get(node.number)
            if whole is not None:
                found[whole.number] = whole
        elif is_activation(node) and not (node.name in _GATES and _is_factor(node, structure)):
            found[node.number] = Exchangeable(node.number, node.inputs[0])
    return tuple(found.values())


def _formulas(graph: Graph, structure: Structure) -> Iterator[Exchangeable]:
    """Calls of modules that compute one function of one tensor, element by element."""
    for _, run in itertools.groupby(graph.nodes, key=lambda node: node.module):
        nodes = list(run)
        numbers = {node.number for node in nodes}
        # Such as what autograd keeps of a tanh.
        used = [node for node in nodes if structure.consumers[node.number]]
        sources = {
            source
            for node in used
            for source in node.inputs
            if structure.has_data(source)
            and not (isinstance(source, Made) and source.node in numbers)
        }
        results = [
            node.number
            for node in used
            if any(one.number not in numbers for one in structure.consumers[node.number])
        ]
        if len(sources) == len(results) == 1 and all(node.is_pointwise for node in used):
            yield Exchangeable(results[0], sources.pop(), frozenset(numbers - {*results}))


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
