"""Restore a model, its gradients and every random state bit for bit."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd import grad_mode

from equipoise.instrument.compiled import eager
from equipoise.instrument.containers import refill
from equipoise.instrument.hiding_places import (
    caches_set_aside,
    function_caches,
    hidden_places,
    own_attributes,
)
from equipoise.instrument.observers import observers_paused
from equipoise.instrument.process_state import ProcessState
from equipoise.instrument.random_states import RandomStates
from equipoise.instrument.saved_objects import (
    OF_EVERY_MODULE,
    Replacements,
    SavedObjects,
    registered,
)

# Dictionaries that change when hooks or submodules are registered.
_STRUCTURE = tuple(
    name
    for name, value in OF_EVERY_MODULE.items()
    if isinstance(value, dict) and name not in ("_parameters", "_buffers")
)


@contextmanager
def untouched(model: nn.Module) -> Iterator[None]:
    """Restore a model bit for bit on leaving the block, whatever happened in it.

    Restored are parameters and buffers (values, memory and identity), gradients,
    ``requires_grad``, training modes, hooks, submodules, all other attributes of modules with the
    contents of containers and objects, slots, attributes of their classes, global variables that
    their methods assign or keep, the :class:`.ProcessState`, and all :class:`RandomStates` of
    the model. Inside the block, compiled
    models run uncompiled, observers are paused, and cached methods begin with empty caches.

    Raises:
        ValueError: If the model has lazy parameters that no batch has shaped yet, or an attribute
            that cannot be copied, such as a generator.

    Examples:
        >>> layer = nn.BatchNorm1d(2)
        >>> with untouched(layer):
        ...     _ = layer(torch.randn(8, 2))
        >>> layer.running_mean
        tensor([0., 0.])
    """
    refuse_lazy(model)
    refuse_scripted(model)
    process, random_states, modules = ProcessState(), RandomStates(model), ModuleStates(model)
    parameters = SavedParameters(model, copy_gradients=True)
    try:
        with (
            eager(model),
            observers_paused(model),
            parameters.versions_kept(),
            modules.versions_kept(),
            modules.caches_set_aside(),
        ):
            yield
    finally:
        # Autocast caches casts by parameter and does not notice that its values change.
        torch.clear_autocast_cache()
        process.restore()
        random_states.restore()
        modules.restore()
        parameters.restore()


@contextmanager
def surroundings_kept(model: nn.Module) -> Iterator[None]:
    """Restore what a model shares with its copies, while copies are trained inside the block.

    These are random states, the :class:`.ProcessState`, attributes of its modules' classes, and
    what functions keep: closures, default arguments and global variables. Parameters and buffers
    are not restored.

    Raises:
        ValueError: If something of it cannot be copied.

    Examples:
        >>> model = nn.Dropout()
        >>> with surroundings_kept(model):
        ...     first = model(torch.ones(8))
        >>> bool((model(torch.ones(8)) == first).all())
        True
    """
    process, random_states = ProcessState(), RandomStates(model)
    places = own_attributes(model), registered(model), SavedTensor, hidden_places(model)
    shared = SavedObjects(*places)
    try:
        yield
    finally:
        process.restore()
        random_states.restore()
        shared.restore()


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
    refuse_scripted(model)
    process, random_states = ProcessState(), RandomStates(model)
    parameters = SavedParameters(model, others)
    parameters.remove_gradients()
    try:
        with eager(model), torch.inference_mode(False):
            yield parameters
    finally:
        process.restore()
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


class SavedTensor:
    """A tensor, the memory that it is in, and a copy of its values."""

    __slots__ = ("memory", "tensor", "values")

    def __init__(self, tensor: Tensor) -> None:
        self.tensor = tensor
        # Writing to `data` makes no new version: a pending backward pass stays valid.
        self.memory = tensor.data
        self.values = self.memory.clone()

    def restore(self) -> None:
        """Restore memory and values."""
        if self.memory.layout is not torch.strided:
            # Its numbers are in tensors of its own, to which the model may have written.
            self.tensor.data = self.values.clone()
            return
        strided = self.tensor.layout is torch.strided  # others have no pointer
        if strided and _place_of(self.tensor) != _place_of(self.memory):
            self.tensor.data = self.memory
        memory, values = self._once(self.memory), self._once(self.values)
        if memory.is_inference():  # such as a buffer that was assigned in inference mode
            with torch.inference_mode():
                memory.copy_(values)
        else:
            memory.copy_(values)

    def replacement(self) -> Tensor:
        """A new tensor with the saved values, expanded as the original is."""
        once = self._once(self.values)
        made = once.clone() if once is self.values else once.clone().expand_as(self.values)
        vars(made).update(vars(self.tensor))  # what a class of the user's keeps
        return made

    def _once(self, tensor: Tensor) -> Tensor:
        """The elements with a place in memory of their own; an expanded tensor has fewer."""
        if self.memory.layout is not torch.strided or 0 not in self.memory.stride():
            return tensor
        strides = self.memory.stride()
        return tensor[tuple(slice(0, 1) if stride == 0 else slice(None) for stride in strides)]


def _place_of(tensor: Tensor) -> tuple[Any, ...]:
    """Which memory a tensor shows, and as which shape."""
    return tensor.data_ptr(), tensor.shape, tensor.stride()


class _SavedParameter:
    """A tensor with its gradient, its hooks and whether it requires one."""

    __slots__ = ("copy", "gradient", "gradient_copy", "hooks", "requires_grad", "tensor")

    def __init__(self, parameter: Tensor, *, copy_gradient: bool) -> None:
        gradient = parameter.grad if parameter.is_leaf else None
        self.tensor, self.copy = parameter, SavedTensor(parameter)
        self.requires_grad, self.gradient = parameter.requires_grad, gradient
        self.gradient_copy = (
            None if gradient is None or not copy_gradient else SavedTensor(gradient)
        )
        self.hooks = [dict(hooks) for hooks in _tensor_hooks(parameter)]

    def restore(self) -> None:
        self.copy.restore()
        if self.tensor.is_leaf:
            if self.tensor.requires_grad != self.requires_grad:
                self.tensor.requires_grad_(self.requires_grad)
            if self.gradient_copy is not None:
                self.gradient_copy.restore()
            self.tensor.grad = self.gradient
        for now, before in zip(_tensor_hooks(self.tensor), self.hooks, strict=True):
            refill(now, before)

    def replacement(self) -> Tensor:
        """A new tensor with the saved values; one in a graph stands for itself."""
        return self.tensor if self.tensor.requires_grad else self.copy.replacement()


def _tensor_hooks(tensor: Tensor) -> list[dict[Any, Any]]:
    """The hooks of a tensor by kind."""
    kinds = (tensor._backward_hooks, tensor._post_accumulate_grad_hooks)
    return [{} if hooks is None else hooks for hooks in kinds]


class ModuleStates:
    """What all modules of a model keep beside parameters, with copies of it.

    These are modes, buffers, submodules, hooks and attributes of their own, down to the contents
    of containers and objects.

    Args:
        model: Any module without lazy buffers.

    Raises:
        ValueError: If a module has an attribute that cannot be copied.
    """

    def __init__(self, model: nn.Module) -> None:
        self._modules = [_ModuleState(module) for module in model.modules()]
        buffers = [b for state in self._modules for b in state.buffers.values() if b is not None]
        with torch.inference_mode(False):  # an inference tensor could not enter a graph
            self._buffers = {id(buffer): SavedTensor(buffer) for buffer in buffers}
            self._tensors: list[Tensor] = [copy.tensor for copy in self._buffers.values()]
            self._without_copies: list[_SavedParameter] = []
            self._objects = SavedObjects(
                own_attributes(model),
                registered(model),
                self._saved_tensor,
                hidden_places(model),
            )
        self._caches = function_caches(model)

    def _saved_tensor(self, tensor: Tensor) -> _SavedParameter:
        saved = _SavedParameter(tensor, copy_gradient=True)
        self._tensors.append(tensor)
        if tensor.requires_grad:
            self._without_copies.append(saved)
        return saved

    def versions_kept(self) -> AbstractContextManager[None]:
        """Leave the version counters of buffers and attributes as they are inside the block."""
        return _versions_kept(self._tensors)

    def caches_set_aside(self) -> AbstractContextManager[None]:
        """Leave caches of methods as they are, whatever is called inside the block."""
        return caches_set_aside(self._caches)

    def use_copies(self) -> None:
        """Restore all modes, and put new copies of saved buffers and attributes in the modules."""
        copies = {key: copy.replacement() for key, copy in self._buffers.items()}
        copies |= self._objects.replacements()
        for state in self._modules:
            state.capture_structure()  # hooks may have been registered since
        self._use(copies)

    def use_originals(self) -> None:
        """Restore all modes, and put the originals back, with the values that they have."""
        self._use({})

    def restore(self) -> None:
        """Restore modes, buffers, attributes and their values."""
        self._use(self._objects.restore())
        for copy in self._buffers.values():
            copy.restore()

    def _use(self, replacements: Replacements) -> None:
        choose = self._objects.chooser(replacements)
        for state in self._modules:
            state.restore(replacements, choose)
        self._objects.fill(replacements)
        for saved in self._without_copies:
            saved.copy.restore()


class _ModuleState:
    """A module's attributes, its buffers by name, and its submodules and hooks."""

    __slots__ = (
        "attributes", "buffers", "kind", "module", "parameters", "registered", "structure",
    )  # fmt: skip

    def __init__(self, module: nn.Module) -> None:
        self.module = module
        self.kind = type(module)
        self.attributes = dict(vars(module))
        self.buffers = dict(module._buffers)
        self.registered = dict(module._parameters)
        self.capture_structure()

    def capture_structure(self) -> None:
        """Note the present submodules and hooks, of modules and parameters."""
        attributes = vars(self.module)
        parts = [attributes[name] for name in _STRUCTURE if name in attributes]
        self.structure = [(part, dict(part)) for part in parts]
        self.parameters = [
            (p, [dict(hooks) for hooks in _tensor_hooks(p)])
            for p in self.module._parameters.values()
            if p is not None
        ]

    def restore(self, replacements: Replacements, choose: Callable[[Any], Any]) -> None:
        """Restore structure, parameters by name, attributes, and buffers or replacements."""
        module, attributes = self.module, self.attributes
        if type(module) is not self.kind:  # a parametrisation changes it
            module.__class__ = self.kind
        if replacements and len(attributes) > len(OF_EVERY_MODULE):
            attributes = {name: choose(value) for name, value in attributes.items()}
        refill(vars(module), attributes)
        refill(module._parameters, self.registered)  # a forward pass may add some
        for part, entries in self.structure:
            if part or entries:
                refill(part, entries)
        for parameter, hooks in self.parameters:
            for now, before in zip(_tensor_hooks(parameter), hooks, strict=True):
                refill(now, before)
        if self.buffers or module._buffers:
            refill(module._buffers, {k: choose(b) for k, b in self.buffers.items()})


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


def refuse_scripted(model: nn.Module) -> None:
    """Refuse what TorchScript keeps, whose attributes and parameters cannot be put back.

    Raises:
        ValueError: Naming the module.
    """
    for name, module in model.named_modules():
        if isinstance(module, torch.jit.ScriptModule):
            raise ValueError(
                f"{name or 'the model'} is a {type(module).__name__} of torch.jit, whose state "
                "cannot be put back as it was. Give the module that it was made from."
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
