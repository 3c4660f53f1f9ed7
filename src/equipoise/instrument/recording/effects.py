"""What a module call does beside computing its output, as far as it can be seen from outside."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules import module as torch_module
from torch.utils import _pytree as pytree

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


class Surroundings:
    """What a call might change beside computing its output: attributes, and its arguments."""

    def __init__(self, module: nn.Module, arguments: Any) -> None:
        self._module, self._arguments = module, arguments
        self._attributes = _attributes(module)
        self._leaves = _leaves(arguments)
        self._versions = _versions(self._leaves)

    def unchanged(self) -> bool:
        """Whether nothing was changed that can be seen; an object of unknown kind cannot."""
        now = _attributes(self._module)
        return (
            all(_is_tensor(leaf) or isinstance(leaf, _CONSTANTS) for leaf in self._leaves)
            and _same(self._leaves, _leaves(self._arguments))
            and all(tensor._version == version for tensor, version in self._versions)
            and now.keys() == self._attributes.keys()
            and all(_same(now[name], before) for name, before in self._attributes.items())
        )


# What every module has: parameters and buffers are handled by whoever replays.
_MACHINERY = frozenset(vars(nn.Module())) - {"training"} | {"forward"}


def _attributes(module: nn.Module) -> dict[str, Any]:
    return {name: _seen(v) for name, v in vars(module).items() if name not in _MACHINERY}


def _seen(value: Any) -> Any:
    """A container is what it holds, and a tensor has a version."""
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
    """Whether hooks of the user's run around the module's forward pass."""
    return bool(
        module._forward_hooks
        or module._forward_pre_hooks
        or torch_module._global_forward_hooks
        or torch_module._global_forward_pre_hooks
    )


def is_plain(output: Any) -> bool:
    """Whether an output can be given out again: ordinary tensors, in containers at most."""
    return all(
        (type(leaf) is Tensor and not torch._C._functorch.is_functorch_wrapped_tensor(leaf))
        or isinstance(leaf, _CONSTANTS)
        for leaf in _leaves(output)
    )


def versions(values: Any) -> list[tuple[Tensor, int]]:
    """A tensor changed in place has another version; those of inference mode have none."""
    return _versions(_leaves(values))


def _versions(leaves: list[Any]) -> list[tuple[Tensor, int]]:
    return [(t, t._version) for t in leaves if _is_tensor(t) and not t.is_inference()]


def _leaves(values: Any) -> list[Any]:
    """As pytree's, and ten times faster for what most calls take and give."""
    if _is_tensor(values):
        return [values]
    if type(values) in (tuple, list):
        if len(values) == 1 and _is_tensor(values[0]):
            return [values[0]]
        return [leaf for value in values for leaf in _leaves(value)]
    if type(values) is dict:
        return _leaves(list(values.values())) if values else []
    leaves: list[Any] = pytree.tree_leaves(values)
    return leaves


def _is_tensor(value: Any) -> bool:
    """As ``isinstance``, which takes long for a tensor."""
    return type(value) is Tensor or isinstance(value, Tensor)


def copied(output: Any) -> Any:
    """The same containers with copies of the tensors."""
    return pytree.tree_map_only(Tensor, Tensor.clone, output)


def requires_gradient(output: Any) -> bool:
    """Whether a tensor of the output is part of a graph."""
    return any(leaf.requires_grad for leaf in _leaves(output) if _is_tensor(leaf))
