"""Restore a model, its gradients and every random state bit for bit."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager

import torch
from torch import Tensor, nn
from torch.autograd import grad_mode

from equipoise.instrument.compiled import eager
from equipoise.instrument.observers import observers_paused
from equipoise.instrument.random_states import RandomStates


@contextmanager
def untouched(model: nn.Module) -> Iterator[None]:
    """Restore a model bit for bit on leaving the block, whatever happened in it.

    Restored are parameters and buffers (values, memory and identity), gradients,
    ``requires_grad``, training modes, and all :class:`RandomStates` of the model. Inside the
    block, compiled models run uncompiled and observers are paused.

    Raises:
        ValueError: If the model has lazy parameters that no batch has shaped yet.

    Examples:
        >>> layer = nn.BatchNorm1d(2)
        >>> with untouched(layer):
        ...     _ = layer(torch.randn(8, 2))
        >>> layer.running_mean
        tensor([0., 0.])
    """
    refuse_lazy(model)
    random_states, modules = RandomStates(model), ModuleStates(model)
    parameters = SavedParameters(model, copy_gradients=True)
    try:
        with (
            eager(model),
            observers_paused(model),
            parameters.versions_kept(),
            modules.versions_kept(),
        ):
            yield
    finally:
        # Autocast caches casts by parameter and does not notice that its values change.
        torch.clear_autocast_cache()
        random_states.restore()
        modules.restore()
        parameters.restore()


@contextmanager
def parameters_restored(
    model: nn.Module, others: Iterable[Tensor] = ()
) -> Iterator[SavedParameters]:
    """Let a model's parameters be moved inside the block, and restore them after it.

    Random states are restored too. Inside the block no parameter has a gradient, and a compiled
    model runs uncompiled. This is cheaper than :func:`untouched`, because gradients are not
    copied; buffers and modes are left to :class:`equipoise.instrument.replay.Replay`.

    Args:
        model: Any module without lazy parameters.
        others: Parameters outside of the model to restore as well.

    Examples:
        >>> layer = nn.Linear(1, 1)
        >>> before = layer.weight.clone()
        >>> with parameters_restored(layer) as saved:
        ...     saved.move([layer.weight], [torch.ones(1, 1)], 0.5)
        >>> bool(layer.weight == before)
        True
    """
    random_states, parameters = RandomStates(model), SavedParameters(model, others)
    parameters.remove_gradients()
    try:
        with eager(model), torch.inference_mode(False):
            yield parameters
    finally:
        random_states.restore()
        parameters.restore()


class SavedParameters:
    """The parameters of a model, with copies of their values.

    Args:
        model: Any module without lazy parameters.
        others: Parameters outside of the model.
        copy_gradients: Whether the values of gradients are copied too, for blocks that write to
            them.
    """

    def __init__(
        self, model: nn.Module, others: Iterable[Tensor] = (), *, copy_gradients: bool = False
    ) -> None:
        self._registered = [(module, dict(module._parameters)) for module in model.modules()]
        with torch.inference_mode(False), torch.no_grad():
            self._saved = [
                _SavedParameter(parameter, copy_gradient=copy_gradients)
                for parameter in dict.fromkeys((*model.parameters(), *others))
            ]
        self._values = {id(saved.tensor): saved.copy.values for saved in self._saved}

    def values(self, parameters: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """The saved values of parameters; do not write to them."""
        return tuple(self._values[id(p)] for p in parameters)

    def move(self, parameters: Sequence[Tensor], along: Sequence[Tensor], step: float) -> None:
        r"""Set parameters to :math:`\theta - \eta d`, with θ their saved values."""
        data = _data(parameters)
        torch._foreach_copy_(data, self.values(parameters))
        if step:  # 0·inf would be nan
            torch._foreach_add_(data, tuple(along), alpha=-step)

    def versions_kept(self) -> AbstractContextManager[None]:
        """Leave the parameters' version counters as they are inside the block."""
        return _versions_kept(saved.tensor for saved in self._saved)

    def remove_gradients(self) -> None:
        """Set every ``.grad`` to ``None`` until :meth:`restore`."""
        for saved in self._saved:
            saved.tensor.grad = None

    def restore_values(self) -> None:
        """Restore the values of all parameters, and the memory that they are in."""
        for saved in self._saved:
            saved.copy.restore()

    def restore(self) -> None:
        """Restore values, identity, gradients and ``requires_grad``."""
        for module, parameters in self._registered:
            module._parameters.clear()
            module._parameters.update(parameters)
        for saved in self._saved:
            saved.restore()


