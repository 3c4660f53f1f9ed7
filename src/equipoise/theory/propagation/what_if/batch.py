"""Another number of samples of the same kind."""

from __future__ import annotations

from fractions import Fraction

from equipoise.instrument.recording.graph import Given, Graph
from equipoise.theory.propagation.what_if.editor import Editor
from equipoise.theory.propagation.what_if.norms import is_batch_norm


def with_batch_size(graph: Graph, samples: int) -> Graph:
    """Take the batch to have that many samples; its second moments stay."""
    traced = next(
        (
            len(source.value)
            for node in graph.nodes
            for source in node.inputs
            if isinstance(source, Given) and source.kind == "data" and source.value.ndim
        ),
        None,
    )
    if traced is None:
        raise ValueError("this model takes no batch of data.")
    if samples < 1:
        raise ValueError(f"batch_size must be at least 1, got {samples}.")
    editor = Editor(graph)
    for node in graph.nodes:
        editor.copy(node, changed=is_batch_norm(node))
    return editor.finished(samples=Fraction(samples, traced))
