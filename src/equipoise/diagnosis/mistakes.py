"""Mistakes that a traced pass shows, whatever theory says of the network."""

from __future__ import annotations

from torch import nn

from equipoise.instrument.recording.graph import Graph, Made, Node
from equipoise.records import wording
from equipoise.records.finding import Finding

# Losses that normalise what they are given, and what has normalised it before.
_NORMALISED_TWICE = {
    "_log_softmax": ("_softmax", "softmax", "cross-entropy"),
    "binary_cross_entropy_with_logits": ("sigmoid", "sigmoid", "binary cross-entropy of logits"),
}
# Operations that only arrange their input anew.
_ARRANGING = {
    "view",
    "_unsafe_view",
    "reshape",
    "permute",
    "transpose",
    "t",
    "squeeze",
    "unsqueeze",
}
_ARRANGING |= {"flatten", "clone", "_to_copy", "alias", "detach", "contiguous", "slice", "select"}
# Share of the parameters from which a part without gradient is no detail.
_MUCH = 0.1
_NAMES = 3


def mistakes(graph: Graph, model: nn.Module) -> list[Finding]:
    """Outputs that are normalised twice, and parameters that the loss does not reach."""
    return [*_normalised_twice(graph), *_without_gradient(graph, model)]


def _normalised_twice(graph: Graph) -> list[Finding]:
    nodes = {node.number: node for node in graph.nodes}
    found = {}
    for node in graph.nodes:
        before, word, loss = _NORMALISED_TWICE.get(node.name, ("", "", ""))
        origin = _origin(node, nodes) if before else None
        if origin is not None and origin.name == before:
            found[word] = Finding(
                "warning",
                f"{word.capitalize()} before {loss}",
                f"{loss.capitalize()} applies its own {word}: after another one its gradients are "
                "small, and the loss cannot come near zero.",
                f"Return what goes into the {word}, and apply it only where probabilities are "
                "needed.",
            )
    return list(found.values())


def _origin(node: Node, nodes: dict[int, Node]) -> Node | None:
    """The operation that made the numbers of a node's first input."""
    while node.inputs and isinstance(source := node.inputs[0], Made):
        made = nodes.get(source.node)
        if made is None or made.name not in _ARRANGING:
            return made
        node = made
    return None


def _without_gradient(graph: Graph, model: nn.Module) -> list[Finding]:
    trainable = {name: p for name, p in model.named_parameters() if p.requires_grad}
    missed = [name for name in trainable if name not in graph.weights]
    if not missed or not graph.weights:
        return []
    numbers = sum(p.numel() for p in trainable.values())
    share = sum(trainable[name].numel() for name in missed) / max(1, numbers)
    much = share >= _MUCH
    return [
        Finding(
            "warning" if much else "note",
            f"{wording.count(len(missed), 'parameter')} without a gradient",
            f"The loss of this batch does not depend on {wording.percent(share)} of the weights: "
            f"{wording.listed(missed, _NAMES)}. They were not "
            "used in this pass, as dropped layers and experts are, or are detached.",
            "Use them, look for detach() or no_grad() behind them, or freeze them with "
            "requires_grad_(False)."
            if much
            else None,
        )
    ]
