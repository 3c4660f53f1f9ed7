"""The module calls of one forward pass, and passes that leave out what is known of them.

A call that only depends on parameters which do not change any more need not run again: it answers
with the output that it had. Everything else runs as the model's own code says, so chains,
residual connections and branches are treated alike. A call runs again in any case if it leaves
more behind than its output, or if leaving it out would silence a hook of the user's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from itertools import chain
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from equipoise.instrument.random_states import RandomStates
from equipoise.instrument.recording.effects import (
    Surroundings,
    copied,
    is_hooked,
    is_plain,
    requires_gradient,
    versions,
)

_Forward = Callable[..., Any]


class DivergedError(Exception):
    """The model called other modules than in the recorded pass."""


@dataclass(slots=True, eq=False)
class Call:
    """One call of a module.

    Args:
        module: Which.
        number: Its place among all calls, in the order in which they begin.
        after: Number of the first call that is not inside this one.
        ended: When it was over.
        repeatable: Whether its output is all that it leaves behind.
        overwritten: Whether its output is changed in place later on.
        states: Of the random sources when it was over, if it drew from them.
        known: Whether its output need not be computed again.
        output: The output, once known.
    """

    module: nn.Module
    number: int
    after: int = 0
    ended: int = 0
    repeatable: bool = False
    overwritten: bool = False
    states: tuple[Tensor, ...] | None = None
    known: bool = False
    output: Any = None


@dataclass(slots=True, eq=False)
class Use:
    """The first operation on a parameter.

    Args:
        time: When it was.
        modules: Those that were running, outermost first.
    """

    time: int
    modules: tuple[nn.Module, ...]


@dataclass(slots=True)
class Calls:
    """All module calls of one pass over a model, in order, and the first use of its parameters.

    Args:
        model: Any module.
        random_states: Of the model.
        calls: In the order in which they began.
        uses: By the parameter's identity.
    """

    model: nn.Module
    random_states: RandomStates
    calls: list[Call] = field(default_factory=list)
    uses: dict[int, Use] = field(default_factory=dict)
    _time: int = 0
    _running: list[nn.Module] = field(default_factory=list)
    _versions: list[tuple[Call, Tensor, int]] = field(default_factory=list)
    _next: int = 0

    @contextmanager
    def recording(self) -> Iterator[None]:
        """Record the one pass that runs inside the block."""
        with _intercepted(self.model, self._record), _Uses(self):
            yield
        for call, tensor, version in self._versions:
            call.overwritten = call.overwritten or tensor._version != version
        self._versions.clear()
        self._doubt_calls_that_see_each_other()

    @contextmanager
    def reusing(self, until: int) -> Iterator[None]:
        """Leave out calls whose output is known, and get to know those that end by a time.

        Raises:
            DivergedError: If the pass inside the block calls other modules than the recorded one.
        """
        self._next = 0
        with _intercepted(self.model, partial(self._reuse, until)):
            yield
        if self._next != len(self.calls):
            raise DivergedError

    def forget(self) -> None:
        """Let go of all outputs."""
        for call in self.calls:
            call.known, call.output = False, None

    def note_use(self, parameter: Tensor) -> None:
        """Called before every operation on a parameter."""
        self._time += 1
        self.uses.setdefault(id(parameter), Use(self._time, tuple(self._running)))

    def _record(self, module: nn.Module, forward: _Forward, *args: Any, **kwargs: Any) -> Any:
        call = Call(module, len(self.calls))
        self.calls.append(call)
        before, states = Surroundings(module, (args, kwargs)), self.random_states.torch_states()
        self._running.append(module)
        try:
            output = forward(*args, **kwargs)
        finally:
            self._running.pop()
        self._time += 1
        call.after, call.ended = len(self.calls), self._time
        inner = self.calls[call.number + 1 :]
        call.repeatable = (
            before.unchanged()
            and all(c.repeatable and not is_hooked(c.module) for c in inner)
            and is_plain(output)
        )
        ended = self.random_states.torch_states()
        if not all(map(torch.equal, states, ended)):
            call.states = ended
        self._versions += [(call, *versioned) for versioned in versions(output)]
        return output

    def _reuse(
        self, until: int, module: nn.Module, forward: _Forward, *args: Any, **kwargs: Any
    ) -> Any:
        call = self.calls[self._next] if self._next < len(self.calls) else None
        if call is None or call.module is not module:
            raise DivergedError
        if call.known:
            self._next = call.after
            if call.states is not None:
                self.random_states.set_torch_states(call.states)
            return copied(call.output) if call.overwritten else call.output
        self._next += 1
        output = forward(*args, **kwargs)
        if self._next != call.after:
            raise DivergedError
        # What requires a gradient, such as of the batch, must stay in the graph.
        if call.repeatable and call.ended <= until and not requires_gradient(output):
            call.known = True
            call.output = copied(output) if call.overwritten else output
            for inner in self.calls[call.number + 1 : call.after]:
                inner.known, inner.output = False, None  # will not be asked any more
        return output

    def _doubt_calls_that_see_each_other(self) -> None:
        """A module that changes its buffers and runs twice must do so every time."""
        counts: dict[nn.Module, int] = {}
        for call in self.calls:
            counts[call.module] = counts.get(call.module, 0) + 1
        for doubtful in self.calls:
            if counts[doubtful.module] > 1 and next(doubtful.module.buffers(), None) is not None:
                for call in self.calls[: doubtful.number + 1]:
                    if doubtful.number < call.after:
                        call.repeatable = False


# PyTorch does not annotate what the class and its construction call.
class _Uses(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Sees every operation on a parameter, wherever the code that calls it is."""

    def __init__(self, calls: Calls) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.calls = calls
        self.parameters = {id(p) for p in calls.model.parameters()}

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        for value in chain.from_iterable(
            v if isinstance(v, list | tuple) else (v,) for v in (*args, *(kwargs or {}).values())
        ):
            if id(value) in self.parameters:
                self.calls.note_use(value)
        return func(*args, **(kwargs or {}))


@contextmanager
def _intercepted(model: nn.Module, interceptor: Callable[..., Any]) -> Iterator[None]:
    """Let ``interceptor(module, forward, ...)`` stand in for every module's ``forward``.

    Hooks of the user's still run around it, as they do around the module's own.
    """
    # A compiled module runs the module that it holds; a scripted one cannot be intercepted.
    modules = [
        m
        for m in model.modules()
        if "_orig_mod" not in m._modules and not isinstance(m, torch.jit.ScriptModule)
    ]
    found = [(m, "forward" in vars(m), m.forward) for m in modules]
    try:
        for module, _, forward in found:
            vars(module)["forward"] = partial(interceptor, module, forward)
        yield
    finally:
        for module, was_there, forward in found:
            if was_there:
                vars(module)["forward"] = forward
            else:
                vars(module).pop("forward", None)
