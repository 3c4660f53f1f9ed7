"""What a rule gets and gives, and the registry of rules."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from torch import Tensor

from equipoise.instrument.recording.graph import Node
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

    def argument(self, name: str, default: Any = None) -> Any:
        """An argument by its name in the operator's schema.

        Args:
            name: Forms of one operator have different arguments, in different orders.
            default: For forms without such an argument.
        """
        for index, argument in enumerate(self.node.operator._schema.arguments):
            if argument.name == name:
                if index < len(self.arguments):
                    return self.arguments[index]
                return self.keywords.get(name, argument.default_value)
        return default

    @property
    def output(self) -> Tensor:
        """The first tensor that the operation gave."""
        return self.node.outputs[0]


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
