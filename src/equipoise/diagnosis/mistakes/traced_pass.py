"""What a detector of mistakes may look at, and what several of them need of it."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any

from torch import Tensor, nn

from equipoise.diagnosis.sources import (
    LIKELIHOODS,
    LOOKING_UP,
    PRODUCTS,
    either_way,
    is_error,
    is_same,
    is_trained,
    kinds_behind,
    kinds_of,
    origin_of,
    origin_of_input,
    takes_from,
    tensor,
)
from equipoise.instrument import LossFunction
from equipoise.instrument.batches import tensors
from equipoise.instrument.recording.graph import Given, Graph, Made, Node
from equipoise.records.finding import Finding
from equipoise.theory.propagation.call import OF_SHAPES


@dataclass(frozen=True)
class TracedPass:
    """A traced pass, with the model, the loss and the batches that it is one of.

    Args:
        graph: The pass, on the first batch.
        model: Left bit for bit as it is by detectors that run it again.
        loss_fn: Its loss on a batch.
        batch: The first batch.
        more: Gives it and others; called only where one batch does not tell.
        patience: Seconds that one further pass may take.
        loss_is_assumed: Whether the loss is one that the user has not given.
        left_out: Parameters that the user's optimiser does not hold.
        postponed: Takes looks at the model that need no operations; without it they are made at
            once.
    """

    graph: Graph
    model: nn.Module
    loss_fn: LossFunction
    batch: Any
    more: Callable[[], Iterable[Any]]
    patience: float
    loss_is_assumed: bool
    left_out: Collection[str] = ()
    postponed: list[Callable[[], list[Finding]]] | None = None

    def afterwards(self, look: Callable[[TracedPass], list[Finding]]) -> list[Finding]:
        """What is found by running the model again, which need not be while a pass is in memory.

        Args:
            look: Takes this without the operations.

        Returns:
            Nothing as yet, where such looks are postponed.
        """
        rest = replace(self, graph=Graph((), self.graph.loss), postponed=None)
        if self.postponed is None:
            return look(rest)
        self.postponed.append(partial(look, rest))
        return []

    @property
    def stepped(self) -> dict[str, nn.Parameter]:
        """The parameters that training is to change, by name."""
        return {
            name: parameter
            for name, parameter in self.model.named_parameters()
            if parameter.requires_grad and name not in self.left_out
        }

    @cached_property
    def nodes(self) -> Mapping[int, Node]:
        """All operations, by number."""
        return {node.number: node for node in self.graph.nodes}

    @cached_property
    def kinds(self) -> Mapping[int, frozenset[str]]:
        """Kinds of the tensors that each operation's numbers were made of."""
        return kinds_behind(self.nodes)

    def tensor(self, source: Made | Given) -> Tensor:
        """The tensor that an operation was given."""
        return tensor(source, self.nodes)

    def shape(self, source: Made | Given) -> tuple[int, ...]:
        """Of the tensor that an operation was given."""
        return tuple(self.tensor(source).shape)

    def origin_of(self, source: Made | Given) -> Node | None:
        """The operation that made the numbers of an operand."""
        return origin_of(source, self.nodes)

    def origin_of_input(self, node: Node) -> Node | None:
        """The operation that made the numbers of a node's first input."""
        return origin_of_input(node, self.nodes)

    def users_of(self, number: int) -> list[Node]:
        """The operations that take what an operation made."""
        return [node for node in self.graph.nodes if takes_from(node, {number})]

    def is_error(self, node: Node) -> bool:
        """Whether a loss takes the size of a difference, of its own or by what follows."""
        return is_error(node, self.nodes)

    def before_expanding(self, source: Made | Given) -> Made | Given:
        """What an operand was before it took the other's shape."""
        while isinstance(source, Made):
            made = self.nodes[source.node]
            if made.name != "expand" or not made.inputs:
                break
            source = made.inputs[0]
        return source

    def given_of(self, source: Made | Given) -> Iterator[Given]:
        """The tensors that a tensor's numbers were made of, the nearest first."""
        waiting, seen = deque([source]), set[int]()
        while waiting:
            one = waiting.popleft()
            if isinstance(one, Given):
                yield one
            elif one.node not in seen:
                seen.add(one.node)
                if self.nodes[one.node].name not in OF_SHAPES:
                    waiting += self.nodes[one.node].inputs

    def depends_on_weights(self, source: Made | Given) -> bool:
        """Whether it has a gradient that leads to trained parameters, and not to data alone."""
        has_gradient = self.tensor(source).requires_grad
        return has_gradient and any(map(is_trained, self.given_of(source)))

    def is_of(self, source: Made | Given) -> bool:
        """Whether a tensor was made of the batch's, and not of constants or of shapes alone."""
        known = tensors(self.batch)
        return any(is_same(x, given.value) for given in self.given_of(source) for x in known)

    def is_of_data_alone(self, source: Made | Given) -> bool:
        """Whether a tensor was made of the batch's, and not of weights, detached or not."""
        return (
            not self.tensor(source).requires_grad
            and self.is_of(source)
            and all(given.kind != "parameter" for given in self.given_of(source))
        )

    def table_of(self, node: Node) -> Given | None:
        """The table of the model that an operation takes rows of, by numbers or by ones."""
        if len(node.inputs) < 2:
            return None
        first, second = node.inputs[:2]
        if node.name == "mm" and not self.tensor(first).requires_grad:
            first = second
        elif node.name not in LOOKING_UP:
            return None
        return first if isinstance(first, Given) and first.kind != "data" else None

    def joined(self, source: Made | Given) -> Sequence[Made | Given]:
        """The parts of a concatenation along features, such as embeddings beside numbers."""
        node = self.origin_of(source)
        if node is None or node.name != "cat":
            return (source,)
        axis = node.arguments[1] if len(node.arguments) > 1 else node.keywords.get("dim", 0)
        return node.inputs if axis in (1, -1, node.outputs[0].ndim - 1) else (source,)

    @cached_property
    def before_layers(self) -> frozenset[int]:
        """Operations whose outputs go into a matrix product or a convolution later on."""
        found: set[int] = set()
        for node in reversed(self.graph.nodes):
            if node.name in PRODUCTS or node.number in found:
                found |= {one.node for one in node.inputs if isinstance(one, Made)}
        return frozenset(found)

    @cached_property
    def last_layers(self) -> list[Node]:
        """The products of data with weights that lead to no other such product."""
        leading, last = set[int](), []
        for node in reversed(self.graph.nodes):
            if node.number not in leading:
                if not self._is_learnt_layer(node):
                    continue
                last.append(node)
            leading |= {one.node for one in node.inputs if isinstance(one, Made)}
        return last[::-1]

    @cached_property
    def takes_detached(self) -> bool:
        """Whether operations take numbers that trained weights have made, without their gradient.

        Operations that save their output for the backward pass detach it, too, for no other; and
        PyTorch's cosine similarity copies the lengths that it divides by.
        """
        nodes = self.nodes
        taken = {
            one.node for node in nodes.values() for one in node.inputs if isinstance(one, Made)
        }
        return any(
            (node.name == "detach" and node.number in taken) or not node.records_gradients
            for node in nodes.values()
            if any(self.tensor(source).requires_grad for source in node.inputs)
            and not _copies_a_length(node, nodes)
        )

    @cached_property
    def compared(self) -> list[tuple[Made, Made | Given]]:
        """Outputs and the targets that a loss compares them with, one by one."""
        found = []
        for node in self.after_layers:
            is_loss = node.name in LIKELIHOODS or self.is_error(node)
            for output, target in either_way(node) if is_loss else ():
                learnt, given = (self.tensor(x).requires_grad for x in (output, target))
                if isinstance(output, Made) and learnt and not given:
                    found.append((output, target))
        return found

    def _is_learnt_layer(self, node: Node) -> bool:
        if node.name not in PRODUCTS or not node.gradients or node.gradients[0] is None:
            return False
        kinds = [kinds_of(source, self.kinds) for source in node.inputs]
        return {"parameter"} in kinds and any("data" in one for one in kinds)

    @property
    def targets(self) -> list[Tensor]:
        """What a loss compares outputs with, one by one."""
        return [self.tensor(target).detach() for _, target in self.compared]

    @property
    def after_layers(self) -> Iterator[Node]:
        """The other operations: those behind the last layer, of the loss among them."""
        return (node for node in self.graph.nodes if node.number not in self.before_layers)


def _copies_a_length(node: Node, nodes: Mapping[int, Node]) -> bool:
    source = node.inputs[0]
    made = nodes[source.node] if isinstance(source, Made) else None
    return node.name == "clone" and made is not None and made.name == "linalg_vector_norm"


def one_of_each(findings: Iterable[Finding | None]) -> list[Finding]:
    """One finding of each title, as the same mistake shows at several operations."""
    return [*{one.title: one for one in findings if one is not None}.values()]


def place_of(node: Node) -> str:
    """The module in which an operation runs, for a sentence; empty for the model itself."""
    return f" in {node.module!r}" if node.module else ""


def one_sign(values: Tensor) -> float:
    """1 or -1 if no number has the other sign, and some have this one; else 0."""
    low, high = float(values.detach().min()), float(values.detach().max())
    return 1.0 if low >= 0 < high else -1.0 if high <= 0 > low else 0.0


def sign_of(node: Node) -> float:
    """Of the loss's derivative by what a node gives; 0 if it is mixed, or there is none."""
    gradient = node.gradients[0] if node.gradients else None
    return 0.0 if gradient is None or not gradient.numel() else one_sign(gradient)
