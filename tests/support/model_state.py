"""Everything that a probe must restore, as bytes and identities."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn


def fingerprint(model: nn.Module) -> dict[str, Any]:
    """State of a model and of the random generators; equal only if bit-identical."""
    state: dict[str, Any] = dict(_random_states())
    for place, module in model.named_modules(remove_duplicate=False):
        state[f"{place}.training"] = module.training
        state[f"{place}.generators"] = [_generator(value) for value in vars(module).values()]
        state[f"{place}.hooks"] = [len(hooks) for hooks in _hooks(module)]
        for name, parameter in module._parameters.items():
            state[f"{place}.{name}"] = None if parameter is None else _parameter(parameter)
        for name, buffer in module._buffers.items():
            state[f"{place}.{name}"] = _tensor(buffer)
    return state


def differences(before: dict[str, Any], after: dict[str, Any]) -> list[str]:
    return [key for key in before.keys() | after.keys() if before.get(key) != after.get(key)]


def same_bits(a: Tensor, b: Tensor) -> bool:
    return _bits(a) == _bits(b)


def _random_states() -> Iterator[tuple[str, Any]]:
    yield "torch", _bits(torch.get_rng_state())
    yield "python", random.getstate()
    kind, keys, *rest = np.random.get_state()  # noqa: NPY002
    yield "numpy", (kind, keys.tobytes(), *rest)


def _generator(value: Any) -> str | None:
    if isinstance(value, torch.Generator):
        return str(value.get_state().tolist())
    if isinstance(value, dict) and isinstance(value.get("noise"), np.random.Generator):
        return str(value["noise"].bit_generator.state)
    return None


def _hooks(module: nn.Module) -> Iterator[dict[Any, Any]]:
    for name, value in vars(module).items():
        if name.endswith("_hooks"):
            yield value


def _parameter(parameter: nn.Parameter) -> tuple[Any, ...]:
    return (*_tensor(parameter), parameter.requires_grad, _tensor(parameter.grad))


def _tensor(tensor: Tensor | None) -> tuple[Any, ...]:
    return () if tensor is None else (id(tensor), tensor.data_ptr(), _bits(tensor))


def _bits(tensor: Tensor) -> tuple[Any, ...]:
    flat = tensor.detach().contiguous().reshape(-1)
    return (tensor.dtype, tensor.shape, tensor.stride(), bytes(flat.view(torch.uint8).numpy()))
