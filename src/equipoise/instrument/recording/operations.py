"""Record every tensor operation of one forward pass, and the values that connect them.

Operations are recorded where Python calls torch functions, so any model works, also one with
branches and loops, without symbolic tracing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
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
    recorder = _Recorder()
    outside = torch.inference_mode(False)
    with untouched(model), outside, torch.no_grad(), recorder.module_stack(model), recorder:
        forward(model, batch)
    return tuple(recorder.operations)


class _Recorder(TorchFunctionMode):
    def __init__(self) -> None:
        super().__init__()
        self.operations: list[Operation] = []
        self._kept: list[Tensor] = []  # the id of a live tensor stays unique
        self._stack: list[tuple[nn.Module, str]] = []
        self._constants: set[int] = set()

    @contextmanager
    def module_stack(self, model: nn.Module) -> Iterator[None]:
        """Keep track of the running modules inside the block."""
        self._constants = {id(t) for t in (*model.parameters(), *model.buffers())}
        handles = []
        for module, name in modules.names(model).items():
            handles.append(module.register_forward_pre_hook(self._enter(name)))
            handles.append(module.register_forward_hook(self._leave, always_call=True))
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()

    def _enter(self, name: str) -> Callable[..., None]:
        def hook(module: nn.Module, _: Any) -> None:
            self._stack.append((module, name))

        return hook

    def _leave(self, module: nn.Module, *_: Any) -> None:
        # If a hook of the user's raises, the module was never entered.
        if self._stack and self._stack[-1][0] is module:
            self._stack.pop()

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
            module, name = self._stack[-1] if self._stack else (None, "")
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
