"""What the loss of a traced pass would be with other numbers in the place of some."""

from __future__ import annotations

from collections.abc import Mapping, Set

import torch
from torch import Tensor

from equipoise.diagnosis.mistakes.sources import tensor
from equipoise.instrument import trees
from equipoise.instrument.random_states import seeded
from equipoise.instrument.recording.graph import Given, Graph, Made, evaluated


def loss_with(graph: Graph, values: Mapping[Made, Tensor], fixed: Set[int]) -> float | None:
    """The loss, where operations that take other numbers are repeated, and no others.

    Args:
        graph: The pass.
        values: What is to be taken in the place of some outputs.
        fixed: Numbers of operations whose outputs stay as they are.

    Returns:
        None if the loss does not depend on these numbers, or if an operation cannot be repeated
        alone.
    """
    new = dict(values)
    nodes = {node.number: node for node in graph.nodes}

    def value(source: Made | Given) -> Tensor:
        other = new.get(source) if isinstance(source, Made) else None
        return tensor(source, nodes).detach() if other is None else other

    replaced = {made.node for made in values}
    with torch.no_grad(), seeded(0):  # an operation may draw
        for node in graph.nodes:
            if node.number in fixed or node.number in replaced:
                continue
            if not any(one in new for one in node.inputs if isinstance(one, Made)):
                continue
            arguments = trees.replaced((Made, Given), value, (node.arguments, node.keywords))
            try:
                outputs = evaluated(node.operator, *arguments)
            except (RuntimeError, TypeError, ValueError):
                return None
            new |= {Made(node.number, place): output for place, output in enumerate(outputs)}
    found = None if graph.result is None else new.get(graph.result)
    return None if found is None else float(found)
