"""A traced pass: PyTorch's elementary operations, what they took and what they gave."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Mapping
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import cache
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.autograd.graph import GradientEdge

from equipoise.instrument import trees

Kind = Literal["parameter", "buffer", "data"]

MOST_POSITIONS = 4096
# They move running statistics, and PyTorch does not declare that they write.
_WRITING = ("native_batch_norm", "cudnn_batch_norm", "miopen_batch_norm")


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


@cache
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
    if operator._schema.is_mutable or name_of(operator) in _WRITING:
        arguments, keywords = trees.replaced(Tensor, torch.clone, (arguments, keywords))
    outputs = trees.leaves(operator(*arguments, **keywords))
    return tuple(output for output in outputs if isinstance(output, Tensor))


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
        in_part: Whether it stands for writes to parts of its first argument, or to the memory that
            it is a view of; the other arguments are what was written.
        alike: Whether weights that made both of its inputs were found to make them alike.
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
    in_part: bool = False
    alike: bool = False
    _inputs: tuple[Made | Given, ...] | None = field(default=None, init=False, repr=False)

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

    def take(self, old: Given, new: Given) -> None:
        """Take another tensor for an input."""
        self.arguments, self.keywords = trees.replaced(
            Given,
            lambda given: new if given is old else given,
            (self.arguments, self.keywords),
        )
        self._inputs = None

    @property
    def inputs(self) -> tuple[Made | Given, ...]:
        """All tensors among the arguments."""
        if self._inputs is None:
            leaves = trees.leaves((self.arguments, self.keywords))
            self._inputs = tuple(leaf for leaf in leaves if isinstance(leaf, Made | Given))
        return self._inputs


@dataclass(frozen=True, slots=True)
class Graph:
    """All operations of one pass, in order.

    Of a graph that was edited after the pass, outputs and gradients that are no longer known are
    tensors on PyTorch's meta device, which have a shape and no values.

    Args:
        nodes: The operations.
        loss: The loss; NaN if it is no longer known.
        weights: Mean squares of the derivatives of the loss by the parameters, by name.
        batch: Samples in the batch: the length of its first tensor that has any axes.
        result: What the loss was made by; None if by no operation.
        samples: How many times as many samples the batch is taken to have as its tensors.
        edited: Whether anything was changed after the pass.
        positions: Positions of the largest maps that theory follows, pair by pair.
        rows: Lengths of the first axes of tensors of data: samples, and what else is joined.
    """

    nodes: tuple[Node, ...]
    loss: float
    weights: dict[str, float] = field(default_factory=dict)
    batch: int = 0
    result: Made | None = None
    samples: Fraction = Fraction(1)
    edited: bool = False
    positions: int = MOST_POSITIONS
    rows: tuple[int, ...] = ()

    @property
    def parameters(self) -> dict[str, Tensor]:
        """The model's parameters that operations take, by name."""
        return {
            source.name: source.value
            for node in self.nodes
            for source in node.inputs
            if isinstance(source, Given) and source.kind == "parameter"
        }

    @property
    def without_gradient(self) -> tuple[str, ...]:
        """Parameters that the loss depends on by its operations, and not by its numbers."""
        return tuple(name for name, square in self.weights.items() if square == 0)

    @property
    def has_functions(self) -> bool:
        """Whether autograd functions have backward passes of their own."""
        return any(node.function for node in self.nodes)

    def at(self, edges: Iterable[GradientEdge]) -> list[Made | None]:
        """Which outputs stand at these places in the graph of derivatives; of equals the first."""
        found: dict[tuple[Any, int], Made] = {}
        for node in self.nodes:
            for index, edge in enumerate(node.edges):
                if edge is not None:
                    place = edge.node, edge.output_nr
                    found.setdefault(place, Made(node.number, index))
        return [found.get((edge.node, edge.output_nr)) for edge in edges]

    def kept(self) -> Graph:
        """The same with tensors of its own, and without the graph of derivatives."""
        copies: dict[int, Given] = {}

        def copied(given: Given) -> Given:
            value = given.value
            if id(value) not in copies:
                copies[id(value)] = replace(given, value=value.detach().clone())
            return copies[id(value)]

        nodes = []
        for node in self.nodes:
            inside = node.arguments, node.keywords
            arguments, keywords = trees.replaced(Given, copied, inside)
            outputs = tuple(output.detach() for output in node.outputs)
            kept = replace(node, arguments=arguments, keywords=keywords, outputs=outputs, edges=())
            nodes.append(kept)
        return replace(self, nodes=tuple(nodes))

    def with_parameters(self, values: Mapping[str, Tensor]) -> Graph:
        """The same operations with other values of some parameters, by name.

        What is computed of parameters alone, such as transposed weights, is computed again;
        nothing else is run.
        """
        new: dict[Made, Tensor] = {}

        def other(given: Given) -> Given:
            return replace(given, value=values.get(given.name, given.value))

        def tensor(source: Made | Given) -> Tensor:
            if isinstance(source, Made):
                return new.get(source, self.nodes[source.node].outputs[source.index])
            return source.value

        fixed = set[int]()  # numbers of operations on parameters and buffers alone
        nodes = []
        for node in self.nodes:
            inside = node.arguments, node.keywords
            arguments, keywords = trees.replaced(Given, other, inside)
            changed = replace(node, arguments=arguments, keywords=keywords)
            if node.inputs and all(_is_fixed(source, fixed) for source in node.inputs):
                fixed.add(node.number)
                if any(_is_other(source, values, new) for source in node.inputs):
                    outputs = _outputs(changed, tensor)
                    new |= {Made(node.number, i): output for i, output in enumerate(outputs)}
                    changed = replace(changed, outputs=outputs)
            nodes.append(changed)
        return replace(self, nodes=tuple(nodes), edited=self.edited or bool(values))


def _is_fixed(source: Made | Given, fixed: Container[int]) -> bool:
    return source.node in fixed if isinstance(source, Made) else source.kind != "data"


def _is_other(source: Made | Given, values: Container[str], new: Container[Made]) -> bool:
    return source in new if isinstance(source, Made) else source.name in values


def _outputs(node: Node, tensor: Callable[[Any], Tensor]) -> tuple[Tensor, ...]:
    """What an operation gives for its inputs now; shapes only, if just the model can repeat it."""
    inputs = trees.replaced((Made, Given), tensor, (node.arguments, node.keywords))
    if isinstance(node.operator, type):
        return tuple(map(without_values, node.outputs))
    with torch.no_grad():
        return evaluated(node.operator, *inputs)
