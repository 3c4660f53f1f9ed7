"""Allow second derivatives where PyTorch has them, and name the operations that have none."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn.attention import SDPBackend, sdpa_kernel

from equipoise.instrument.graph_nodes import graph_nodes

_MISSING = re.compile(r"derivative for '?(?:aten::)?(?P<operation>\w+)'? is not implemented")
_REMEDIES = {
    "once_differentiable": "write its backward with operations that autograd can follow",
    "attention": "run it in loss_fn under torch.nn.attention.sdpa_kernel(SDPBackend.MATH)",
    "cudnn": "run loss_fn under torch.backends.cudnn.flags(enabled=False)",
    "": "replace it, or measure only blocks of parameters that come after it",
}
# Every function that the decorator returns shares this code object.
_ONCE = once_differentiable(lambda ctx: None).__code__


@contextmanager
def twice_differentiable() -> Iterator[None]:
    """Make attention use its formula, since fused kernels have no second derivative.

    Raises:
        ValueError: If PyTorch reports that another operation has none.
    """
    try:
        with sdpa_kernel(SDPBackend.MATH):
            yield
    except RuntimeError as error:
        missing = _MISSING.search(str(error))
        if missing is None:
            raise
        raise ValueError(_refusal(missing["operation"])) from error


def refuse_once_differentiable(loss: Tensor) -> None:
    """Refuse functions whose backward autograd would silently treat as a constant.

    A function marked with ``once_differentiable`` raises only when its own inputs are
    differentiated; derivatives with respect to parameters leave its path out.

    Raises:
        ValueError: If such a function is in the loss's graph.
    """
    for node in graph_nodes(loss):
        function: Any = getattr(node, "_forward_cls", None)  # of functions written in Python
        if function is not None and getattr(function.backward, "__code__", None) is _ONCE:
            raise ValueError(_refusal(f"{function.__name__} (once_differentiable)"))


def _refusal(operation: str) -> str:
    remedy = next(how for what, how in _REMEDIES.items() if what in operation)
    return f"hessian needs second derivatives, and {operation.strip('_')} has none: {remedy}."
