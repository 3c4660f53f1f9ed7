"""Parameters that a probe moves in place, and that go back bit for bit.

Cheaper than :func:`equipoise.probes.untouched`: one copy of the parameters, none of their
gradients, which are taken out of the model meanwhile. Buffers and modes are
:class:`equipoise.instrument.replay.Replay`'s.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.autograd import grad_mode

from equipoise.instrument.compiled import eager
from equipoise.instrument.random_states import RandomStates


class Held:
    """The parameters of a model, with the values that they had.

    Args:
        parameters: Each once.
    """

    def __init__(self, parameters: Iterable[Tensor]) -> None:
        self._saved = [_Saved.of(p) for p in dict.fromkeys(parameters)]
        self._values = {id(saved.parameter): saved.values for saved in self._saved}
        for saved in self._saved:
            saved.parameter.grad = None

    def values(self, parameters: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """What the parameters were; not to be written to."""
        return tuple(self._values[id(p)] for p in parameters)

    def move(self, parameters: Sequence[Tensor], along: Sequence[Tensor], step: float) -> None:
        r"""Set parameters to :math:`\theta - \eta d`, from where they were held."""
        here = _data(parameters)
        torch._foreach_copy_(here, self.values(parameters))
        if step:  # 0·inf would be nan
            torch._foreach_add_(here, tuple(along), alpha=-step)

    @contextmanager
    def same_versions(self) -> Iterator[None]:
        """Hide that others write to the parameters inside the block.

        Their values come back, so a backward pass that waits for them is still right.
        """
        with contextlib.ExitStack() as stack:
            for saved in self._saved:
                stack.enter_context(grad_mode._unsafe_preserve_version_counter(saved.parameter))
            yield

    def put_back(self) -> None:
        """Give all parameters the values and the memory that they had, and no gradient."""
        for saved in self._saved:
            if saved.parameter.data_ptr() != saved.memory.data_ptr():
                saved.parameter.data = saved.memory
            saved.memory.copy_(saved.values)
            saved.parameter.grad = None

    def release(self) -> None:
        """Put everything back."""
        self.put_back()
        for saved in self._saved:
            saved.parameter.requires_grad_(saved.requires_grad)
            saved.parameter.grad = saved.gradient


@dataclass(frozen=True, slots=True)
class _Saved:
    parameter: Tensor
    memory: Tensor  # the parameter's own
    values: Tensor
    gradient: Tensor | None
    requires_grad: bool

    @classmethod
    def of(cls, parameter: Tensor) -> _Saved:
        # `data` writes without a new version: a pending backward pass of the user's stays valid.
        memory = parameter.data
        return cls(parameter, memory, memory.clone(), parameter.grad, parameter.requires_grad)


def place(parameters: Sequence[Tensor], values: Sequence[Tensor]) -> None:
    """Write values into parameters."""
    if parameters:
        torch._foreach_copy_(_data(parameters), tuple(values))


@contextmanager
def held(model: nn.Module, others: Iterable[Tensor] = ()) -> Iterator[Held]:
    """Let a model's parameters be moved inside the block, and put them back after it.

    Random states go back too. Inside, no parameter has a gradient, and a compiled model runs
    what it was compiled from.

    Args:
        model: Any module without lazy parameters.
        others: Parameters outside of the model that are to be put back too.

    Examples:
        >>> layer = nn.Linear(1, 1)
        >>> before = layer.weight.clone()
        >>> with held(layer) as kept:
        ...     kept.move([layer.weight], [torch.ones(1, 1)], 0.5)
        >>> bool(layer.weight == before)
        True
    """
    registered = [(module, dict(module._parameters)) for module in model.modules()]
    random_states = RandomStates(model)
    with torch.inference_mode(False), torch.no_grad():
        kept = Held((*model.parameters(), *others))
    try:
        with eager(model), torch.inference_mode(False):
            yield kept
    finally:
        for module, parameters in registered:
            module._parameters.clear()
            module._parameters.update(parameters)
        with torch.no_grad():
            kept.release()
        random_states.restore()


def _data(parameters: Sequence[Tensor]) -> tuple[Tensor, ...]:
    return tuple(p.data for p in parameters)
