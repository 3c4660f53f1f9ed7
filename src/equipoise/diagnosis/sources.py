"""Where the numbers of a traced pass come from."""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from typing import TypeGuard

import torch
from torch import Tensor

from equipoise.diagnosis.trainability.entrance import leading_to
from equipoise.instrument.recording.graph import Given, Graph, Made, Node
from equipoise.theory.propagation.call import OF_SHAPES

# Operations of layers with weights, and of attention.
PRODUCTS = ("addmm", "mm", "bmm", "baddbmm", "convolution")
# Operations that only arrange their input anew.
ARRANGING = {
    "view",
    "_unsafe_view",
    "reshape",
    "permute",
    "transpose",
    "t",
    "squeeze",
    "unsqueeze",
}
ARRANGING |= {"flatten", "clone", "_to_copy", "alias", "detach", "contiguous", "slice", "select"}
# Operations that take rows of a table by their numbers.
LOOKING_UP = ("embedding", "index", "index_select")
# Operations that draw random numbers.
DRAWN = ("randn", "rand", "normal", "uniform", "randint", "randn_like", "rand_like")
# Operations that an RMS norm, PyTorch's or a model's own, is made of.
SIZES = {"rsqrt", "sqrt", "linalg_vector_norm", "norm"}
# Operations that pick one number of each row, that of its class.
LIKELIHOODS = ("nll_loss_forward", "nll_loss2d_forward")
CTC = ("_ctc_loss", "_cudnn_ctc_loss")
# Operations that compare two tensors number by number.
DIFFERENCES = ("sub", "mse_loss", "smooth_l1_loss", "huber_loss")
# Operations under which a sum of errors is no more than the difference of two sums.
_LINEAR = {*ARRANGING, "neg", "mean", "sum", "add", "sub", "rsub", "expand", "where", "cat"}
_LINEAR |= {"mul", "div", "index", "gather", "masked_fill", "masked_select", "stack"}
# Pointwise operations that leave data as they are, up to scale and shift.
_STRAIGHT = {*ARRANGING, "add", "sub", "rsub", "mul", "div", "neg", "where", "masked_fill"}


def following(starts: Iterable[int], nodes: Iterable[Node]) -> Iterator[Node]:
    """The other operations that take what some have made, or what was made of that, in order."""
    reached = set(starts)
    for node in nodes:
        if node.number not in reached and takes_from(node, reached):
            reached.add(node.number)
            yield node


def takes_from(node: Node, numbers: Container[int]) -> bool:
    """Whether an operation takes what one of others has made."""
    return any(isinstance(one, Made) and one.node in numbers for one in node.inputs)


def either_way(node: Node) -> Sequence[tuple[Made | Given, Made | Given]]:
    """The first two inputs in both orders, to tell which is which; none if it has fewer."""
    if len(node.inputs) < 2:
        return ()
    first, second = node.inputs[:2]
    return (first, second), (second, first)


def is_error(node: Node, nodes: Mapping[int, Node]) -> bool:
    """Whether a loss takes the size of a difference, of its own or by what follows.

    Where sums and averages alone follow, nothing draws the one to the other, as of the entropy of
    targets in a KL divergence; an exponential makes a ratio of it, as of two probabilities.
    """
    if node.name not in DIFFERENCES or not node.outputs[0].requires_grad:
        return False
    if node.name != "sub":
        return True
    reached = {node.number}
    for user in nodes.values():
        made = [isinstance(one, Made) and one.node in reached for one in user.inputs]
        if not any(made):
            continue
        is_product = user.name == "mul" and all(made) and len(made) > 1
        is_divisor = user.name == "div" and made[-1] and len(made) > 1
        if is_product or is_divisor or user.name not in {*_LINEAR, "exp"}:
            return True
        if user.name != "exp":
            reached.add(user.number)
    return False


def axis_of(softmax: Node) -> int:
    """The axis of a softmax, from the front."""
    given = softmax.arguments
    axis = given[1] if len(given) > 1 else softmax.keywords.get("dim", 1)
    return int(axis) % max(1, softmax.outputs[0].ndim)


def tensor(source: Made | Given, nodes: Mapping[int, Node]) -> Tensor:
    """The tensor that an operation was given."""
    return source.value if isinstance(source, Given) else nodes[source.node].outputs[source.index]


def is_trained(source: Made | Given) -> TypeGuard[Given]:
    """Whether it is a parameter of the model that is trained."""
    return isinstance(source, Given) and source.kind == "parameter" and source.value.requires_grad


def kinds_behind(nodes: Mapping[int, Node]) -> dict[int, frozenset[str]]:
    """Kinds of the tensors that each operation's numbers were made of, in one walk."""
    found: dict[int, frozenset[str]] = {}
    for node in nodes.values():
        inputs = () if node.name in OF_SHAPES else node.inputs
        found[node.number] = frozenset[str]().union(*(kinds_of(one, found) for one in inputs))
    return found


def kinds_of(source: Made | Given, behind: Mapping[int, frozenset[str]]) -> frozenset[str]:
    """Kinds of the tensors that an operand's numbers were made of."""
    if isinstance(source, Given):
        return frozenset({source.kind})
    return behind.get(source.node, frozenset())


def behind_weights(nodes: Mapping[int, Node]) -> frozenset[str]:
    """Modules whose matrix products take what other weights have made of the data.

    So they do what functions have made of them, such as radial basis functions or the sine.
    """
    behind = kinds_behind(nodes)
    bent = set[int]()  # what is no longer linear in the data
    for node in nodes.values():
        of_data = [one for one in node.inputs if "data" in kinds_of(one, behind)]
        is_bending = node.is_pointwise and node.name not in _STRAIGHT and bool(of_data)
        if is_bending or any(isinstance(one, Made) and one.node in bent for one in of_data):
            bent.add(node.number)
    return frozenset(
        node.module
        for node in nodes.values()
        if node.name in PRODUCTS
        for source in node.inputs
        if (origin := origin_of(source, nodes)) is not None
        and ({"parameter", "data"} <= behind[origin.number] or origin.number in bent)
    )


def is_same(one: Tensor, other: Tensor) -> bool:
    """Whether two tensors, which may be sparse, have equal numbers at equal places."""
    if one is other or one.shape != other.shape:
        return one is other
    return torch.equal(*(x if x.layout is torch.strided else x.to_dense() for x in (one, other)))


def weights_behind(start: int, graph: Graph, closed: Container[int] = ()) -> frozenset[str]:
    """Trained parameters behind an operation, without what is behind closed ones."""
    behind = (graph.nodes[number] for number in leading_to(graph, start, closed))
    return frozenset(one.name for node in behind for one in node.inputs if is_trained(one))


def origin_of(source: Made | Given, nodes: Mapping[int, Node]) -> Node | None:
    """The operation that made the numbers of an operand."""
    if isinstance(source, Given):
        return None
    node = nodes[source.node]
    return origin_of_input(node, nodes) if node.name in ARRANGING else node


def origin_of_input(node: Node, nodes: Mapping[int, Node]) -> Node | None:
    """The operation that made the numbers of a node's first input."""
    while node.inputs and isinstance(source := node.inputs[0], Made):
        made = nodes[source.node]
        if made.name not in ARRANGING:
            return made
        node = made
    return None
