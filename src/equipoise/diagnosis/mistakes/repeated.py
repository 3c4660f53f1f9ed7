"""What the loss of a traced pass would be with other numbers in the place of some."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Set
from typing import Any

import torch
from torch import Tensor

from equipoise.diagnosis.mistakes.traced_pass import TracedPass
from equipoise.diagnosis.sources import tensor
from equipoise.instrument import trees, untouched
from equipoise.instrument.memory import pass_on_lack_of_memory
from equipoise.instrument.random_states import seeded
from equipoise.instrument.recording.graph import Given, Graph, Made, Node, evaluated
from equipoise.instrument.recording.tracer import trace


def loss_with(graph: Graph, values: Mapping[Made, Tensor], fixed: Set[int] = frozenset()) -> float:
    """The loss, where operations that take other numbers are repeated, and no others.

    Args:
        graph: The pass.
        values: What is to be taken in the place of some outputs.
        fixed: Numbers of operations whose outputs stay as they are.

    Returns:
        nan if the loss does not depend on these numbers, or if an operation cannot be repeated
        alone.
    """
    new = numbers_with(graph, values, fixed)
    if new is None or graph.result is None or graph.result not in new:
        return math.nan
    return float(new[graph.result])


def numbers_with(
    graph: Graph, values: Mapping[Made, Tensor], fixed: Set[int] = frozenset()
) -> Mapping[Made, Tensor] | None:
    """All numbers that change where others are taken in the place of some; see the loss."""
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
                if node.in_part:
                    outputs: tuple[Tensor, ...] = (_written(node, value, nodes),)
                else:
                    outputs = evaluated(node.operator, *arguments)
            except (RuntimeError, TypeError, ValueError) as error:
                pass_on_lack_of_memory(error)
                return None
            new |= {Made(node.number, place): output for place, output in enumerate(outputs)}
    return new


def with_other_data(
    traced: TracedPass, batch: Any, *, evaluation: bool = False
) -> tuple[Graph, Graph] | None:
    """A pass and one on another batch, with the same random numbers.

    Args:
        traced: The pass, which is traced again.
        batch: The other batch.
        evaluation: Whether both are to run in evaluation.

    Returns:
        None if other operations run, or these give other shapes.
    """

    def ran(given: Any) -> Graph:
        with untouched(traced.model), seeded(0):
            if evaluation:
                traced.model.eval()
            return trace(traced.model, given, traced.loss_fn)

    before, after = ran(traced.batch), ran(batch)
    alike = len(before.nodes) == len(after.nodes) and all(
        one.name == other.name
        and [x.shape for x in one.outputs] == [x.shape for x in other.outputs]
        for one, other in zip(before.nodes, after.nodes, strict=True)
    )
    return (before, after) if alike else None


def _written(
    node: Node, value: Callable[[Made | Given], Tensor], nodes: Mapping[int, Node]
) -> Tensor:
    """A tensor of which parts were overwritten, with the same numbers there.

    Raises:
        ValueError: If these are other numbers now, whose places are not known.
    """
    first, *writes = node.inputs
    if not all(torch.equal(value(one), tensor(one, nodes)) for one in writes):
        raise ValueError("what is written to a part depends on what was replaced")
    before, after = tensor(first, nodes), node.outputs[0]
    return torch.where(before == after, value(first), after.detach())
