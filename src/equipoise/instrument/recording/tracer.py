"""Trace one real pass of a model into a graph of PyTorch's elementary operations.

Operations are recorded below autograd, where modules, functions, control flow and hand-written
formulas all have become the same few hundred operations. The places of their outputs in the graph
of derivatives are kept, so that one backward pass measures the gradient at every one of them.

A tensor that is overwritten is two values: the graph has a copy of the first. Where memory was
written through another view, the tensor is recorded as new when it is read next.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import GradientEdge, get_gradient_edge
from torch.utils._python_dispatch import TorchDispatchMode

from equipoise.instrument import modules, trees
from equipoise.instrument.batches import rows, samples
from equipoise.instrument.checkpoints import differentiable_checkpoints
from equipoise.instrument.forward import entries_of, recording_gradients
from equipoise.instrument.kept_batches import apart
from equipoise.instrument.recording.circular_padding import CircularPadding
from equipoise.instrument.recording.graph import Given, Graph, Made, Node, without_values
from equipoise.instrument.recording.opaque import around_opaque_calls
from equipoise.instrument.recording.unrolled import UnrolledLSTM
from equipoise.instrument.snapshot import untouched
from equipoise.instrument.types import LossFunction
from equipoise.numerics import vectors

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
    named = (
        *(Given("parameter", name, p) for name, p in model.named_parameters()),
        *(Given("buffer", name, b) for name, b in model.named_buffers()),
    )
    tracer = _Tracer({id(given.value): given for given in named})
    running = modules.running(model)
    opaque = around_opaque_calls(model, tracer.around)
    loss_fn, given = apart(loss_fn, batch)  # copies of it are no operations of the model
    with untouched(model), recording_gradients():
        modules.unfreeze(model)
        outside = differentiable_checkpoints()
        with outside, running as tracer.running, opaque, CircularPadding(), UnrolledLSTM(), tracer:
            loss = loss_fn(model, given)
        weights = tracer.differentiate(loss, model)
    result = tracer.source(loss)
    made = result if isinstance(result, Made) else None
    return Graph(
        tuple(tracer.nodes), float(loss.detach()), weights, samples(batch), made, rows=rows(batch)
    )


def operations_of(
    function: Callable[..., Tensor],
    inputs: Sequence[tuple[Made | Given, Tensor]],
    *,
    first: int,
    module: str,
) -> tuple[tuple[Node, ...], Made | Given]:
    """What a function of tensors would have added to a graph, without values.

    Args:
        function: Takes one tensor for each input.
        inputs: Where each comes from, and a tensor of its shape.
        first: Number of the first operation.
        module: Name of the module that the operations count to.

    Returns:
        The operations, whose outputs and gradients are on the meta device, and the result.

    Examples:
        >>> x = Made(0, 0), torch.ones(3, 2)
        >>> nodes, result = operations_of(nn.functional.softsign, [x], first=1, module="")
        >>> [node.name for node in nodes], result
        (['abs', 'add', 'div'], Made(node=3, index=0))
    """
    # On the meta device, some functions would load PyTorch's compiler, which takes seconds.
    tensors = [torch.zeros(tensor.shape, dtype=tensor.dtype) for _, tensor in inputs]
    sources = {id(t): source for t, (source, _) in zip(tensors, inputs, strict=True)}
    tracer = _Tracer(sources, first)
    with recording_gradients(), tracer:
        result = function(*tensors)
    nodes = []
    for node in tracer.nodes:
        outputs = tuple(map(without_values, node.outputs))
        nodes.append(replace(node, module=module, outputs=outputs, gradients=outputs))
    return tuple(nodes), tracer.source(result)


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
    def __init__(self, sources: Mapping[int, Made | Given], first: int = 0) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.nodes: list[Node] = []
        self.running: list[tuple[nn.Module, str]] = []
        self._first = first
        self._sources = dict(sources)
        self._is_inside_opaque = False
        self._records: dict[int, _Record] = {}
        self._sharing: dict[int, list[_Record]] = defaultdict(list)
        self._writes: dict[int, list[Made]] = defaultdict(list)
        self._edges: dict[Made, GradientEdge] = {}
        self._unsettled: list[_Record] = []

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Of the base class: its answer would load PyTorch's compiler, which takes seconds."""
        return False

    def __torch_dispatch__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        if self._is_inside_opaque:
            return func(*args, **kwargs)
        definition = _definition(func)
        if definition is not None:
            with self:
                return definition(*args, **kwargs)
        schema = func._schema.arguments
        named = {**dict(zip((a.name for a in schema), args, strict=False)), **kwargs}
        written = _tensors([named.get(a.name) for a in schema if a.is_write])
        # Where a result is written is no input.
        inputs = {name: kwargs[name] for name in kwargs if not _is_out(schema, name)}
        return self._recorded(func, (args, inputs), lambda: func(*args, **kwargs), written)

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

        def run() -> Any:
            self._is_inside_opaque = True
            try:
                return forward(*args, **kwargs)
            finally:
                self._is_inside_opaque = False

        return self._recorded(kind, (args, kwargs), run, called=module)

    def _recorded(
        self,
        operator: Any,
        inputs: tuple[Any, Any],
        run: Callable[[], Any],
        written: Sequence[Tensor] = (),
        called: nn.Module | None = None,
    ) -> Any:
        """Run an operation, and record it."""
        self._settle()
        read = [self._read(tensor) for tensor in _tensors(inputs)]
        arguments, keywords = trees.replaced(
            Tensor, lambda tensor: self._records[id(tensor)].source, inputs
        )
        for tensor in written:
            self._keep(tensor)
        result = run()
        outputs = _tensors(result) or written
        if outputs:
            node = self._append(operator, arguments, keywords, outputs)
            node.called = called
            for record in read:
                if isinstance(record.source, Given):
                    record.users.append(node)
            for tensor in written:
                index = next((i for i, output in enumerate(outputs) if output is tensor), 0)
                self._writes[_memory(tensor)].append(Made(node.number, index))
        return result

    def _append(
        self,
        operator: Any,
        arguments: tuple[Any, ...],
        keywords: dict[str, Any],
        outputs: Sequence[Tensor],
        *,
        in_part: bool = False,
    ) -> Node:
        number = self._first + len(self.nodes)
        module = self.running[-1][1] if self.running else ""
        node = Node(number, operator, arguments, keywords, tuple(outputs), module)
        node.in_part, node.records_gradients = in_part, torch.is_grad_enabled()
        self.nodes.append(node)
        for index, output in enumerate(outputs):
            self._register(output, Made(number, index))
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
            if isinstance(record.source, Made) and tensor.grad_fn is not None:
                self._edges[record.source] = get_gradient_edge(tensor)
        self._unsettled.clear()

    def source(self, tensor: Tensor) -> Made | Given:
        """Where a tensor comes from."""
        record = self._records.get(id(tensor))
        if record is not None:
            return record.source
        return self._sources.get(id(tensor), Given("data", "", tensor))

    def _read(self, tensor: Tensor) -> _Record:
        """What is known of an input; recorded anew if its memory was written meanwhile."""
        record = self._records.get(id(tensor))
        if record is None:
            record = self._register(tensor, self.source(tensor))
            self._settle()
            return record
        if record.version == _version(tensor):
            return record
        node = self._node(record.source)
        if record.is_copied:
            value = record.source.value if isinstance(record.source, Given) else None
            if node is not None and isinstance(record.source, Made):
                value = node.outputs[record.source.index]
            if value is not None and torch.equal(value, tensor):
                record.version = _version(tensor)  # another part of the memory was written
                return record
        since = -1 if node is None else node.number
        writes = [made for made in self._writes[_memory(tensor)] if made.node > since]
        copy = torch.ops.aten.copy_.default
        anew = self._append(copy, (record.source, *writes), {}, (tensor,), in_part=True)
        last = self._node(writes[-1]) if writes else None
        anew.module = anew.module if last is None else last.module
        self._settle()
        return self._records[id(tensor)]

    def _node(self, source: Made | Given) -> Node | None:
        """The operation that a value comes from; None if it was not recorded here."""
        if isinstance(source, Given) or source.node < self._first:
            return None
        return self.nodes[source.node - self._first]

    def _keep(self, tensor: Tensor) -> None:
        """Copy all values whose memory is about to be written."""
        for record in self._sharing.pop(_memory(tensor), ()):
            copy, source = record.tensor.detach().clone(), record.source
            copy.requires_grad_(record.tensor.requires_grad)  # which detectors ask for
            record.is_copied = True
            if isinstance(source, Given):
                record.source = Given(source.kind, source.name, copy)
                for user in record.users:
                    user.take(source, record.source)
                continue
            node = self._node(source)
            if node is not None:
                outputs = list(node.outputs)
                outputs[source.index] = copy
                node.outputs = tuple(outputs)

    def differentiate(self, loss: Tensor, model: nn.Module) -> dict[str, float]:
        """Measure the derivatives of the loss by all outputs, and the size of those by weights."""
        self._settle()
        for given in self._sources.values():
            if isinstance(given, Given) and _memory(given.value) in self._writes:
                self._keep(given.value)  # its own value is restored
        for node in self.nodes:
            node.gradients = (None,) * len(node.outputs)
            node.edges = tuple(self._edge(node, index) for index in range(len(node.outputs)))
            if not isinstance(node.operator, type):
                node.function = next(filter(None, map(_function, node.outputs)), "")
            # Functions and operators with a backward pass of their own switch autograd off.
            node.records_gradients |= any(edge is not None for edge in node.edges)
        places = [
            (node, index, edge)
            for node in self.nodes
            for index, edge in enumerate(node.edges)
            if edge is not None
        ]
        if not (loss.requires_grad and places):
            return {}
        weights = {name: p for name, p in model.named_parameters() if p.requires_grad}
        wanted: list[Any] = [*(edge for _, _, edge in places), *weights.values()]
        found = torch.autograd.grad(loss, wanted, allow_unused=True)
        for (node, index, _), gradient in zip(places, found[: len(places)], strict=True):
            gradients = list(node.gradients)
            gradients[index] = gradient
            node.gradients = tuple(gradients)
        of_weights = zip(weights, found[len(places) :], strict=True)
        return {
            name: _mean_square(gradient) for name, gradient in of_weights if gradient is not None
        }

    def _edge(self, node: Node, index: int) -> GradientEdge | None:
        """Where an output stands in the graph of derivatives, before it was overwritten."""
        output = node.outputs[index]
        if not (output.is_floating_point() or output.is_complex()):
            return None
        found = self._edges.get(Made(node.number, index))
        # Outputs of functions with a derivative of their own get it when the function ends.
        if found is None and output.grad_fn is not None:
            found = get_gradient_edge(output)
        return found


def _tensors(values: Any) -> list[Tensor]:
    return [leaf for leaf in trees.leaves(values) if isinstance(leaf, Tensor)]


def _mean_square(gradient: Tensor) -> float:
    values = entries_of(gradient)
    return vectors.length([values]) ** 2 / gradient.numel() if values.numel() else 0.0


def _is_out(schema: Sequence[Any], name: str) -> bool:
    return any(argument.name == name and argument.is_out for argument in schema)


def _memory(tensor: Tensor) -> int:
    """The memory that views of one tensor share."""
    if tensor.layout is not torch.strided:
        return id(tensor)
    return int(tensor.untyped_storage()._cdata)


def _version(tensor: Tensor) -> int:
    return 0 if tensor.is_inference() else tensor._version


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
