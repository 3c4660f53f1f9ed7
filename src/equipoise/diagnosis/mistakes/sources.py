"""Where the numbers of a traced pass come from."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from equipoise.instrument.batches import tensors
from equipoise.instrument.recording.graph import Given, Graph, Made, Node

# Operations of layers with weights, and of attention.
PRODUCTS = ("addmm", "mm", "bmm", "baddbmm", "convolution")
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


def before_layers(graph: Graph) -> set[int]:
    """Operations whose outputs go into a matrix product or a convolution later on."""
    found: set[int] = set()
    for node in reversed(graph.nodes):
        if node.name in PRODUCTS or node.number in found:
            found |= {one.node for one in node.inputs if isinstance(one, Made)}
    return found


def before_expanding(source: Made | Given, nodes: Mapping[int, Node]) -> Made | Given:
    """What an operand was before it took the other's shape."""
    while isinstance(source, Made):
        made = nodes.get(source.node)
        if made is None or made.name != "expand" or not made.inputs:
            break
        source = made.inputs[0]
    return source


def tensor(source: Made | Given, nodes: Mapping[int, Node]) -> Tensor:
    """The tensor that an operation was given."""
    return source.value if isinstance(source, Given) else nodes[source.node].outputs[source.index]


def shape(source: Made | Given, nodes: Mapping[int, Node]) -> tuple[int, ...]:
    """Of the tensor that an operation was given."""
    return tuple(tensor(source, nodes).shape)


def depends_on_weights(source: Made | Given, nodes: Mapping[int, Node]) -> bool:
    """Whether it has a gradient."""
    return tensor(source, nodes).requires_grad


def is_of(batch: Any, source: Made | Given, nodes: Mapping[int, Node]) -> bool:
    """Whether a tensor was made of the batch's, and not of constants of the model alone."""
    known, waiting, seen = tensors(batch), [source], set[int]()
    while waiting:
        one = waiting.pop()
        if isinstance(one, Given):
            if any(x.shape == one.value.shape and torch.equal(x, one.value) for x in known):
                return True
        elif one.node in nodes and one.node not in seen:
            seen.add(one.node)
            waiting += nodes[one.node].inputs
    return False


def origin_of(source: Made | Given, nodes: Mapping[int, Node]) -> Node | None:
    """The operation that made the numbers of an operand."""
    if isinstance(source, Given) or source.node not in nodes:
        return None
    node = nodes[source.node]
    return origin_of_input(node, nodes) if node.name in _ARRANGING else node


def origin_of_input(node: Node, nodes: Mapping[int, Node]) -> Node | None:
    """The operation that made the numbers of a node's first input."""
    while node.inputs and isinstance(source := node.inputs[0], Made):
        made = nodes.get(source.node)
        if made is None or made.name not in _ARRANGING:
            return made
        node = made
    return None
