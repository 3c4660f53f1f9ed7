"""Exchange activations that forward() calls as functions, such as ``F.relu`` or ``x.tanh()``.

Hooks switch a torch function mode on while the model's modules run. Nothing is wrapped: the model
keeps its class, parameters and state, and copies of it exchange the same calls. Of what a
checkpoint repeats in the backward pass, calls inside of modules are exchanged again.
"""

from __future__ import annotations

import inspect
import threading
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode
from torch.utils.hooks import RemovableHandle

from equipoise.instrument.modules import names
from equipoise.records.warn import warn_user

Function = Callable[..., Any]

_NAMES = (
    *("relu", "relu6", "leaky_relu", "gelu", "silu", "elu", "selu", "celu", "mish", "softplus"),
    *("tanh", "sigmoid", "hardtanh", "hardswish", "hardsigmoid", "expit"),
)
_ALIASES = {"relu6": "hardtanh", "selu": "elu", "expit": "sigmoid"}


def _spellings() -> Iterator[tuple[Function, str, bool | int]]:
    """Functions, the operation that a trace shows for each, and whether it writes to its input.

    A number is the place of the argument ``inplace``.
    """
    for name in _NAMES:
        for owner in (torch, F, Tensor, torch.special):
            for spelling in (name, f"{name}_"):
                if callable(function := getattr(owner, spelling, None)):
                    writes = spelling != name or _place_of_inplace(function)
                    yield function, _ALIASES.get(name, name), writes


def _place_of_inplace(function: Function) -> bool | int:
    try:
        arguments = list(inspect.signature(function).parameters)
    except (ValueError, TypeError):  # built-in functions have no such argument
        return False
    return arguments.index("inplace") if "inplace" in arguments else False


# By function: the operation, and whether it writes to its input. Looked up when models run and are
# compiled, so nothing is found out there.
_FUNCTIONS: dict[Function, tuple[str, bool | int]] = {
    function: (name, writes) for function, name, writes in _spellings()
}
CALLED = frozenset(name for name, _ in _FUNCTIONS.values())
# What is more often a gate, an output or a part of a formula is exchanged where that is asked for.
AMBIGUOUS = frozenset({"tanh", "sigmoid", "softplus", "hardtanh", "hardsigmoid"})


def calls_functions(module: nn.Module) -> bool:
    """Whether a module's own forward() may call an activation as a function."""
    if isinstance(module, nn.TransformerEncoderLayer | nn.TransformerDecoderLayer):
        return True
    return not type(module).__module__.startswith("torch.nn.modules.")


class ActivationCalls:
    """Calls one activation in the place of every other.

    Args:
        choice: Its name in ``torch.nn.functional``.
    """

    def __init__(self, choice: str) -> None:
        self._choice = choice
        self._instead: Function = getattr(F, choice)
        self._mode, self._running = _Mode(self), _Running()
        self._settled = False

    def attach(
        self,
        model: nn.Module,
        kept: Iterable[str] = (),
        also: Iterable[str] = (),
        *,
        certain: bool = False,
    ) -> list[RemovableHandle]:
        """Begin to exchange what a model's modules call from now on.

        Args:
            model: The model.
            kept: Calls that stay, as ``"name of the module:name of the operation"``, and modules
                of which all stay, by their names.
            also: Calls of :data:`AMBIGUOUS` operations that are exchanged, likewise.
            certain: Whether something else of the model was exchanged; if not, a pass without any
                exchange warns.

        Returns:
            Hooks; removing all of them ends it.
        """
        self._settled = certain
        all_kept, exchanged = set(kept), set(also)
        handles = []
        for module, name in names(model).items():
            if not (calls_functions(module) or name in all_kept):
                continue
            stay = {call for call in AMBIGUOUS if f"{name}:{call}" not in exchanged}
            stay |= {call for call in CALLED if {name, f"{name}:{call}"} & all_kept}
            hooks = _Hooks(self, frozenset(stay))
            handles += [
                module.register_forward_pre_hook(hooks.enter),
                module.register_forward_hook(hooks.leave, always_call=True),
            ]
        return handles

    def enter(self, module: nn.Module, stay: frozenset[str]) -> None:
        """Note that a module begins to run, of whose calls some stay."""
        running = self._running
        if not running.modules:
            self._mode.__enter__()  # type: ignore[no-untyped-call]  # torch's is not annotated
        running.modules.append((module, stay))

    def leave(self, module: nn.Module, result: object) -> None:
        """Note that a module has run, unless another hook kept it from beginning.

        Args:
            module: The module.
            result: What it returned; ``None`` after an exception.
        """
        running = self._running
        if not running.modules or running.modules[-1][0] is not module:
            return
        running.modules.pop()
        if running.modules:
            return
        self._mode.__exit__(None, None, None)  # type: ignore[no-untyped-call]  # likewise
        if not (self._settled or result is None):
            self._settled = True
            warn_user(
                f"activation={self._choice} changed nothing: in this pass the model called no "
                "activation that is another. If it calls one of "
                f"{', '.join(sorted(AMBIGUOUS))}, ask for it, as in "
                f"'activation={self._choice}:also=block:tanh'."
            )

    def called(self, function: Function, args: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
        """Call a function, or the activation in its place."""
        name, writes = _FUNCTIONS.get(function, ("", False))
        if name in ("", self._choice) or name in self._running.modules[-1][1]:
            return function(*args, **keywords)
        self._settled = True
        given = args[0] if args else keywords["input"]
        if keywords.get("out") is not None:
            # Written as PyTorch writes: it resizes, casts, and refuses gradients.
            return torch.add(self._instead(given), 0, out=keywords["out"])
        if writes is not True and writes is not False:
            writes = args[writes] if len(args) > writes else keywords.get("inplace", False)
        if not writes:
            return self._instead(given)
        # Whoever reads the tensor afterwards finds the result in it, as before.
        return given.copy_(self._instead(given.clone()))

    def __reduce__(self) -> tuple[Any, ...]:
        """Copies begin with nothing running."""
        return _again, (self._choice, self._settled)


def _again(choice: str, settled: bool) -> ActivationCalls:
    made = ActivationCalls(choice)
    made._settled = settled
    return made


class _Running(threading.local):
    """Modules that run in this thread, outermost first."""

    def __init__(self) -> None:
        self.modules: list[tuple[nn.Module, frozenset[str]]] = []


class _Mode(TorchFunctionMode):
    def __init__(self, calls: ActivationCalls) -> None:
        super().__init__()
        self._calls = calls

    def __torch_function__(
        self,
        func: Function,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        return self._calls.called(func, args, kwargs or {})


class _Hooks:
    """The hooks of one module."""

    def __init__(self, calls: ActivationCalls, stay: frozenset[str]) -> None:
        self._calls, self._stay = calls, stay

    def enter(self, module: nn.Module, _: Any) -> None:
        """Before its forward()."""
        self._calls.enter(module, self._stay)

    def leave(self, module: nn.Module, _: Any, result: Any) -> None:
        """After it, also after an exception."""
        self._calls.leave(module, result)
