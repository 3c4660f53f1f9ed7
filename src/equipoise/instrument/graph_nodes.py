"""A walk over the graph that autograd recorded for a loss."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor
from torch.autograd.graph import Node


def graph_nodes(loss: Tensor) -> Iterator[Node]:
    """Yield every node once."""
    seen: set[Node] = set()
    waiting = [loss.grad_fn]
    while waiting:
        node = waiting.pop()
        if node is not None and node not in seen:
            seen.add(node)
            yield node
            waiting += [following for following, _ in node.next_functions]


def coarsest_rounding(loss: Tensor) -> float:
    """Relative spacing of the coarsest floating-point type that a loss was computed in.

    Under autocast that is not the parameters' type.

    Examples:
        >>> x = torch.ones(2, requires_grad=True)
        >>> coarsest_rounding(x.bfloat16().sum().float())
        0.0078125
        >>> coarsest_rounding(x.sum()) == torch.finfo(torch.float32).eps
        True
    """
    # The inputs of a backward node have the types of the forward operation's outputs. This
    # attribute is private to PyTorch; without it, only the loss's own type is known.
    outputs = [o for node in graph_nodes(loss) for o in getattr(node, "_input_metadata", ())]
    types = {loss.dtype, *(output.dtype for output in outputs if output is not None)}
    return max(torch.finfo(dtype).eps for dtype in types if dtype.is_floating_point)
