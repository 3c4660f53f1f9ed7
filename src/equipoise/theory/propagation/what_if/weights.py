r"""Larger weights, or more of them.

Layers that are k times as wide have weights of variance :math:`v/k`, as initialisers that divide
by the fan-in give them. What goes in from the batch, and what goes to the loss, keeps its size.
Biases that were drawn with the variance of their weights, as PyTorch draws them, shrink with
them; others stay.
"""

from __future__ import annotations

from collections.abc import Mapping
from fnmatch import fnmatchcase
from fractions import Fraction

from torch import Tensor

from equipoise.instrument.recording.graph import Given, Graph
from equipoise.theory.propagation.what_if.editor import Editor
from equipoise.theory.propagation.what_if.structure import Structure


def with_gain(graph: Graph, gain: float | Mapping[str, float]) -> Graph:
    """Multiply matrices of weights by one number, or those whose names match a pattern."""
    parameters = {
        source.name: source.value
        for node in graph.nodes
        for source in node.inputs
        if isinstance(source, Given) and source.kind == "parameter"
    }
    matrices = {name: value for name, value in parameters.items() if value.ndim > 1}
    factors = gain if isinstance(gain, Mapping) else {"*": gain}
    values: dict[int, Tensor] = {}
    for pattern, factor in factors.items():
        if not 1e-6 <= abs(factor) <= 1e6:
            raise ValueError(f"gain is a factor between a millionth and a million, got {factor}.")
        found = [value for name, value in matrices.items() if _matches(name, pattern)]
        if not found:
            raise ValueError(f"no weights are named {pattern!r}: there are {', '.join(matrices)}.")
        for value in found:
            values[id(value)] = values.get(id(value), value).detach() * factor
    editor = Editor(graph, values)
    for node in graph.nodes:
        editor.copy(node)
    return editor.finished()


def _matches(name: str, pattern: str) -> bool:
    """Whether a pattern names a parameter, its module or all that is in a module around it."""
    parts = name.split(".")
    return any(fnmatchcase(".".join(parts[:end]), pattern) for end in range(1, len(parts) + 1))


def with_width(graph: Graph, width: float) -> Graph:
    """Give every layer but the last ones that many times as many outputs."""
    if not 1e-3 <= width <= 1e6:
        raise ValueError(f"width is a factor from 0.001 to a million, got {width}.")
    structure = Structure(graph)
    heads, factor = structure.heads(), Fraction(width).limit_denominator(1000)
    hidden = {node.number for node in structure.weighted} - heads
    if not hidden:
        raise ValueError("this model has no hidden layers that could be wider.")
    editor = Editor(graph)
    for node in graph.nodes:
        wider = node.number in hidden
        editor.copy(
            node, changed=wider, widening=node.widening * factor if wider else node.widening
        )
    return editor.finished()
