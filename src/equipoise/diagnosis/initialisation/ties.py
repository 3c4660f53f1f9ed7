"""Whether weights that a head shares with an embedding make logits too large, told by a pass."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from equipoise.diagnosis.initialisation.record import Initialisation
from equipoise.diagnosis.initialisation.symptoms import TOO_LARGE
from equipoise.diagnosis.sources import ARRANGING, PRODUCTS
from equipoise.instrument.recording.graph import Given, Graph
from equipoise.theory.propagation.tensors import mean_square


def told_by_logits(found: Initialisation, graph: Graph) -> Initialisation:
    """Leave out tied embeddings whose logits are of the usual size.

    Models whose tables are large on purpose divide what goes into the head by it, as T5 does.

    Args:
        found: A record of initial weights.
        graph: A traced pass.
    """
    faults = tuple(
        fault
        for fault in found.faults
        if fault.kind != "tied" or not _are_usual(_sizes(graph, fault.parameters))
    )
    return replace(found, faults=faults)


def _are_usual(sizes: Collection[float]) -> bool:
    return bool(sizes) and all(size <= TOO_LARGE**2 for size in sizes)


def _sizes(graph: Graph, names: Collection[str]) -> list[float]:
    """Mean squares of what matrix products make with these weights."""
    arranged, found = set[int](), []
    for node in graph.nodes:
        takes = any(
            one.name in names if isinstance(one, Given) else one.node in arranged
            for one in node.inputs
        )
        if takes and node.name in ARRANGING:
            arranged.add(node.number)
        elif takes and node.name in PRODUCTS:
            found.append(mean_square(node.outputs[0]))
    return found
