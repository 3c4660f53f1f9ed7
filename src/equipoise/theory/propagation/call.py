"""What a rule gets and gives, and the registry of rules."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn

from equipoise.instrument import trees
from equipoise.instrument.recording.graph import Node, evaluated, name_of
from equipoise.instrument.recording.opaque import OPAQUE
from equipoise.records.wording import said
from equipoise.theory.propagation.layout import LayoutError, UnpredictedError
from equipoise.theory.propagation.values.gradients import Gradient
from equipoise.theory.propagation.values.known import Known
from equipoise.theory.propagation.values.moments import MadeBy, Moments, Value


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
        operator = self.node.operator
        if isinstance(operator, type):  # modules and functions of users have no schema
            return self.keywords.get(name, default)
        for index, argument in enumerate(operator._schema.arguments):
            if argument.name == name:
                if index < len(self.arguments):
                    return self.arguments[index]
                return self.keywords.get(name, argument.default_value)
        return default

    def with_first(self, value: Value) -> Call:
        """The same with another first argument."""
        return replace(self, arguments=(value, *self.arguments[1:]))

    @property
    def module(self) -> nn.Module:
        """The module that was called.

        Raises:
            UnpredictedError: If it is not the call of a module.
        """
        if self.node.called is None:
            raise UnpredictedError(f"{self.node.name} is no call of a module")
        return self.node.called

    def made_by(self, weight: Known) -> MadeBy:
        """The note that these weights made the output."""
        turned = self.argument("transposed")
        if turned is None:  # a product with a matrix of [in, out]
            turned = weight.value.stride(-1) > weight.value.stride(-2)
        return MadeBy(str(weight.parameter), bool(turned), self.node.number)

    @property
    def output(self) -> Tensor:
        """The first tensor that the operation gave."""
        return self.node.outputs[0]

    def with_values(self) -> Call:
        """The call with the outputs that its inputs have now, if all of them have values."""
        inputs = trees.replaced(Known, known_tensor, (self.arguments, self.keywords))
        opaque = isinstance(self.node.operator, type)
        if (
            opaque
            or not self.output.is_meta
            or any(leaf.is_meta for leaf in trees.leaves(inputs) if isinstance(leaf, Tensor))
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
        doubt: What the logarithm of these gradients lacks, as the traced pass shows of the
            operation itself.
    """

    inputs: Sequence[tuple[Moments, Gradient]] = ()
    weights: Sequence[tuple[str, float]] = ()
    doubt: float = 0.0


Pullback: TypeAlias = Callable[[Gradient], Pulled]


def of_the_width(_: Gradient) -> Pulled:
    """The way back through an average over all features, whose gradient the width makes small.

    Behind the last weights of a graph nothing else may bring a gradient: no way back is taken.
    """
    return Pulled()


def no_gradient(_: Gradient) -> Pulled:
    """The way back through what autograd does not record."""
    return Pulled()


@dataclass(frozen=True, slots=True, eq=False)
class Result:
    """What a rule finds.

    Args:
        output: Of the first output of the operation.
        pullback: The way back of its gradient; None where no random layer lies before.
        others: Of further outputs, with their ways back.
        deferred: The way back for a part of concatenations, if it is linear: gradients that
            several of them bring are added up before they are pulled back.
    """

    output: Value
    pullback: Pullback | None = None
    others: Sequence[tuple[Value, Pullback | None]] = field(default_factory=tuple)
    deferred: Pullback | None = None

    def __iter__(self) -> Iterator[tuple[Value, Pullback | None]]:
        yield self.output, self.pullback
        yield from self.others


def unfinished(node: Node, value: Any) -> Result:
    """A value, whose way back is that of what comes later."""
    return Result(value, no_gradient, [(Known(output), None) for output in node.outputs[1:]])


def chained(first: Result, second: Result) -> Result:
    """One result after the other, whose input was the output of the first."""

    def pullback(gradient: Gradient) -> Pulled:
        if first.pullback is None or second.pullback is None:
            return Pulled()
        pulled = second.pullback(gradient)
        inputs = [pair for pair in pulled.inputs if pair[0] is not first.output]
        weights = list(pulled.weights)
        for value, share in pulled.inputs:
            if value is first.output:
                before = first.pullback(share)
                inputs += before.inputs
                weights += before.weights
        return Pulled(inputs, weights, pulled.doubt)

    return Result(second.output, pullback, second.others)


# What these give does not depend on the values that they get.
OF_SHAPES = {
    *("empty_like", "zeros_like", "ones_like", "full_like", "rand_like", "randn_like"),
    *("new_zeros", "new_ones", "new_empty", "new_full"),
}
# Operations that multiply data with weights.
WEIGHTED = {"mm", "bmm", "addmm", "baddbmm", "convolution"}

Rule: TypeAlias = Callable[[Call], Result]
# By names of operators, or by classes of modules and autograd functions.
RULES: dict[str | type, Rule] = {}


def rule(*targets: Any) -> Callable[[Rule], Rule]:
    """Register a rule: a function of a :class:`Call` that gives a :class:`Result`.

    It is asked at every call with a random input, and replaces any rule for the same target.

    Args:
        targets: Operators such as ``torch.ops.library.name``, what ``torch.library.custom_op``
            returns, or names of PyTorch's own operators; classes of modules, or of
            ``torch.autograd.Function``, whose calls then are one operation each. Subclasses of
            these need a rule of their own.

    Raises:
        TypeError: If a target is none of these.
        ValueError: If no operator of PyTorch has the name.

    Examples:
        >>> class Unchanged(torch.nn.Identity):
        ...     pass
        >>> @rule(Unchanged)
        ... def unchanged(call: Call) -> Result:
        ...     x = call.arguments[0]
        ...     return Result(x, lambda gradient: Pulled([(x, gradient)]))
        >>> rule("cumsun")
        Traceback (most recent call last):
        ValueError: no operator of PyTorch is named 'cumsun'
    """
    keys = [_key(target) for target in targets]

    def register(function: Rule) -> Rule:
        RULES.update(dict.fromkeys(keys, function))
        OPAQUE.update(key for key in keys if isinstance(key, type))
        return function

    return register


def rule_for(node: Node) -> Rule | None:
    """The rule for an operation; None if there is none."""
    return RULES.get(node.operator if isinstance(node.operator, type) else node.name)


def _key(target: Any) -> str | type:
    """What a target is registered by."""
    if isinstance(target, str):
        if not hasattr(torch.ops.aten, target):
            raise ValueError(f"no operator of PyTorch is named {target!r}")
        return target
    if isinstance(target, type) and issubclass(target, nn.Module | torch.autograd.Function):
        return target
    operator = getattr(target, "_opoverload", target)  # of `torch.library.custom_op`
    if isinstance(operator, torch._ops.OpOverload | torch._ops.OpOverloadPacket):
        return name_of(operator)
    raise TypeError(
        "a rule is for an operator, a class of modules or a class of autograd functions, not "
        f"{target!r}"
    )


def known_tensor(value: Any) -> Tensor | None:
    """The tensor behind an argument that must not be random; None if there is none."""
    return value.value if isinstance(value, Known) else None


def reason_of(node: Node, error: Exception, what: str) -> str:
    """What a rule says, or how it failed."""
    if isinstance(error, UnpredictedError | LayoutError):
        return str(error)
    return f"{what} {node.name} failed: {said(error).removesuffix('.')}"
