"""Tell whether a module call does more than compute its output."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules import module as torch_module

from equipoise.instrument import trees

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
# Parameters and buffers are restored by whoever replays the model.
_IGNORED_ATTRIBUTES = frozenset(vars(nn.Module())) - {"training"} | {"forward"}


class CallSurroundings:
    """What a call might change beside computing its output: attributes and arguments.

    Args:
        module: The module that is about to be called.
        arguments: Its arguments.
    """

    def __init__(self, module: nn.Module, arguments: Any) -> None:
        self._module, self._arguments = module, arguments
        self._attributes = _attributes(module)
        self._leaves = trees.leaves(arguments)
        self._versions = _versions(self._leaves)

    def unchanged(self) -> bool:
        """Whether nothing has changed; false if an argument is an object of unknown kind."""
        now = _attributes(self._module)
        return (
            all(_is_tensor(leaf) or isinstance(leaf, _CONSTANTS) for leaf in self._leaves)
            and _same(self._leaves, trees.leaves(self._arguments))
            and all(tensor._version == version for tensor, version in self._versions)
            and now.keys() == self._attributes.keys()
            and all(_same(now[name], before) for name, before in self._attributes.items())
        )


def _attributes(module: nn.Module) -> dict[str, Any]:
    attributes = vars(module).items()
    return {name: _contents(v) for name, v in attributes if name not in _IGNORED_ATTRIBUTES}


def _contents(value: Any) -> Any:
    """Copy containers, one level deep, and note the version of tensors."""
    if isinstance(value, dict):
        return list(value.items())
    if _is_tensor(value):
        return [value, versions(value)]
    return list(value) if isinstance(value, list | set) else value


def _same(a: Any, b: Any) -> bool:
    if isinstance(a, list | tuple) and isinstance(b, list | tuple):
        return len(a) == len(b) and all(map(_same, a, b))
    return a is b or (isinstance(a, int) and isinstance(b, int) and a == b)


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


def copied(output: Any) -> Any:
    """The same containers with copies of the tensors."""
    return trees.replaced(Tensor, Tensor.clone, output)


def requires_gradient(output: Any) -> bool:
    """Whether a tensor of the output is part of a graph."""
    return any(leaf.requires_grad for leaf in trees.leaves(output) if _is_tensor(leaf))
