"""Copy a graph operation by operation, with changes on the way.

What depends on a change keeps its shape and loses its values.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from equipoise.instrument import trees
from equipoise.instrument.recording.graph import Given, Graph, Made, Node, without_values
from equipoise.instrument.recording.tracer import operations_of
from equipoise.theory.propagation.call import OF_SHAPES

Source = Made | Given


class Editor:
    """A graph in the making.

    Args:
        graph: The graph to be copied.
        values: New values of given tensors, by the identity of the old ones.
    """

    def __init__(self, graph: Graph, values: Mapping[int, Tensor] | None = None) -> None:
        self.graph = graph
        self.nodes: list[Node] = []
        self._values = {} if values is None else values
        self._places: dict[Source, Source] = {}
        self._replaced: set[Source] = set()

    def copy(self, node: Node, *, changed: bool = False, **fields: Any) -> Node:
        """Add an operation of the old graph.

        Args:
            node: The operation.
            changed: Whether it gives something else than before, even of the same inputs.
            fields: Attributes of the node that are new; sources are those of the old graph.
        """
        node = replace(node, **fields)
        arguments, keywords = trees.replaced(
            (Made, Given), self.source, (node.arguments, node.keywords)
        )
        if node.name not in OF_SHAPES:
            changed = changed or any(map(self._is_changed, node.inputs))
        outputs = tuple(map(without_values, node.outputs)) if changed else node.outputs
        number = len(self.nodes)
        new = replace(node, number=number, arguments=arguments, keywords=keywords, outputs=outputs)
        self.nodes.append(new)
        for index in range(len(outputs)):
            self._places[Made(node.number, index)] = Made(number, index)
        return new

    def put(
        self, node: Node, function: Callable[..., Tensor], inputs: Sequence[Source | None]
    ) -> None:
        """Add what a function does, in the place of an operation.

        Args:
            node: The operation, whose first output the function gives instead.
            function: Takes tensors.
            inputs: What it takes, of the old graph; None is handed on.
        """
        given = [
            (self.source(source), self.tensor(source)) for source in inputs if source is not None
        ]

        def with_gaps(*tensors: Tensor) -> Tensor:
            left = iter(tensors)
            return function(*(None if source is None else next(left) for source in inputs))

        nodes, result = operations_of(with_gaps, given, first=len(self.nodes), module=node.module)
        self.nodes += nodes
        self._places[Made(node.number, 0)] = result
        self._replaced.add(Made(node.number, 0))

    def source(self, source: Source) -> Source:
        """Where a tensor of the old graph comes from now."""
        if isinstance(source, Made):
            return self._places[source]
        value = self._values.get(id(source.value))
        return source if value is None else Given(source.kind, source.name, value)

    def tensor(self, source: Source) -> Tensor:
        """A tensor of the old graph."""
        if isinstance(source, Given):
            return source.value
        return self.graph.nodes[source.node].outputs[source.index]

    def _is_changed(self, source: Source) -> bool:
        if isinstance(source, Given):
            return id(source.value) in self._values
        if source in self._replaced:  # perhaps by its own input
            return True
        place = self._places[source]
        return isinstance(place, Made) and self.nodes[place.node].outputs[place.index].is_meta

    def finished(self, **fields: Any) -> Graph:
        """The new graph.

        Args:
            fields: Attributes of the graph that are new.
        """
        result = None if self.graph.result is None else self.source(self.graph.result)
        made = result if isinstance(result, Made) else None
        return edited(self.graph, self.nodes, made, **fields)


def edited(graph: Graph, nodes: Sequence[Node], result: Made | None, **fields: Any) -> Graph:
    """A graph with other operations, whose gradients hold if all outputs do.

    Args:
        graph: The graph as it was.
        nodes: The operations it has now.
        result: What the loss is made by now.
        fields: Other attributes of the graph that are new.
    """
    if any(output.is_meta for node in nodes for output in node.outputs):
        nodes = [_without_gradients(node) for node in nodes]
    return replace(
        graph,
        nodes=tuple(nodes),
        result=result,
        loss=math.nan,
        weights={},
        edited=True,
        **fields,
    )


def _without_gradients(node: Node) -> Node:
    gradients = (None if g is None else without_values(g) for g in node.gradients)
    return replace(node, gradients=tuple(gradients), edges=())


def constant(source: Source | None, like: Tensor, value: float) -> Given:
    """A tensor with one value, in the place of a parameter of a shape."""
    device = "cpu" if like.is_meta else like.device
    tensor = torch.full(like.shape, float(value), device=device, dtype=like.dtype)
    if isinstance(source, Given):
        return Given(source.kind, source.name, tensor)
    return Given("buffer", "", tensor)
