"""Trace one real pass of a model into a graph of PyTorch's elementary operations.

Operations are recorded below autograd, where modules, functions, control flow and hand-written
formulas all have become the same few hundred operations. The places of their outputs in the graph
of derivatives are kept, so that one backward pass measures the gradient at every one of them.

A tensor that is overwritten is two values: the graph has a copy of the first. Where memory was
written through another view, the tensor is recorded as new when it is read next.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, cast

import torch
from torch import Tensor, nn
from torch.autograd.graph import GradientEdge, get_gradient_edge
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from equipoise.instrument import modules
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


@dataclass(slots=True, eq=False)
class Node:
    """One operation.

    Args:
        number: Its index in the graph.
        operator: Such as ``aten.convolution.default``.
        arguments: Positional arguments; tensors are replaced by :class:`Made` or :class:`Given`.
        keywords: Keyword arguments, likewise.
        outputs: Its tensors, in order.
        gradients: Measured derivatives of the loss by the outputs; None where there are none.
        module: Name of the innermost module that was running.
        in_part: Whether it stands for writes to parts of its first argument, or to the memory that
            it is a view of; the other arguments are what was written.
    """

    number: int
    operator: torch._ops.OpOverload
    arguments: tuple[Any, ...]
    keywords: dict[str, Any]
    outputs: tuple[Tensor, ...]
    module: str
    gradients: tuple[Tensor | None, ...] = ()
    in_part: bool = False

    @property
    def name(self) -> str:
        """The operator without namespace, overload and trailing underscore."""
        return str(self.operator.overloadpacket.__name__).rstrip("_")

    def replace(self, old: Given, new: Given) -> None:
        """Take another tensor for an input."""
        self.arguments, self.keywords = pytree.tree_map_only(
            Given,
            lambda given: new if given is old else given,
            (self.arguments, self.keywords),
        )

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


def trace(model: nn.Module, batch: Any, loss_fn: LossFunction) -> Graph:
    """Run model and loss once, forward and backward; the model is left untouched.

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
    with untouched(model), torch.inference_mode(False), torch.enable_grad():
        with running as tracer.running, tracer:
            loss = loss_fn(model, batch)
        tracer.differentiate(loss)
    return Graph(tuple(tracer.nodes), float(loss.detach()))


@dataclass(slots=True, eq=False)
class _Record:
    """What is known of a live tensor.

    Args:
        tensor: Held, so that no other gets its id.
        source: Where its value comes from.
        version: PyTorch's count of writes to its memory, when the value was recorded.
        users: Nodes that read it, if no operation made it.
        is_copied: Whether the graph has a copy of the value, as memory was written since.
    """

    tensor: Tensor
    source: Made | Given
    version: int = 0
    users: list[Node] = field(default_factory=list)
    is_copied: bool = False


