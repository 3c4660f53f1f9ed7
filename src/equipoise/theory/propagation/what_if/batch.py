"""Another number of samples of the same kind."""

from __future__ import annotations

from fractions import Fraction

from equipoise.instrument.recording.graph import Graph
from equipoise.theory.propagation.what_if.editor import Editor
from equipoise.theory.propagation.what_if.norms import is_batch_norm


def with_batch_size(graph: Graph, samples: int) -> Graph:
    """Take the batch to have that many samples; its second moments stay."""
    if not graph.batch:
        raise ValueError("this model takes no batch of data.")
    editor = Editor(graph)
    for node in graph.nodes:
        editor.copy(node, changed=is_batch_norm(node))
    return editor.finished(samples=Fraction(int(samples), graph.batch))
