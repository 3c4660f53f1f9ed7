"""Where the batch has become one stream: what gradients are compared with those at the output."""

from __future__ import annotations

from collections.abc import Container

from torch import Tensor

from equipoise.instrument.recording.graph import Given, Graph, Made, Node

# Operations that look up rows of a table; integers are looked up, and nothing else of them is.
_LOOKUPS = {"embedding", "index", "index_select", "gather"}


def passages(graph: Graph, end: int) -> set[int]:
    """Operations that every path from the batch to one of them passes.

    Paths begin at tensors of the batch with floating-point features, and at rows of weights that
    integers of it select. Masks, times and tables of positions are no paths: they say where
    features go, not what they are.

    Args:
        graph: A traced pass.
        end: Number of the operation where paths end.

    Returns:
        Numbers of operations; the last is ``end``, if the batch reaches it.
    """
    leading = leading_to(graph, end)
    carrying: set[int] = set()
    batch: set[int] = set()  # operations that depend on it in any way
    weights: set[int] = set()  # and on parameters
    last: dict[int | Given, int] = {}  # the last that takes a tensor
    for node in graph.nodes[: end + 1]:
        inputs = node.inputs
        if any(_among(source, batch, "data") for source in inputs):
            batch.add(node.number)
        if any(_among(source, weights, "parameter") for source in inputs):
            weights.add(node.number)
        sources = [source for source in inputs if _carries(source, carrying)]
        if _is_floating(node.outputs) and (sources or _looks_up(node, batch, weights)):
            carrying.add(node.number)
            if node.number in leading:
                for source in sources:
                    last[source.node if isinstance(source, Made) else source] = node.number
    # What no operation made is there from the beginning.
    reach = max((at for source, at in last.items() if isinstance(source, Given)), default=0)
    found = set()
    for number in sorted(carrying & leading):
        if reach <= number:
            found.add(number)
        reach = max(reach, last.get(number, 0))
    return found


def leading_to(graph: Graph, end: int, known: Container[int] = ()) -> set[int]:
    """Numbers of the operations that one depends on, and its own.

    What is behind those that are ``known`` is left out.
    """
    found, left = {end}, [end]
    while left:
        for source in graph.nodes[left.pop()].inputs:
            if isinstance(source, Made) and source.node not in found and source.node not in known:
                found.add(source.node)
                left.append(source.node)
    return found


def _among(source: Made | Given, numbers: set[int], kind: str) -> bool:
    return source.node in numbers if isinstance(source, Made) else source.kind == kind


def _carries(source: Made | Given, carrying: set[int]) -> bool:
    if isinstance(source, Made):
        return source.node in carrying
    return source.kind == "data" and source.value.is_floating_point() and source.value.ndim > 1


def _looks_up(node: Node, batch: set[int], weights: set[int]) -> bool:
    return node.name in _LOOKUPS and node.number in batch and node.number in weights


def _is_floating(outputs: tuple[Tensor, ...]) -> bool:
    return bool(outputs) and outputs[0].is_floating_point()
