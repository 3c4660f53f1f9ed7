"""Where a pass first gives numbers that are not finite."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from equipoise.instrument.recording.graph import Given, Graph, Made, Node
from equipoise.instrument.recording.tracer import trace
from equipoise.instrument.types import LossFunction

# They divide by the number of targets that count.
_LIKELIHOODS = ("nll_loss_forward", "nll_loss2d_forward")
# They give nan of negative numbers.
_OF_POSITIVE = ("log", "log2", "log10", "sqrt", "rsqrt")
_SOFTMAX = ("_softmax", "_log_softmax")
_PRODUCTS = ("addmm", "mm", "bmm", "baddbmm", "convolution")
_HANDING_ON = ("view", "_unsafe_view", "reshape", "permute", "transpose", "squeeze", "unsqueeze",
               "select", "slice", "split", "split_with_sizes", "unbind", "clone", "alias",
               "_to_copy")  # fmt: skip
# Added to keep away from zero.
_SMALL = 0.01


def origin(graph: Graph) -> str:
    """Where the loss of a pass becomes nan or infinite, in a clause; empty if it is finite.

    Looked for is back from the loss, along operations that give such numbers: those that others
    make use of on purpose, as masks of attention, are behind finite ones.
    """
    first = _first(graph)
    if first is None:
        return ""
    if first.name in _LIKELIHOODS:
        return "no target counts, as where all are the index that is ignored"
    value = "nan" if _has(first.outputs, torch.isnan) else "infinite numbers"
    where = f" in {first.module!r}" if first.module else ""
    return f"{value} first in {first.name}{where}"


def _first(graph: Graph) -> Node | None:
    if graph.result is None or math.isfinite(graph.loss):
        return None
    return _source(graph.nodes, graph.nodes[graph.result.node])


def _remedy(graph: Graph) -> str:
    """What to do about targets that are ignored, or a layer's raw output where a log is taken."""
    first = _first(graph)
    if first is not None and first.name in _LIKELIHOODS:
        return "Look at ignore_index, and at how targets are made."
    if first is not None and first.name == "xlogy":
        return (
            "Targets of kl_div are negative, so that they have no logarithm: it takes "
            "log-probabilities of the model first, and probabilities second; for logarithms of "
            "both give log_target=True."
        )
    if first is not None and first.name in _SOFTMAX and _has(first.outputs, torch.isnan):
        return (
            "All that it compares is masked with -inf somewhere: leave one position at least, and "
            "take the softmax over the axis of the keys."
        )
    if first is None or first.name not in _OF_POSITIVE or not _has(first.outputs, torch.isnan):
        return ""
    layer = _layer_before(first, graph.nodes)
    if layer is None:
        return ""
    where = f" in {layer.module!r}" if layer.module else ""
    return (
        f"It is given negative outputs of a layer{where}: take softplus or exp of them first, or "
        "let the layer give the logarithm."
    )


def _layer_before(node: Node, nodes: Sequence[Node]) -> Node | None:
    """The product with weights whose outputs come to an operation as they are."""
    while node.inputs and isinstance(source := node.inputs[0], Made):
        node = nodes[source.node]
        if node.name in _PRODUCTS:
            return node
        is_small = node.name == "add" and len(node.inputs) == 1 and abs(node.arguments[1]) < _SMALL
        if node.name not in _HANDING_ON and not is_small:
            return None
    return None


def _source(nodes: Sequence[Node], last: Node) -> Node:
    """The first operation that gives such numbers of finite ones, on a way of them to another."""
    seen, left, sources = {last.number}, [last], []
    while left:
        node = left.pop()
        behind = [
            nodes[one.node] for one in node.inputs if isinstance(one, Made) and _is_bad(one, nodes)
        ]
        if not behind:
            sources.append(node)
        left += [one for one in behind if one.number not in seen]
        seen |= {one.number for one in behind}
    first = min(sources, key=lambda node: node.number)
    if not _is_infinite_on_purpose(first):
        return first
    made_nan = [nodes[number] for number in seen if _makes_nan(nodes[number], nodes)]
    return min(made_nan, key=lambda node: node.number, default=first)


def _is_infinite_on_purpose(node: Node) -> bool:
    """Whether it is given what is infinite, as a mask of attention."""
    given = [value.value if isinstance(value, Given) else value for value in node.arguments]
    return any(
        (isinstance(value, float) and math.isinf(value))
        or (isinstance(value, Tensor) and _has((value,), torch.isinf))
        for value in given
    ) and not _has(node.outputs, torch.isnan)


def _makes_nan(node: Node, nodes: Sequence[Node]) -> bool:
    before = [nodes[one.node].outputs[one.index] for one in node.inputs if isinstance(one, Made)]
    return _has(node.outputs, torch.isnan) and not _has(before, torch.isnan)


def _is_bad(source: Made, nodes: Sequence[Node]) -> bool:
    """Whether an input has such numbers; memory that nothing was written to has any."""
    node = nodes[source.node]
    output = node.outputs[source.index]
    return not node.name.startswith(("empty", "new_empty")) and _has((output,), _is_not_finite)


def origin_in_words(
    model: nn.Module, batch: Any, loss_fn: LossFunction, otherwise: str = ""
) -> str:
    """The same of a model on a batch, behind a colon, and what to do about it.

    Args:
        model: The model.
        batch: The batch.
        loss_fn: Gives a loss that is not finite.
        otherwise: What to do where the cause is not known.
    """
    try:
        graph = trace(model, batch, loss_fn)
        found, remedy = origin(graph), _remedy(graph)
    except Exception:  # what the user is told is that the loss is not finite
        found, remedy = "", ""
    return f"{f': {found}' if found else ''}. {remedy or otherwise}".rstrip()


def _is_not_finite(tensor: Tensor) -> Tensor:
    return ~torch.isfinite(tensor)


def _has(tensors: Iterable[Tensor], what: Callable[[Tensor], Tensor]) -> bool:
    return any(bool(what(x).any()) for x in tensors if x.is_floating_point() and x.numel())