# PyTorch does not annotate what the class and its construction call.
class _Tracer(TorchDispatchMode):  # type: ignore[no-untyped-call]
    def __init__(self, model: nn.Module) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.nodes: list[Node] = []
        self.running: list[tuple[nn.Module, str]] = []
        self._records: dict[int, _Record] = {}
        self._named: list[Tensor] = []
        self._names: dict[int, tuple[Kind, str]] = {}
        self._sharing: dict[int, list[_Record]] = defaultdict(list)
        self._writes: dict[int, list[Made]] = defaultdict(list)
        self._edges: dict[Made, GradientEdge] = {}
        self._unsettled: list[_Record] = []
        for kind, named in (
            ("parameter", model.named_parameters()),
            ("buffer", model.named_buffers()),
        ):
            for name, tensor in named:
                self._names[id(tensor)] = cast("Kind", kind), name
                self._named.append(tensor)

    def __torch_dispatch__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        self._settle()
        kwargs = kwargs or {}
        schema = func._schema.arguments
        named = {**dict(zip((a.name for a in schema), args, strict=False)), **kwargs}
        written = _tensors([named.get(a.name) for a in schema if a.is_write])
        # Where a result is written is no input.
        inputs = {name: kwargs[name] for name in kwargs if not _is_out(schema, name)}
        read = [self._read(tensor) for tensor in _tensors((args, inputs))]
        arguments, keywords = pytree.tree_map_only(
            Tensor, lambda tensor: self._records[id(tensor)].source, (args, inputs)
        )
        for tensor in written:
            self._keep(tensor)
        result = func(*args, **kwargs)
        outputs = _tensors(result) or written
        if outputs:
            node = self._append(func, arguments, keywords, outputs)
            for record in read:
                if isinstance(record.source, Given):
                    record.users.append(node)
            for tensor in written:
                index = next((i for i, output in enumerate(outputs) if output is tensor), 0)
                self._writes[_memory(tensor)].append(Made(node.number, index))
        return result

    def _append(
        self,
        operator: torch._ops.OpOverload,
        arguments: tuple[Any, ...],
        keywords: dict[str, Any],
        outputs: Sequence[Tensor],
        *,
        in_part: bool = False,
    ) -> Node:
        """Record an operation."""
        module = self.running[-1][1] if self.running else ""
        node = Node(
            len(self.nodes), operator, arguments, keywords, tuple(outputs), module, in_part=in_part
        )
        self.nodes.append(node)
        for index, output in enumerate(outputs):
            self._register(output, Made(node.number, index))
        return node

    def _register(self, tensor: Tensor, source: Made | Given) -> _Record:
        record = _Record(tensor, source)
        self._records[id(tensor)] = record
        self._sharing[_memory(tensor)].append(record)
        self._unsettled.append(record)
        return record

    def _settle(self) -> None:
        """Look at new tensors once autograd, which acts after an operation, is done with them."""
        for record in self._unsettled:
            tensor = record.tensor
            record.version = _version(tensor)
            if isinstance(record.source, Made) and tensor.requires_grad:
                self._edges[record.source] = get_gradient_edge(tensor)
        self._unsettled.clear()

    def _read(self, tensor: Tensor) -> _Record:
        """What is known of an input; recorded anew if its memory was written meanwhile."""
        record = self._records.get(id(tensor))
        if record is None:
            kind, name = self._names.get(id(tensor), ("data", ""))
            return self._register(tensor, Given(kind, name, tensor))
        if record.version == _version(tensor):
            return record
        if record.is_copied and torch.equal(self._value(record.source), tensor):
            record.version = _version(tensor)  # another part of the memory was written
            return record
        source = record.source
        since = source.node if isinstance(source, Made) else -1
        writes = [made for made in self._writes[_memory(tensor)] if made.node > since]
        copy = torch.ops.aten.copy_.default
        node = self._append(copy, (source, *writes), {}, (tensor,), in_part=True)
        if writes:
            node.module = self.nodes[writes[-1].node].module
        self._settle()
        return self._records[id(tensor)]

    def _value(self, source: Made | Given) -> Tensor:
        if isinstance(source, Given):
            return source.value
        return self.nodes[source.node].outputs[source.index]

    def _keep(self, tensor: Tensor) -> None:
        """Copy all values whose memory is about to be written."""
        for record in self._sharing.pop(_memory(tensor), ()):
            copy, source = record.tensor.detach().clone(), record.source
            record.is_copied = True
            if isinstance(source, Made):
                node = self.nodes[source.node]
                outputs = list(node.outputs)
                outputs[source.index] = copy
                node.outputs = tuple(outputs)
                continue
            record.source = Given(source.kind, source.name, copy)
            for node in record.users:
                node.replace(source, record.source)

    def differentiate(self, loss: Tensor) -> None:
        """Measure the derivatives of the loss by all outputs."""
        self._settle()
        for tensor in self._named:
            if _memory(tensor) in self._writes:
                self._keep(tensor)  # its own value is restored
        places = [
            (node, index)
            for node in self.nodes
            for index, output in enumerate(node.outputs)
            if output.is_floating_point()
            and (output.requires_grad or Made(node.number, index) in self._edges)
        ]
        for node in self.nodes:
            node.gradients = (None,) * len(node.outputs)
        if not (loss.requires_grad and places):
            return
        # Outputs of functions with a derivative of their own get it when the function ends.
        ends: list[Any] = [
            self._edges.get(Made(node.number, index), node.outputs[index])
            for node, index in places
        ]
        found = torch.autograd.grad(loss, ends, allow_unused=True)
        for (node, index), gradient in zip(places, found, strict=True):
            gradients = list(node.gradients)
            gradients[index] = gradient
            node.gradients = tuple(gradients)


def _tensors(values: Any) -> list[Tensor]:
    return [leaf for leaf in pytree.tree_leaves(values) if isinstance(leaf, Tensor)]


def _is_out(schema: Sequence[Any], name: str) -> bool:
    return any(argument.name == name and argument.is_out for argument in schema)


def _memory(tensor: Tensor) -> int:
    """The memory that views of one tensor share."""
    if tensor.layout is not torch.strided:
        return id(tensor)
    return int(tensor.untyped_storage()._cdata)


def _version(tensor: Tensor) -> int:
    return 0 if tensor.is_inference() else tensor._version
