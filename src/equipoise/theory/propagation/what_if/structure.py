"""Which operations of a graph are weights, what they depend on, and what comes after them.

Sets of operations are bits of a number, so that ancestors of all operations cost milliseconds.
"""

from __future__ import annotations

from collections import Counter
from functools import cached_property

from equipoise.instrument.recording.graph import Given, Graph, Made, Node
from equipoise.theory.propagation.call import WEIGHTED
from equipoise.theory.propagation.rules.shape import FOLLOWED


class Structure:
    """How the operations of a graph depend on each other.

    Args:
        graph: The graph.
    """

    def __init__(self, graph: Graph) -> None:
        self.nodes = graph.nodes
        self._bits: dict[int, int] = {}  # of tensors of data
        self._of_parameters: list[bool] = []
        self._of_data: list[bool] = []
        self.before: list[int] = []
        for node in graph.nodes:
            self._add(node)
        self.result = graph.result

    def _add(self, node: Node) -> None:
        before = 1 << node.number
        parameters = data = False
        for source in node.inputs:
            before |= self.ancestors(source)
            parameters |= self.has_parameters(source)
            data |= self.has_data(source)
        self.before.append(before)
        self._of_parameters.append(parameters)
        self._of_data.append(data)

    def ancestors(self, source: Made | Given) -> int:
        """Operations and data that a tensor depends on, the one that made it included."""
        if isinstance(source, Made):
            return self.before[source.node]
        if source.kind != "data":
            return 0
        return 1 << (len(self.nodes) + self._bits.setdefault(id(source.value), len(self._bits)))

    def has_parameters(self, source: Made | Given) -> bool:
        """Whether a tensor depends on a parameter."""
        if isinstance(source, Made):
            return self._of_parameters[source.node]
        return source.kind == "parameter"

    def has_data(self, source: Made | Given) -> bool:
        """Whether a tensor depends on the batch."""
        if isinstance(source, Made):
            return self._of_data[source.node]
        return source.kind == "data" and source.value.ndim > 0

    def is_weight(self, source: Made | Given) -> bool:
        """Whether a tensor comes from parameters alone."""
        return self.has_parameters(source) and not self.has_data(source)

    @cached_property
    def weighted(self) -> tuple[Node, ...]:
        """Products of data with weights, in order."""
        return tuple(
            node
            for node in self.nodes
            if node.name in WEIGHTED
            and any(map(self.is_weight, node.inputs))
            and any(map(self.has_data, node.inputs))
        )

    @cached_property
    def weights(self) -> int:
        """The same, as bits."""
        return sum(1 << node.number for node in self.weighted)

    @cached_property
    def inside(self) -> int:
        """Operations before the last weights of some way to the loss."""
        found = 0
        for node in self.weighted:
            for source in node.inputs:
                found |= self.ancestors(source)
        return found

    def is_inside(self, node: Node) -> bool:
        """Whether weights come after an operation."""
        return bool(self.inside >> node.number & 1)

    def is_random(self, source: Made | Given) -> bool:
        """Whether weights come before a tensor."""
        return bool(self.ancestors(source) & self.weights)

    @cached_property
    def consumers(self) -> dict[int, list[Node]]:
        """The operations that take what an operation made, by its number."""
        found: dict[int, list[Node]] = {node.number: [] for node in self.nodes}
        for node in self.nodes:
            for number in {s.node for s in node.inputs if isinstance(s, Made)}:
                found[number].append(node)
        return found

    def heads(self) -> set[int]:
        """Numbers of the weighted operations that no weights come after on some way."""
        found: set[int] = set()
        seen: set[int] = set()
        left = [self.result] if self.result is not None else []
        while left:
            number = left.pop().node
            if number in seen:
                continue
            seen.add(number)
            if self.weights >> number & 1:
                found.add(number)
            else:
                left += [s for s in self.nodes[number].inputs if isinstance(s, Made)]
        return found

    def described(self) -> str:
        """What operations act on data between weights, and how many there are of each."""
        names = Counter(
            node.name
            for node in self.nodes
            if self._of_data[node.number] and self.is_inside(node) and node.name not in FOLLOWED
        )
        return ", ".join(f"{count} × {name}" for name, count in names.most_common())
