"""Tell whether a module call does more than compute its output."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules import module as torch_module

from equipoise.instrument import trees
from equipoise.instrument.hiding_places import hidden_places, own_attributes
from equipoise.instrument.saved_objects import (
    CONSTANT,
    OF_EVERY_MODULE,
    contents,
    is_opaque,
    reachable,
    registered,
)

# Values that no call can change.
_CONSTANTS = (
    type(None),
    bool,
    int,
    float,
    complex,
    str,
    torch.Size,
    torch.dtype,
    torch.device,
)
# Modules of these only write to buffers what later passes of a training read.
_WITH_STATISTICS = ("torch.nn.", "equipoise.")


class CallSurroundings:
    """What a call might change beside computing its output: attributes and arguments.

    Args:
        module: The module that is about to be called.
        arguments: Its arguments.
        recorder: What replaces the methods ``forward``, which the call does not change.
    """

    def __init__(self, module: nn.Module, arguments: Any, recorder: Any) -> None:
        self._module, self._arguments, self._recorder = module, arguments, recorder
        self._state = _state(module, recorder)
        self._leaves = trees.leaves(arguments)
        self._versions = _versions(self._leaves)

    def unchanged(self) -> bool:
        """Whether nothing has changed; false if an object of unknown kind is within reach."""
        return (
            all(_is_tensor(leaf) or isinstance(leaf, _CONSTANTS) for leaf in self._leaves)
            and _same(self._leaves, trees.leaves(self._arguments))
            and all(tensor._version == version for tensor, version in self._versions)
            and _same(self._state, _state(self._module, self._recorder))
        )


def _state(module: nn.Module, recorder: Any) -> list[Any] | None:
    """All that a module and those inside it keep, one after another.

    Returns:
        Objects and what they hold; ``None`` if one cannot be looked into, such as a
        ``queue.SimpleQueue``.
    """
    fixed = registered(module) | {id(recorder)}
    reached = [value for _, value in reachable(own_attributes(module), fixed)]
    if any(map(is_opaque, reached)):
        return None
    state: list[Any] = []
    for inner in module.modules():
        state += _own(inner)
    for _, place in hidden_places(module):
        state += [*place.entries, *place.entries.values()]
    for value in reached:
        state += contents(value)
    known = fixed.union(map(id, reached))
    if not all(isinstance(item, CONSTANT) or id(item) in known for item in state):
        return None
    return [*state, *_versions(reached)]


def _own(module: nn.Module) -> list[Any]:
    """A module's mode, attributes and buffers, but not what batch norms write to buffers.

    Whoever replays the model restores parameters, and the buffers' values.
    """
    own = [(name, v) for name, v in vars(module).items() if name not in OF_EVERY_MODULE]
    buffers = module._buffers
    state = [module.training, *(item for entry in own for item in entry), *buffers.values()]
    if not type(module).__module__.startswith(_WITH_STATISTICS):
        state += [version for _, version in versions(list(buffers.values()))]
    return state


def _same(now: list[Any] | None, before: list[Any] | None) -> bool:
    if now is None or before is None:
        return False
    return len(now) == len(before) and all(map(_is_same, now, before))


def _is_same(a: Any, b: Any) -> bool:
    if isinstance(a, tuple) and isinstance(b, tuple):
        return len(a) == len(b) and all(map(_is_same, a, b))
    return a is b or (isinstance(a, int | bytes) and isinstance(b, int | bytes) and a == b)


def is_hooked(module: nn.Module) -> bool:
    """Whether the user's hooks run around the module's forward pass."""
    return bool(
        module._forward_hooks
        or module._forward_pre_hooks
        or torch_module._global_forward_hooks
        or torch_module._global_forward_pre_hooks
    )


def is_plain(output: Any) -> bool:
    """Whether an output may be returned a second time: ordinary tensors, maybe in containers."""
    return all(
        (type(leaf) is Tensor and not torch._C._functorch.is_functorch_wrapped_tensor(leaf))
        or isinstance(leaf, _CONSTANTS)
        for leaf in trees.leaves(output)
    )


def versions(values: Any) -> list[tuple[Tensor, int]]:
    """All tensors with their versions, which in-place changes raise.

    Tensors of inference mode have no version and are left out.
    """
    return _versions(trees.leaves(values))


def _versions(leaves: list[Any]) -> list[tuple[Tensor, int]]:
    return [(t, t._version) for t in leaves if _is_tensor(t) and not t.is_inference()]


def _is_tensor(value: Any) -> bool:
    """The same as ``isinstance``, which is slow for tensors."""
    return type(value) is Tensor or isinstance(value, Tensor)


def cloned(output: Any) -> Any:
    """The same containers with copies of the tensors."""
    return trees.replaced(Tensor, Tensor.clone, output)


def requires_gradient(output: Any) -> bool:
    """Whether a tensor of the output is part of a graph."""
    return any(leaf.requires_grad for leaf in trees.leaves(output) if _is_tensor(leaf))
