"""Branches that are added to a stream, scaled."""

from __future__ import annotations

from torch import Tensor

from equipoise.instrument.recording.graph import Graph, Node
from equipoise.theory.propagation.what_if.editor import Editor, Source
from equipoise.theory.propagation.what_if.structure import Structure


def with_residual_scale(graph: Graph, scale: float) -> Graph:
    """Multiply every residual branch by a number before it is added.

    Of the two ways from where they part to where they are added, the branch is the one with more
    weights.
    """
    structure = Structure(graph)
    found = {node.number: b for node in graph.nodes if (b := branches(node, structure))}
    if not found:
        raise ValueError(
            f"this model adds no branch to a stream that it came from: it has "
            f"{structure.described()}."
        )

    def scaled(stream: Tensor, branch: Tensor) -> Tensor:
        return stream.add(branch, alpha=scale)

    editor = Editor(graph)
    for node in graph.nodes:
        if node.number in found:
            editor.put(node, scaled, found[node.number])
        else:
            editor.copy(node)
    return editor.finished()


def branches(node: Node, structure: Structure) -> tuple[Source, Source] | None:
    """Stream and branch, if an operation adds one to the other."""
    if node.name != "add" or len(node.inputs) != 2 or not structure.is_inside(node):
        return None
    first, second = node.inputs
    before = [structure.ancestors(source) for source in node.inputs]
    own = [
        (ours & ~theirs & structure.weights).bit_count() for ours, theirs in (before, before[::-1])
    ]
    if not before[0] & before[1] or own[0] == own[1] or node.keywords.get("alpha", 1) != 1:
        return None
    return (first, second) if own[0] < own[1] else (second, first)
