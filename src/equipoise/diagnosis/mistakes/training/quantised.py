"""Codes that nothing of what is decoded teaches, for want of a straight-through estimator."""

from __future__ import annotations

from collections.abc import Set

from equipoise.diagnosis.mistakes.traced_pass import TracedPass, place_of
from equipoise.diagnosis.sources import LOOKING_UP, PRODUCTS, following, is_trained
from equipoise.diagnosis.trainability.entrance import leading_to
from equipoise.instrument.recording.graph import Given, Graph, Made, Node
from equipoise.records import wording
from equipoise.records.finding import Finding

_CHOOSING = ("argmin", "argmax", "min", "max", "topk", "sort")
_NAMES = 3


def of_quantised(traced: TracedPass) -> list[Finding]:
    """Rows of a table that are decoded, while nothing of that teaches what chose them.

    Where the layer that takes them gets no gradient either, as in the step of a discriminator,
    another loss is to teach both.
    """
    for node in traced.graph.nodes:
        table = traced.table_of(node) if node.number in traced.before_layers else None
        if table is None or not _is_learnt(node, traced):
            continue
        for choice in _choices(node, traced):
            given = _given_to(choice, traced.graph)
            encoder = {one.name for one in given if is_trained(one) and one.name != table.name}
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


def _choices(node: Node, traced: TracedPass) -> list[Node]:
    """What has chosen the rows that an operation takes, or the ones of a matrix of zeros."""
    if node.name in LOOKING_UP:
        origins = [traced.origin_of(one) for one in node.inputs[1:]]
        return [one for one in origins if one is not None and one.name in _CHOOSING]
    first = node.inputs[0]
    leading = leading_to(traced.graph, first.node) if isinstance(first, Made) else set[int]()
    behind = (traced.nodes[number] for number in sorted(leading, reverse=True))
    return [one for one in behind if one.name in _CHOOSING]


def _given_to(node: Node, graph: Graph) -> list[Given]:
    """All tensors that numbers of an operation were made of."""
    behind = leading_to(graph, node.number)
    inputs = (source for number in behind for source in graph.nodes[number].inputs)
    return [source for source in inputs if isinstance(source, Given)]


def _is_learnt(lookup: Node, traced: TracedPass) -> bool:
    """Whether the first layer that takes these rows is trained by this loss."""
    behind = following({lookup.number}, traced.graph.nodes)
    first = next((node for node in behind if node.name in PRODUCTS), None)
    if first is None:
        return False
    given = [[*traced.given_of(source)] for source in first.inputs]
    weights = [one for some in given if all(map(is_trained, some)) for one in some]
    return any(one.name in traced.graph.weights for one in weights)


def _teaches(lookup: Node, encoder: Set[str], traced: TracedPass) -> bool:
    """Whether layers that take these rows hand gradients on to the parameters that chose them."""
    behind = {node.number for node in following({lookup.number}, traced.graph.nodes)}
    taught = set[Made]()
    for node in traced.graph.nodes:
        if any(
            one in taught if isinstance(one, Made) else one.name in encoder for one in node.inputs
        ):
            outputs = enumerate(node.outputs)
            taught |= {Made(node.number, place) for place, x in outputs if x.requires_grad}
            if Made(node.number, 0) in taught and node.number in behind and node.name in PRODUCTS:
                return True
    return False
