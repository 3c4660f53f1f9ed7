"""Trace one real pass of a model into a graph of PyTorch's elementary operations.

Operations are recorded below autograd, where modules, functions, control flow and hand-written
formulas all have become the same few hundred operations. Their outputs keep their place in the
graph of derivatives, so that one backward pass measures the gradient at every one of them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, cast

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from equipoise.instrument import modules
from equipoise.instrument.recording.opaque import around_opaque_calls
from equipoise.instrument.snapshot import untouched
from equipoise.instrument.types import LossFunction

Kind = Literal["parameter", "buffer", "data"]


@dataclass(frozen=True, slots=True)
class Made:
    """A tensor that an operation made.

    Args:
        node: Number of the operation.
        index: Which of its outputs.
    """

    node: int
    index: int


@dataclass(frozen=True, slots=True, eq=False)
class Given:
    """A tensor that no operation made.

    Args:
        kind: Parameter or buffer of the model; anything else is data.
        name: Its name in the model, if it is a parameter or a buffer.
        value: The tensor.
    """

    kind: Kind
    name: str
    value: Tensor


def name_of(operator: torch._ops.OpOverload | torch._ops.OpOverloadPacket) -> str:
    """The operator without overload and trailing underscore.

    Operators that are not PyTorch's own keep their namespace.

    Examples:
        >>> name_of(torch.ops.aten.relu_.default), name_of(torch.ops.prims.sin.default)
        ('relu', 'prims::sin')
    """
    packet = (
        operator if isinstance(operator, torch._ops.OpOverloadPacket) else operator.overloadpacket
    )
    namespace, name = packet._qualified_op_name.split("::")
    return name.rstrip("_") if namespace == "aten" else f"{namespace}::{name}"


@dataclass(slots=True, eq=False)
class Node:
    """One operation.

    Args:
        number: Its index in the graph.
        operator: Such as ``aten.convolution.default``; of an opaque call, the class of the module
            or of the autograd function.
        arguments: Positional arguments; tensors are replaced by :class:`Made` or :class:`Given`.
        keywords: Keyword arguments, likewise.
        outputs: Its tensors, in order.
        module: Name of the innermost module that was running.
        gradients: Measured derivatives of the loss by the outputs; None where there are none.
        called: The module, of an opaque call of one.
        records_gradients: Whether autograd was switched on.
        function: Name of the autograd function whose backward pass the outputs have, if it is not
            the operation's own.
    """

    number: int
    operator: torch._ops.OpOverload | type
    arguments: tuple[Any, ...]
    keywords: dict[str, Any]
    outputs: tuple[Tensor, ...]
    module: str
    gradients: tuple[Tensor | None, ...] = ()
    called: nn.Module | None = None
    records_gradients: bool = True
    function: str = ""

    @property
    def name(self) -> str:
        """Name of the operator, or of the class, of an opaque call."""
        if isinstance(self.operator, type):
            return self.operator.__name__
        return name_of(self.operator)

    @property
    def is_pointwise(self) -> bool:
        """Whether PyTorch lists the operator among those that act on single elements."""
        return not isinstance(self.operator, type) and torch.Tag.pointwise in self.operator.tags

    @property
    def inputs(self) -> tuple[Made | Given, ...]:
        """All tensors among the arguments."""
        leaves = pytree.tree_leaves((self.arguments, self.keywords))
        return tuple(leaf for leaf in leaves if isinstance(leaf, Made | Given))


@dataclass(frozen=True, slots=True)
class Graph:
    """All operations of one pass, in order.

    Args:
        nodes: The operations.
        loss: The loss.
    """

    nodes: tuple[Node, ...]
    loss: float


# Taken apart by PyTorch's own definitions, into operations that move, choose or multiply.
_TAKEN_APART = (
    "glu",
    "pixel_shuffle",
    "pixel_unshuffle",
    "channel_shuffle",
    "std",
    "native_dropout",
    "_fused_rms_norm",
)


def trace(model: nn.Module, batch: Any, loss_fn: LossFunction) -> Graph:
    """Run model and loss once, forward and backward; the model is left untouched.

    Calls of the classes in ``opaque.OPAQUE`` are one operation each; what they do is not recorded.

    Args:
        model: Any module, in the mode that it is in.
        batch: What the user's loader yields.
        loss_fn: ``loss_fn(model, batch)`` returns a scalar.

    Examples:
        >>> graph = trace(nn.Linear(2, 2), torch.ones(3, 2), lambda model, x: model(x).abs().sum())
        >>> [node.name for node in graph.nodes]
        ['t', 'addmm', 'abs', 'sum']
    """
    tracer = _Tracer(model)
    running = modules.running(model)
    opaque = around_opaque_calls(model, tracer.around)
    with untouched(model), torch.inference_mode(False), torch.enable_grad():
        with running as tracer.running, opaque, tracer:
            loss = loss_fn(model, batch)
        tracer.differentiate(loss)
    return Graph(tuple(tracer.nodes), float(loss.detach()))


# PyTorch does not annotate what the class and its construction call.
class _Tracer(TorchDispatchMode):  # type: ignore[no-untyped-call]
    def __init__(self, model: nn.Module) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.nodes: list[Node] = []
        self.running: list[tuple[nn.Module, str]] = []
        self._is_inside_opaque = False
        self._made: dict[int, Made] = {}
        self._given: dict[int, tuple[Kind, str]] = {}
        for kind, named in (
            ("parameter", model.named_parameters()),
            ("buffer", model.named_buffers()),
        ):
            for name, tensor in named:
                self._given[id(tensor)] = cast("Kind", kind), name

    def __torch_dispatch__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        definition = _definition(func)
        if definition is not None and not self._is_inside_opaque:
            with self:
                return definition(*args, **(kwargs or {}))
        arguments, keywords = pytree.tree_map_only(Tensor, self._source, (args, kwargs or {}))
        for argument, given in zip(func._schema.arguments, args, strict=False):
            if argument.is_write and isinstance(given, Tensor):
                self._keep(given)
        result = func(*args, **(kwargs or {}))
        if not self._is_inside_opaque:
            self._record(func, arguments, keywords, result)
        return result

    def around(
        self,
        kind: type,
        module: nn.Module | None,
        forward: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> Any:
        """Run an opaque forward pass, and record it as one operation."""
        if self._is_inside_opaque:
            return forward(*args, **kwargs)
        arguments, keywords = pytree.tree_map_only(Tensor, self._source, (args, kwargs))
        self._is_inside_opaque = True
        try:
            result = forward(*args, **kwargs)
        finally:
            self._is_inside_opaque = False
        self._record(kind, arguments, keywords, result, module)
        return result

    def _record(
        self,
        operator: Any,
        arguments: tuple[Any, ...],
        keywords: dict[str, Any],
        result: Any,
        called: nn.Module | None = None,
    ) -> None:
        outputs = tuple(leaf for leaf in pytree.tree_leaves(result) if isinstance(leaf, Tensor))
        if not outputs:
            return
        number = len(self.nodes)
        name = self.running[-1][1] if self.running else ""
        node = Node(number, operator, arguments, keywords, outputs, name, called=called)
        node.records_gradients = torch.is_grad_enabled()
        self.nodes.append(node)
        for index, output in enumerate(outputs):
            self._made[id(output)] = Made(number, index)

    def _source(self, tensor: Tensor) -> Made | Given:
        made = self._made.get(id(tensor))
        if made is not None:
            return made
        kind, name = self._given.get(id(tensor), ("data", ""))
        return Given(kind, name, tensor)

    def _keep(self, tensor: Tensor) -> None:
        """Copy what is about to be overwritten."""
        made = self._made.get(id(tensor))
        if made is not None:
            node = self.nodes[made.node]
            copies = list(node.outputs)
            copies[made.index] = tensor.detach().clone()
            node.outputs = tuple(copies)

    def differentiate(self, loss: Tensor) -> None:
        """Measure the derivatives of the loss by all outputs."""
        places = [
            (node, index)
            for node in self.nodes
            for index, output in enumerate(node.outputs)
            if output.requires_grad and output.is_floating_point()
        ]
        for node in self.nodes:
            node.gradients = (None,) * len(node.outputs)
            if not isinstance(node.operator, type):
                node.function = next(filter(None, map(_function, node.outputs)), "")
            # Functions and operators with a backward pass of their own switch autograd off.
            node.records_gradients |= any(output.requires_grad for output in node.outputs)
        if not (loss.requires_grad and places):
            return
        tensors = [node.outputs[index] for node, index in places]
        found = torch.autograd.grad(loss, tensors, allow_unused=True)
        for (node, index), gradient in zip(places, found, strict=True):
            gradients = list(node.gradients)
            gradients[index] = gradient
            node.gradients = tuple(gradients)


def _definition(operator: Any) -> Callable[..., Any] | None:
    """How PyTorch defines a composite operator; None for others."""
    if operator.overloadpacket.__name__ not in _TAKEN_APART:
        return None
    from torch._decomp import decomposition_table  # slow to import

    definition: Callable[..., Any] | None = decomposition_table.get(operator)
    return definition


def _function(output: Tensor) -> str:
    """Name of the autograd function that gave a tensor; empty if it is an operator's."""
    found = getattr(output.grad_fn, "_forward_cls", None)
    # Operators of torch.library have generated functions.
    if found is None or found.__module__.startswith("torch._library."):
        return ""
    return str(found.__name__)
