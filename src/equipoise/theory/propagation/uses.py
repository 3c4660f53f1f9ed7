"""Where weights are multiplied with what depends on the batch, and as what."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from torch import Tensor

from equipoise.instrument.recording.graph import Given, Graph, Made, Node
from equipoise.theory.propagation.rules.shape import FOLLOWED
from equipoise.theory.propagation.values.known import Known
from equipoise.theory.propagation.values.moments import Value

# These give a part of the elements.
_PARTS = {"select", "slice", "narrow", "split", "split_with_sizes", "chunk", "unbind"}


@dataclass(frozen=True, slots=True)
class Use:
    """One operation that takes weights.

    Args:
        node: Number of the operation.
        matrix: A parameter, or what is computed of parameters, such as weight norm's; reshaped or
            cut into parts it is the same matrix.
        share: How much of the matrix the operation takes.
    """

    node: int
    matrix: Given | Made
    share: float

    @property
    def key(self) -> Made | int:
        """Equal for uses of one matrix."""
        return self.matrix if isinstance(self.matrix, Made) else id(self.matrix.value)


def uses_of(graph: Graph, values: Mapping[int, Sequence[Value]]) -> dict[str, list[Use]]:
    """All uses that have a gradient, by the names of parameters."""
    found: dict[str, list[Use]] = {}
    for node in graph.nodes:
        if not (node.records_gradients and _depends(values[node.number])):
            continue
        if not graph.edited and all(gradient is None for gradient in node.gradients):
            continue
        for source in dict.fromkeys(node.inputs):
            name, tensor = _named(source, graph, values)
            if name:
                matrix = _matrix(source, graph)
                share = tensor.numel() / max(1, value_of(matrix, graph).numel())
                found.setdefault(name, []).append(Use(node.number, matrix, min(share, 1.0)))
    return found


def value_of(source: Given | Made, graph: Graph) -> Tensor:
    """The tensor itself."""
    if isinstance(source, Given):
        return source.value
    return graph.nodes[source.node].outputs[source.index]


def gradient_of(source: Given | Made, graph: Graph) -> Tensor | None:
    """The measured gradient of something computed; None of a parameter."""
    return graph.nodes[source.node].gradients[source.index] if isinstance(source, Made) else None


def _depends(values: Sequence[Value]) -> bool:
    """Whether an operation gave what depends on the batch."""
    return any(not isinstance(value, Known) or value.data for value in values)


def _named(
    source: Given | Made, graph: Graph, values: Mapping[int, Sequence[Value]]
) -> tuple[str | None, Tensor]:
    """The parameters that an input is made of, and its value."""
    if isinstance(source, Given):
        return (source.name if source.kind == "parameter" else None), source.value
    value = values[source.node][source.index]
    name = value.parameter if isinstance(value, Known) else None
    return name, value_of(source, graph)


def _matrix(source: Given | Made, graph: Graph) -> Given | Made:
    """What was reshaped or cut into parts to this."""
    while isinstance(source, Made):
        node: Node = graph.nodes[source.node]
        if node.name not in FOLLOWED and node.name not in _PARTS:
            break
        source = node.inputs[0]
    return source
