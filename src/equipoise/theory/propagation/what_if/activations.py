"""Another activation."""

from __future__ import annotations

from torch.nn import functional as F

from equipoise.instrument.recording.graph import Graph, Node
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


def with_activation(graph: Graph, activation: ActivationLike) -> Graph:
    """Replace every activation before weights; sigmoids that are multiplied with are gates."""
    structure = Structure(graph)
    found = {
        node.number
        for node in graph.nodes
        if node.name in _ACTIVATIONS
        and structure.is_inside(node)
        and any(map(structure.is_random, node.inputs))
        and not (node.name in _GATES and _is_factor(node, structure))
    }
    if not found:
        raise ValueError(
            f"this model has no activation that could be another: it has {structure.described()}."
        )
    function = _as_pytorch_has_it(activation)
    editor = Editor(graph)
    for node in graph.nodes:
        if node.number in found:
            editor.put(node, function, node.inputs[:1])
        else:
            editor.copy(node)
    return editor.finished()


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
