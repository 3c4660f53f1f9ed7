"""Find the linear → normaliser → activation → linear blocks of a model."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from equipoise.diagnosis.prediction.normalisations import Normalisation, is_normalisation, read
from equipoise.instrument.normalisers import is_normaliser, kind_of
from equipoise.instrument.recording.operations import Operation, Value
from equipoise.pooling.heads.base import PoolingHead
from equipoise.pooling.run.layer import RUN
from equipoise.theory.activation.adapt import as_activation
from equipoise.theory.activation.catalogue import Activation

# Variants of batch norm that the theory does not describe.
_VARIANTS = ("batch_renorm", "ghost", "four_things")
LINEAR = {
    "linear", "conv1d", "conv2d", "conv3d", "conv_transpose1d", "conv_transpose2d",
    "conv_transpose3d", "addmm", "matmul", "mm", "bmm", "einsum", "bilinear",
}  # fmt: skip
SHAPES = {
    "flatten", "reshape", "view", "permute", "transpose", "contiguous", "squeeze", "unsqueeze",
    "movedim", "clone", "unflatten", "moveaxis", "swapaxes", "to", "float", "type_as",
}  # fmt: skip
JOINS = {"add", "iadd", "radd", "cat", "concat", "stack", "sub", "rsub", "isub"}
_NORMS = {"batch_norm", "layer_norm", "group_norm", "instance_norm", "rms_norm"}
_REDUCTIONS = {"mean", "sum", "max", "amax", "interpolate"}


@dataclass(frozen=True, slots=True, eq=False)
class FoundBlock:
    """One normaliser and what surrounds it.

    Args:
        norm: The module, or None for a functional call.
        layer: Its name.
        normalisation: What it does.
        feeding: The parametrised module whose output it normalises, where theory can apply.
        activation: What follows it, where that is an elementwise function.
        path: The operations up to the parametrised layer that closes the block.
        reason: Why theory does not apply; ``None`` if it does.
    """

    norm: nn.Module | None
    layer: str
    normalisation: Normalisation
    feeding: nn.Module | None
    activation: Activation | None
    path: Path
    reason: str | None


def find_blocks(operations: Sequence[Operation]) -> tuple[FoundBlock, ...]:
    """Find every normalisation among recorded operations.

    Args:
        operations: Those of one forward pass, in order.

    Returns:
        One block per normalisation, in order of execution.
    """
    return tuple(
        _block(operations, index)
        for index, operation in enumerate(operations)
        if is_normalisation(operation) and not _repeats(operations, index)
    )


def _repeats(operations: Sequence[Operation], index: int) -> bool:
    """Whether an earlier operation already belongs to this layer, if it is one of our variants."""
    module = operations[index].module
    if not _is_variant(module):
        return False
    before = [op for op in operations[:index] if is_normalisation(op)]
    return bool(before) and before[-1].module is module


def _is_variant(module: nn.Module | None) -> bool:
    kind = None if module is None else kind_of(module)
    return kind is not None and kind.name in _VARIANTS


def _block(operations: Sequence[Operation], index: int) -> FoundBlock:
    norm = operations[index]
    normalisation = read(norm)
    feeding, feeding_reason = _feeding(operations, index)
    path = Path(operations, index)
    if _is_variant(norm.module):
        normalisation = replace(
            normalisation, reason=f"{type(norm.module).__name__} does more than batch norm"
        )
    reason = normalisation.reason or feeding_reason or path.reason
    reason = reason or _leaves_out_channels(normalisation, feeding)
    activation: Activation | None = None
    if path.reason is None:
        try:
            activation = path.activation()
        except (ValueError, TypeError) as error:
            unknown = f"no activation that theory understands follows: {error}"
            reason = reason or unknown
    known = norm.module is not None and is_normaliser(norm.module)
    return FoundBlock(
        norm=norm.module if known else None,
        layer=norm.module_name or norm.name,
        normalisation=normalisation,
        feeding=feeding,
        activation=activation,
        path=path,
        reason=reason,
    )


def _leaves_out_channels(normalisation: Normalisation, feeding: nn.Module | None) -> str | None:
    """Why theory does not apply to a layer norm after a convolution, or None if it does."""
    if not isinstance(feeding, nn.modules.conv._ConvNd) or normalisation.normaliser not in (
        "layer norm",
        "rms norm",
    ):
        return None
    given, channels = normalisation.given, feeding.out_channels
    over_all = normalisation.features == given[0].numel()
    channels_last = given.shape[-1] == channels and normalisation.features == channels
    if over_all or channels_last:
        return None
    return f"{normalisation.normaliser} over positions without the channels is not derived"


def _feeding(operations: Sequence[Operation], index: int) -> tuple[nn.Module | None, str | None]:
    """Walk back over reshapes to the linear layer whose output is normalised."""
    wanted = operations[index].inputs[0] if operations[index].inputs else None
    for operation in reversed(operations[:index]):
        if operation.output != wanted:
            continue
        if operation.name in SHAPES and operation.inputs:
            wanted = operation.inputs[0]
        elif operation.name in LINEAR:
            return operation.module, None
        else:
            return None, f"it normalises the output of {operation.name}, not of a linear layer"
    return None, "it normalises the input of the network"


class Path:
    """The operations between a normaliser and the next parametrised layer."""

    def __init__(self, operations: Sequence[Operation], index: int) -> None:
        self.given = operations[index].inputs[0] if operations[index].inputs else (0, -1)
        self.start = operations[index].output
        self.steps: list[Operation] = []
        self.reason: str | None = None
        self.following = ""
        self.closing: Operation | None = None
        self.pooled = False
        self.end: Value = self.start
        known = {self.start}
        self._norm = operations[index].module
        for operation in operations[index + 1 :]:
            mine = [value for value in operation.inputs if value in known]
            if not mine:
                continue
            if self.following:
                self.reason = "its output also feeds a skip connection"
                break
            if operation.name in LINEAR:
                self.following, self.end = operation.module_name or operation.name, mine[0]
                self.closing = operation
                continue
            self.reason = self._obstacle(operation, known)
            if self.reason is not None:
                break
            if _pools(operation):
                self.pooled = True
            self.steps.append(operation)
            known.add(operation.output)
        else:
            if self.steps:
                self.end = self.steps[-1].output

    @staticmethod
    def _obstacle(operation: Operation, known: set[Value]) -> str | None:
        foreign = [value for value in operation.inputs if value not in known]
        if foreign and operation.name in JOINS:
            return "a residual or parallel branch joins before the next linear layer"
        if foreign:
            return f"{operation.name} combines it with another tensor"
        if operation.name in _NORMS:
            return "another normaliser follows without a linear layer in between"
        if "dropout" in operation.name and _drops(operation):
            return "dropout follows, and the theory has no such noise"
        if "attention" in operation.name:
            return "attention follows"
        if isinstance(operation.module, PoolingHead | RUN):
            return "second-order pooling follows"
        return None

    def activation(self) -> Activation:
        """The elementwise function that the steps compute."""
        needed = self._needed()
        for step in filter(_pools, needed):
            if any(set(step.inputs) & set(other.inputs) for other in needed if other is not step):
                raise ValueError(f"{step.name} and values before it are combined")
        elementwise = [step for step in needed if not self._is_neutral(step)]
        if not elementwise:
            return as_activation("identity")
        owners = {step.module for step in elementwise}
        if len(owners) == 1:
            (owner,) = owners
            is_layer = owner is not None and owner is not self._norm and not list(owner.children())
            if is_layer and owner is not None and self._is_only_owner(owner, needed):
                return as_activation(owner)
        if len(elementwise) == 1 and (simple := _simple(elementwise[0])) is not None:
            return simple
        name = " → ".join(step.name for step in elementwise)
        return as_activation(_Replay(elementwise, self.start), name=name)

    def _needed(self) -> list[Operation]:
        """The steps that the value at the end depends on, in order."""
        wanted, needed = {self.end}, []
        for step in reversed(self.steps):
            if step.output in wanted:
                needed.append(step)
                wanted.update(step.inputs)
        return needed[::-1]

    def _is_only_owner(self, owner: nn.Module, needed: list[Operation]) -> bool:
        """Whether calling the module repeats all the steps, because it alone made them."""
        return all(step.module is owner or self._is_neutral(step) for step in needed)

    @staticmethod
    def _is_neutral(step: Operation) -> bool:
        return step.name in (*SHAPES, "pad") or _pools(step) or "dropout" in step.name


def _pools(operation: Operation) -> bool:
    if operation.name in ("max", "sum") and len(operation.inputs) > 1:
        return False  # the larger of two tensors
    return "pool" in operation.name or operation.name in _REDUCTIONS


def _drops(operation: Operation) -> bool:
    names = ("input", "p", "training")
    bound = dict(zip(names, operation.arguments, strict=False)) | operation.keywords
    return bool(bound.get("training", True)) and float(bound.get("p", 0.5)) > 0


def _simple(step: Operation) -> Activation | None:
    """Recognise a function that is called with its input and at most one known parameter."""
    extra = {k: v for k, v in step.keywords.items() if k not in ("input", "inplace")}
    if len(step.arguments) > 1 or any(isinstance(v, Tensor) for v in extra.values()):
        return None
    known: Callable[..., Any] | None = getattr(torch.nn.functional, step.name, None)
    known = known or getattr(torch, step.name, None)
    if known is None or (extra and step.name not in ("leaky_relu", "elu", "gelu")):
        return None
    if step.name == "gelu":
        return as_activation("gelu" if extra.get("approximate", "none") == "none" else "gelu_tanh")
    if extra:
        (number,) = extra.values()
        return as_activation(f"{step.name}({float(number)!r})")
    return as_activation(known)


class _Replay:
    """Repeat recorded steps on another tensor."""

    def __init__(self, steps: list[Operation], start: Value) -> None:
        self._steps, self._start = steps, start

    def __call__(self, x: Tensor) -> Tensor:
        values = {self._start: x}
        latest = x
        for step in self._steps:
            replaced = partial(self._replaced, step, values, latest)
            arguments = [replaced(argument) for argument in step.arguments]
            keywords = {k: replaced(v) for k, v in step.keywords.items() if k != "inplace"}
            latest = step.function(*arguments, **keywords)
            values[step.output] = latest
        return latest

    @staticmethod
    def _replaced(
        step: Operation, values: dict[Value, Tensor], latest: Tensor, argument: Any
    ) -> Any:
        """The argument, or the tensor that takes its place in this replay."""
        value = step.value_of(argument)
        if value is None:
            return argument
        # Reshapes and pooling are skipped, so their input stands in for their output. Steps may
        # work in place, hence the clone.
        return values.get(value, latest).clone()
