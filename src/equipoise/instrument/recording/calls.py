"""Record the module calls of one forward pass, and skip some of them in later passes.

A call whose parameters no longer change need not run again: its cached output is returned.
Everything else runs as the model's own code says, so chains, residual connections and branches
are treated alike. A call always runs again if it does more than compute its output, or if skipping
it would skip a hook of the user's.
"""

from __future__ import annotations

from collections import Counter
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
    CallSurroundings,
    cloned,
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
        module: The module that was called.
        number: Its index among all calls, in the order in which they begin.
        after: Index of the first call after this one that is not inside it.
        ended: Time at which it ended.
        repeatable: Whether it does nothing but compute its output.
        overwritten: Whether its output is changed in place later.
        random_states: PyTorch's random states at its end, if it drew random numbers.
        cached: Whether its output need not be computed again.
        output: The output, if cached.
    """

    module: nn.Module
    number: int
    after: int = 0
    ended: int = 0
    repeatable: bool = False
    overwritten: bool = False
    random_states: tuple[Tensor, ...] | None = None
    cached: bool = False
    output: Any = None


@dataclass(slots=True, eq=False)
class Use:
    """The first operation on a parameter.

    Args:
        time: Its time.
        modules: The modules that were running, outermost first.
    """

    time: int
    modules: tuple[nn.Module, ...]


@dataclass(slots=True)
class Calls:
    """All module calls of one pass of a model, and the first use of each parameter.

    Times count the operations on parameters and the ends of calls.

    Args:
        model: Any module.
        random_states: The model's.
        calls: All calls, in the order in which they began.
        uses: First uses, by the parameter's ``id``.
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
        self._mark_stateful_reused_modules()

    @contextmanager
    def reusing(self, until: int) -> Iterator[None]:
        """Cache the calls that end by ``until``; skip cached ones.

        Args:
            until: A time of the recorded pass.

        Raises:
            DivergedError: If the pass inside the block calls other modules than the recorded one.
        """
        self._next = 0
        with _intercepted(self.model, partial(self._reuse, until)):
            yield
        if self._next != len(self.calls):
            raise DivergedError

    def clear_cache(self) -> None:
        """Drop all cached outputs."""
        for call in self.calls:
            call.cached, call.output = False, None

    def note_use(self, parameter: Tensor) -> None:
        """Note an operation on a parameter; called before each."""
        self._time += 1
        self.uses.setdefault(id(parameter), Use(self._time, tuple(self._running)))

    def _record(self, module: nn.Module, forward: _Forward, *args: Any, **kwargs: Any) -> Any:
        call = Call(module, len(self.calls))
        self.calls.append(call)
        surroundings = CallSurroundings(module, (args, kwargs), self)
        states = self.random_states.torch_states()
        self._running.append(module)
        try:
            output = forward(*args, **kwargs)
        finally:
            self._running.pop()
        self._time += 1
        call.after, call.ended = len(self.calls), self._time
        inner = self.calls[call.number + 1 :]
        call.repeatable = (
            surroundings.unchanged()
            and all(c.repeatable and not is_hooked(c.module) for c in inner)
            and is_plain(output)
        )
        ended = self.random_states.torch_states()
        if not all(map(torch.equal, states, ended)):
            call.random_states = ended
        self._versions += [(call, *versioned) for versioned in versions(output)]
        return output

    def _reuse(
        self, until: int, module: nn.Module, forward: _Forward, *args: Any, **kwargs: Any
    ) -> Any:
        call = self.calls[self._next] if self._next < len(self.calls) else None
        if call is None or call.module is not module:
            raise DivergedError
        if call.cached:
            self._next = call.after
            if call.random_states is not None:
                self.random_states.set_torch_states(call.random_states)
            return cloned(call.output) if call.overwritten else call.output
        self._next += 1
        output = forward(*args, **kwargs)
        if self._next != call.after:
            raise DivergedError
        # An output that requires a gradient, such as one of the batch, must stay in the graph.
        if call.repeatable and call.ended <= until and not requires_gradient(output):
            call.cached = True
            call.output = cloned(output) if call.overwritten else output
            for inner in self.calls[call.number + 1 : call.after]:
                inner.cached, inner.output = False, None  # no longer needed
        return output

    def _mark_stateful_reused_modules(self) -> None:
        """Mark calls as not repeatable if their module has buffers and is called again.

        The second call may depend on buffers that the first has changed. The calls around them
        are marked too.
        """
        counts = Counter(call.module for call in self.calls)
        for stateful in self.calls:
            if counts[stateful.module] > 1 and next(stateful.module.buffers(), None) is not None:
                for call in self.calls[: stateful.number + 1]:
                    if stateful.number < call.after:
                        call.repeatable = False


# PyTorch does not annotate what the class and its construction call.
class _Uses(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Notes every operation on a parameter, inside modules or not."""

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
    """Replace every module's ``forward`` by ``interceptor(module, forward, ...)``.

    The user's hooks run around it as they do around the module's own.
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
