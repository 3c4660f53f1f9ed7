"""Where a pass first gives numbers that are not finite."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from equipoise.instrument.recording.graph import Graph, Made, Node
from equipoise.instrument.recording.tracer import trace
from equipoise.instrument.types import LossFunction

# They divide by the number of targets that count.
_LIKELIHOODS = ("nll_loss_forward", "nll_loss2d_forward")


def origin(graph: Graph) -> str:
    """Where a pass first gives nan or infinite numbers, in a clause; empty if nowhere.

    Infinite numbers alone are no fault: masks of attention are made of them.
    """
    first = _first_with(graph.nodes, torch.isnan) or _first_with(
        graph.nodes, _is_positive_infinity
    )
    if first is None:
        return ""
    if first.name in _LIKELIHOODS:
        return "no target counts, as where all are the index that is ignored"
    value = "nan" if _has(first.outputs, torch.isnan) else "infinite numbers"
    words = f"{value} first in {_place(first)}"
    behind = _ancestors(first, graph.nodes)
    source = _first_with(behind, torch.isinf)
    if source is not None and source is not first:
        words += f", from infinite numbers of {_place(source)}"
    return words


def origin_in_words(model: nn.Module, batch: Any, loss_fn: LossFunction) -> str:
    """The same of a model on a batch, behind a colon; empty if it cannot be traced."""
    try:
        found = origin(trace(model, batch, loss_fn))
    except Exception:  # what the user is told is that the loss is not finite
        return ""
    return f": {found}" if found else ""


def _place(node: Node) -> str:
    return f"{node.name} in {node.module!r}" if node.module else node.name


def _is_positive_infinity(tensor: Tensor) -> Tensor:
    return tensor == math.inf


def _has(tensors: Iterable[Tensor], what: Callable[[Tensor], Tensor]) -> bool:
    return any(bool(what(x).any()) for x in tensors if x.is_floating_point() and x.numel())


def _first_with(nodes: Iterable[Node], what: Callable[[Tensor], Tensor]) -> Node | None:
    """The first of successive operations in whose outputs there is something."""
    return next((node for node in nodes if _has(node.outputs, what)), None)


def _ancestors(last: Node, nodes: Sequence[Node]) -> list[Node]:
    """What an operation depends on, in order, with itself."""
    wanted = {last.number}
    for node in reversed(nodes[: last.number + 1]):
        if node.number in wanted:
            wanted |= {source.node for source in node.inputs if isinstance(source, Made)}
    return [node for node in nodes if node.number in wanted]
