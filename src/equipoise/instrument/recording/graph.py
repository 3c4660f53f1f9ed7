"""Trace one real pass of a model into a graph of PyTorch's elementary operations.

Operations are recorded below autograd, where modules, functions, control flow and hand-written
formulas all have become the same few hundred operations. Their outputs keep their place in the
graph of derivatives, so that one backward pass measures the gradient at every one of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.autograd.graph import GradientEdge, get_gradient_edge
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
        widening: How many times as many features its outputs are taken to have as their tensors.
        edges: Where the outputs stand in the graph of derivatives; None where they do not.
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
    widening: Fraction = Fraction(1)
    edges: tuple[GradientEdge | None, ...] = ()
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

    Of a graph that was edited after the pass, outputs and gradients that are no longer known are
    tensors on PyTorch's meta device, which have a shape and no values.

    Args:
        nodes: The operations.
        loss: The loss; NaN if it is no longer known.
        weights: Mean squares of the derivatives of the loss by the parameters, by name.
        result: What the loss was made by; None if by no operation.
        samples: How many times as many samples the batch is taken to have as its tensors.
        edited: Whether anything was changed after the pass.
    """

    nodes: tuple[Node, ...]
    loss: float
    weights: dict[str, float] = field(default_factory=dict)
    result: Made | None = None
    samples: Fraction = Fraction(1)
    edited: bool = False

    def at(self, edges: Iterable[GradientEdge]) -> list[Made | None]:
        """Which outputs stand at these places in the graph of derivatives; of equals the first."""
        found: dict[tuple[Any, int], Made] = {}
        for node in self.nodes:
            for index, edge in enumerate(node.edges):
                if edge is not None:
                    place = edge.node, edge.output_nr
                    found.setdefault(place, Made(node.number, index))
        return [found.get((edge.node, edge.output_nr)) for edge in edges]

    def with_parameters(self, values: Mapping[str, Tensor]) -> Graph:
        """The same operations with other values of some parameters, by name; nothing is run."""

        def other(given: Given) -> Given:
            return replace(given, value=values.get(given.name, given.value))

        nodes = []
        for node in self.nodes:
            inside = node.arguments, node.keywords
            arguments, keywords = pytree.tree_map_only(Given, other, inside)
            nodes.append(replace(node, arguments=arguments, keywords=keywords))
        return replace(self, nodes=tuple(nodes))


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
    tracer = _Tracer(
        {
            **{id(p): Given("parameter", name, p) for name, p in model.named_parameters()},
            **{id(b): Given("buffer", name, b) for name, b in model.named_buffers()},
        }
    )
    running = modules.running(model)
    opaque = around_opaque_calls(model, tracer.around)
    with untouched(model), torch.inference_mode(False), torch.enable_grad():
        modules.unfreeze(model)
        with running as tracer.running, opaque, tracer:
            loss = loss_fn(model, batch)
        weights = tracer.differentiate(loss, model)
    result = tracer.source(loss)
    made = result if isinstance(result, Made) else None
    return Graph(tuple(tracer.nodes), float(loss.detach()), weights, made)


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
    with torch.inference_mode(False), torch.enable_grad(), tracer:
        result = function(*tensors)
    nodes = []
    for node in tracer.nodes:
        outputs = tuple(map(without_values, node.outputs))
        nodes.append(replace(node, module=module, outputs=outputs, gradients=outputs))
    return tuple(nodes), tracer.source(result)


def without_values(tensor: Tensor) -> Tensor:
    """A tensor of the same shape and type on the meta device."""
    return torch.empty_like(tensor, device="meta", requires_grad=False)


def evaluated(
    operator: torch._ops.OpOverload | type, arguments: tuple[Any, ...], keywords: dict[str, Any]
) -> tuple[Tensor, ...]:
    """What an operator gives, without changing the tensors that it is given.

    Raises:
        TypeError: If it is an opaque call, which only the model can make.
    """
    if isinstance(operator, type):
        raise TypeError(f"an opaque call of {operator.__name__} cannot be repeated")
    if operator._schema.is_mutable:
        arguments, keywords = pytree.tree_map_only(Tensor, torch.clone, (arguments, keywords))
    outputs = pytree.tree_leaves(operator(*arguments, **keywords))
    return tuple(output for output in outputs if isinstance(output, Tensor))


# PyTorch does not annotate what the class and its construction call.
class _Tracer(TorchDispatchMode):  # type: ignore[no-untyped-call]
    def __init__(self, sources: Mapping[int, Made | Given], first: int = 0) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.nodes: list[Node] = []
        self.running: list[tuple[nn.Module, str]] = []
        self._first = first
        self._sources = dict(sources)
        self._is_inside_opaque = False
        self._overwritten: dict[Made, GradientEdge] = {}

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
        definition = _definition(func)
        if definition is not None and not self._is_inside_opaque:
            with self:
                return definition(*args, **(kwargs or {}))
        arguments, keywords = pytree.tree_map_only(Tensor, self.source, (args, kwargs or {}))
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
        arguments, keywords = pytree.tree_map_only(Tensor, self.source, (args, kwargs))
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
        number = self._first + len(self.nodes)
        name = self.running[-1][1] if self.running else ""
        node = Node(number, operator, arguments, keywords, outputs, name, called=called)
        node.records_gradients = torch.is_grad_enabled()
        self.nodes.append(node)
        for index, output in enumerate(outputs):
            self._sources[id(output)] = Made(number, index)

    def source(self, tensor: Tensor) -> Made | Given:
        """Where a tensor comes from."""
        return self._sources.get(id(tensor), Given("data", "", tensor))

    def _keep(self, tensor: Tensor) -> None:
        """Copy what is about to be overwritten."""
        made = self._sources.get(id(tensor))
        if isinstance(made, Made) and made.node >= self._first:
            node = self.nodes[made.node - self._first]
            if tensor.requires_grad:
                self._overwritten[made] = get_gradient_edge(tensor)
            copies = list(node.outputs)
            copies[made.index] = tensor.detach().clone()
            node.outputs = tuple(copies)

    def differentiate(self, loss: Tensor, model: nn.Module) -> dict[str, float]:
        """Measure the derivatives of the loss by all outputs, and the size of those by weights."""
        for node in self.nodes:
            node.gradients = (None,) * len(node.outputs)
            node.edges = tuple(self._edge(node, index) for index in range(len(node.outputs)))
            if not isinstance(node.operator, type):
                node.function = next(filter(None, map(_function, node.outputs)), "")
            # Functions and operators with a backward pass of their own switch autograd off.
            node.records_gradients |= any(output.requires_grad for output in node.outputs)
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
        return {name: float(g.double().square().mean()) for name, g in of_weights if g is not None}

    def _edge(self, node: Node, index: int) -> GradientEdge | None:
        """Where an output stands in the graph of derivatives, before it was overwritten."""
        output = node.outputs[index]
        if output.requires_grad and output.is_floating_point():
            return get_gradient_edge(output)
        return self._overwritten.get(Made(node.number, index))


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