class _Copy:
    """A tensor, the memory that it is in, and a copy of its values."""

    __slots__ = ("memory", "tensor", "values")

    def __init__(self, tensor: Tensor) -> None:
        self.tensor = tensor
        # Writing to `data` makes no new version: a pending backward pass stays valid.
        self.memory = tensor.data
        self.values = self.memory.clone()

    def restore(self) -> None:
        # Sparse tensors have no pointer.
        strided = self.tensor.layout is self.memory.layout is torch.strided
        if strided and self.tensor.data_ptr() != self.memory.data_ptr():
            self.tensor.data = self.memory
        if self.memory.is_inference():  # such as a buffer that was assigned in inference mode
            with torch.inference_mode():
                self.memory.copy_(self.values)
        else:
            self.memory.copy_(self.values)


class _SavedParameter:
    __slots__ = ("copy", "gradient", "gradient_copy", "requires_grad", "tensor")

    def __init__(self, parameter: Tensor, *, copy_gradient: bool) -> None:
        gradient = parameter.grad
        self.tensor, self.copy = parameter, _Copy(parameter)
        self.requires_grad, self.gradient = parameter.requires_grad, gradient
        self.gradient_copy = None if gradient is None or not copy_gradient else _Copy(gradient)

    def restore(self) -> None:
        self.copy.restore()
        if self.tensor.requires_grad != self.requires_grad:
            self.tensor.requires_grad_(self.requires_grad)
        if self.gradient_copy is not None:
            self.gradient_copy.restore()
        self.tensor.grad = self.gradient


class ModuleStates:
    """The training modes and buffers of all modules of a model, with copies of the buffers.

    Args:
        model: Any module without lazy buffers.
    """

    def __init__(self, model: nn.Module) -> None:
        self._modules = [_ModuleState(module) for module in model.modules()]
        buffers = [b for state in self._modules for b in state.buffers.values() if b is not None]
        with torch.inference_mode(False):  # an inference tensor could not enter a graph
            self._buffers = {id(buffer): _Copy(buffer) for buffer in buffers}

    def versions_kept(self) -> AbstractContextManager[None]:
        """Leave the buffers' version counters as they are inside the block."""
        return _versions_kept(copy.tensor for copy in self._buffers.values())

    def use_copies(self) -> None:
        """Restore all modes, and put new copies of the saved buffers in the modules."""
        copies = {key: copy.values.clone() for key, copy in self._buffers.items()}
        for state in self._modules:
            state.restore(copies)

    def use_originals(self) -> None:
        """Restore all modes, and put the original buffers back, with the values that they have."""
        for state in self._modules:
            state.restore(None)

    def restore(self) -> None:
        """Restore modes, buffers and their values."""
        self.use_originals()
        for copy in self._buffers.values():
            copy.restore()


class _ModuleState:
    """A module's mode, and its buffers by name."""

    __slots__ = ("buffers", "module", "training")

    def __init__(self, module: nn.Module) -> None:
        self.module = module
        self.training = module.training
        self.buffers = dict(module._buffers)

    def restore(self, copies: dict[int, Tensor] | None) -> None:
        """Restore the mode and, in their old order, the buffers or copies of them."""
        if self.module.training != self.training:  # setting a module's attribute is slow
            self.module.training = self.training
        if not (self.buffers or self.module._buffers):
            return
        self.module._buffers.clear()
        for name, buffer in self.buffers.items():
            chosen = buffer if buffer is None or copies is None else copies[id(buffer)]
            self.module._buffers[name] = chosen


def write_values(parameters: Sequence[Tensor], values: Sequence[Tensor]) -> None:
    """Write values into parameters, without a new version of them."""
    if parameters:
        torch._foreach_copy_(_data(parameters), tuple(values))


def refuse_lazy(model: nn.Module) -> None:
    """Refuse parameters and buffers that no batch has shaped yet.

    Raises:
        ValueError: If there are any.
    """
    for module in model.modules():
        own = (*module._parameters.values(), *module._buffers.values())
        if any(isinstance(t, nn.UninitializedParameter | nn.UninitializedBuffer) for t in own):
            raise ValueError(
                f"{type(module).__name__} has lazy parameters without a shape. Run one batch "
                "through the model first."
            )


@contextmanager
def _versions_kept(tensors: Iterable[Tensor]) -> Iterator[None]:
    """Leave version counters as they are while others write to the tensors.

    A pending backward pass of the user's stays valid, since the values are restored.
    """
    with contextlib.ExitStack() as stack:
        for tensor in tensors:
            if not tensor.is_inference():  # has no version
                stack.enter_context(grad_mode._unsafe_preserve_version_counter(tensor))
        yield


def _data(parameters: Sequence[Tensor]) -> tuple[Tensor, ...]:
    return tuple(p.data for p in parameters)
