"""Record every tensor operation of one forward pass, and the values that connect them.

Operations are recorded where Python calls torch functions, so any model works, also one with
branches and loops, without symbolic tracing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from equipoise.instrument import modules
from equipoise.instrument.snapshot import untouched

# A tensor's identity and its version, which every in-place change raises.
Value: TypeAlias = tuple[int, int]


@dataclass(frozen=True, slots=True, eq=False)
class Operation:
    """One call of a torch function.

    Args:
        name: Name of the function, without a trailing underscore.
        function: The function itself.
        arguments: Its positional arguments.
        keywords: Its keyword arguments.
        inputs: Values of the tensors among the arguments, without parameters and buffers.
        output: Value of the result.
        module: Innermost module that was running, if any.
        module_name: Its name in the model.
    """

    name: str
    function: Callable[..., Any]
    arguments: tuple[Any, ...]
    keywords: dict[str, Any]
    inputs: tuple[Value, ...]
    output: Value
    module: nn.Module | None
    module_name: str

    def value_of(self, argument: Any) -> Value | None:
        """The value that a tensor argument had before this call; ``None`` if it is no input."""
        for value in self.inputs:
            if isinstance(argument, Tensor) and value[0] == id(argument):
                return value
        return None


def record_operations(
    model: nn.Module, batch: Any, forward: Callable[[nn.Module, Any], Any]
) -> tuple[Operation, ...]:
    """Run the model once and return its operations in order; the model is left untouched.

    Args:
        model: Any module.
        batch: What the user's loader yields.
        forward: ``forward(model, batch)`` runs the model.

    Examples:
        >>> model = nn.Sequential(nn.Linear(2, 2), nn.ReLU())
        >>> run = lambda model, batch: model(batch)
        >>> [op.name for op in record_operations(model, torch.ones(1, 2), run)]
        ['linear', 'relu']
    """
    recorder = _Recorder(model)
    outside, running = torch.inference_mode(False), modules.running(model)
    with untouched(model), outside, torch.no_grad(), running as recorder.running, recorder:
        forward(model, batch)
    return tuple(recorder.operations)


class _Recorder(TorchFunctionMode):
    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.operations: list[Operation] = []
        self.running: list[tuple[nn.Module, str]] = []
        self._kept: list[Tensor] = []  # the id of a live tensor stays unique
        self._constants = {id(t) for t in (*model.parameters(), *model.buffers())}

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        given = [
            _value(t) for t in _tensors((*args, *kwargs.values())) if id(t) not in self._constants
        ]
        result = func(*args, **kwargs)
        for output in _tensors((result,)):
            self._kept.append(output)
            module, name = self.running[-1] if self.running else (None, "")
            self.operations.append(
                Operation(
                    name=getattr(func, "__name__", str(func)).strip("_"),
                    function=func,
                    arguments=args,
                    keywords=kwargs,
                    inputs=tuple(given),
                    output=_value(output),
                    module=module,
                    module_name=name,
                )
            )
        return result


def _value(tensor: Tensor) -> Value:
    return id(tensor), 0 if tensor.is_inference() else tensor._version


def _tensors(values: Any) -> Iterator[Tensor]:
    for value in values:
        if isinstance(value, Tensor):
            yield value
        elif isinstance(value, tuple | list):
            yield from _tensors(value)
