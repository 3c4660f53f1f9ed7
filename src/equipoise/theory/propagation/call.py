"""What a rule gets and gives, and the registry of rules."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from equipoise.instrument.recording.graph import Node, evaluated
from equipoise.theory.propagation.values import Gradient, Known, Moments, Value


@dataclass(frozen=True, slots=True, eq=False)
class Call:
    """One operation, with what is known of its inputs.

    Args:
        node: The recorded operation.
        arguments: Positional arguments; tensors are replaced by what is known of them.
        keywords: Keyword arguments, likewise.
    """

    node: Node
    arguments: tuple[Any, ...]
    keywords: dict[str, Any]

    def argument(self, index: int, name: str, default: Any = None) -> Any:
        """A positional or keyword argument."""
        if index < len(self.arguments):
            return self.arguments[index]
        return self.keywords.get(name, default)

    @property
    def output(self) -> Tensor:
        """The first tensor that the operation gave."""
        return self.node.outputs[0]

    def with_values(self) -> Call:
        """The call with the outputs that its inputs have now, if all of them have values."""
        inputs = pytree.tree_map_only(Known, as_tensor, (self.arguments, self.keywords))
        if not self.output.is_meta or any(
            leaf.is_meta for leaf in pytree.tree_leaves(inputs) if isinstance(leaf, Tensor)
        ):
            return self
        with torch.no_grad():
            outputs = evaluated(self.node.operator, *inputs)
        # After a change of axes their strides may be others than those that a view was traced on.
        rows = tuple(output.contiguous() for output in outputs)
        return replace(self, node=replace(self.node, outputs=rows))


@dataclass(frozen=True, slots=True)
class Pulled:
    """What a gradient at the outputs of an operation means for its inputs.

    Args:
        inputs: Pairs of an input and the gradient that it receives.
        weights: Pairs of a parameter's name and the mean squared gradient of its elements.
    """

    inputs: Sequence[tuple[Moments, Gradient]] = ()
    weights: Sequence[tuple[str, float]] = ()


Pullback: TypeAlias = Callable[[Gradient], Pulled]


@dataclass(frozen=True, slots=True, eq=False)
class Result:
    """What a rule finds.

    Args:
        output: Of the first output of the operation.
        pullback: The way back of its gradient; None where no random layer lies before.
        others: Of further outputs, with their ways back.
    """

    output: Value
    pullback: Pullback | None = None
    others: Sequence[tuple[Value, Pullback | None]] = field(default_factory=tuple)

    def __iter__(self) -> Iterator[tuple[Value, Pullback | None]]:
        yield self.output, self.pullback
        yield from self.others


# What these give does not depend on the values that they get.
OF_SHAPES = {
    *("empty_like", "zeros_like", "ones_like", "full_like", "rand_like", "randn_like"),
    *("new_zeros", "new_ones", "new_empty", "new_full"),
}
# Operations that multiply data with weights.
WEIGHTED = {"mm", "bmm", "addmm", "baddbmm", "convolution"}

Rule: TypeAlias = Callable[[Call], Result]
RULES: dict[str, Rule] = {}


def rule(*names: str) -> Callable[[Rule], Rule]:
    """Register a rule for operators, by their names without namespace and overload."""

    def register(function: Rule) -> Rule:
        RULES.update(dict.fromkeys(names, function))
        return function

    return register


def known_tensor(value: Any) -> Tensor | None:
    """The tensor behind an argument that must not be random; None if there is none."""
    return value.value if isinstance(value, Known) else None


def as_tensor(value: Any) -> Any:
    """Arguments of an operator as PyTorch takes them, where all are known."""
    return value.value if isinstance(value, Known) else value
