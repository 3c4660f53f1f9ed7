"""Codes that nothing of what is decoded teaches, for want of a straight-through estimator."""

from __future__ import annotations

from collections.abc import Mapping, Set

from equipoise.diagnosis.mistakes.traced_pass import TracedPass, place_of
from equipoise.diagnosis.sources import LOOKING_UP, PRODUCTS, origin_of, table_of
from equipoise.instrument.recording.graph import Given, Made, Node
from equipoise.records import wording
from equipoise.records.finding import Finding

_CHOOSING = ("argmin", "argmax", "min", "max", "topk", "sort")
_NAMES = 3


def of_quantised(traced: TracedPass) -> list[Finding]:
    """Rows of a table that are decoded, while nothing of that teaches what chose them.

    Args:
        traced: The pass, and what it is one of.
    """
    nodes = traced.nodes
    for node in traced.graph.nodes:
        table = table_of(node, nodes) if node.number in traced.before_layers else None
        if table is None:
            continue
        for choice in _choices(node, nodes):
            given = _given_to(choice, nodes)
            encoder = {
                one.name
                for one in given
                if one.kind == "parameter" and one.value.requires_grad and one.name != table.name
            }
            is_nearest = any(one.name == table.name for one in given)
            if encoder and is_nearest and not _teaches(node, encoder, traced):
                return [_finding(node, table, encoder)]
    return []


def _finding(node: Node, table: Given, encoder: Set[str]) -> Finding:
    return Finding(
        "critical",
        "What is decoded does not teach the encoder",
        f"The nearest rows of {table.name!r} are decoded{place_of(node)}, and choosing them lets "
        f"no gradient through: {wording.listed(sorted(encoder), _NAMES)} learn nothing of the "
        "error.",
        "Hand the gradient on as if nothing was rounded: z + (codes - z).detach().",
    )


def _choices(node: Node, nodes: Mapping[int, Node]) -> list[Node]:
    """What has chosen the rows that an operation takes, or the ones of a matrix of zeros."""
    if node.name in LOOKING_UP:
        origins = [origin_of(one, nodes) for one in node.inputs[1:]]
        return [one for one in origins if one is not None and one.name in _CHOOSING]
    first = node.inputs[0]
    leading = _leading_to(nodes[first.node], nodes) if isinstance(first, Made) else []
    return [one for one in leading if one.name in _CHOOSING]


def _given_to(node: Node, nodes: Mapping[int, Node]) -> list[Given]:
    """All tensors that numbers of an operation were made of."""
    inputs = (source for one in _leading_to(node, nodes) for source in one.inputs)
    return [source for source in inputs if isinstance(source, Given)]


def _leading_to(node: Node, nodes: Mapping[int, Node]) -> list[Node]:
    """The operation, and all that its numbers were made by."""
    found, seen = [node], {node.number}
    for one in found:
        for source in one.inputs:
            if isinstance(source, Made) and source.node in nodes and source.node not in seen:
                seen.add(source.node)
                found.append(nodes[source.node])
    return found


def _teaches(lookup: Node, encoder: Set[str], traced: TracedPass) -> bool:
    """Whether layers that take these rows hand gradients on to the parameters that chose them."""
    behind, taught = {lookup.number}, set[Made]()
    for node in traced.graph.nodes:
        if any(isinstance(one, Made) and one.node in behind for one in node.inputs):
            behind.add(node.number)
        if any(
            one in taught if isinstance(one, Made) else one.name in encoder for one in node.inputs
        ):
            outputs = enumerate(node.outputs)
            taught |= {Made(node.number, place) for place, x in outputs if x.requires_grad}
            if Made(node.number, 0) in taught and node.number in behind and node.name in PRODUCTS:
                return True
    return False
