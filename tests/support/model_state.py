"""Everything that a probe must restore, as bytes and identities."""

from __future__ import annotations

import copy
import itertools
import random
import warnings
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from types import MethodType
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

# Of every module: parameters, buffers and submodules by name, and hooks by number.
_RESTORED_ELSEWHERE = frozenset(vars(nn.Module()))


def fingerprint(model: nn.Module) -> dict[str, Any]:
    """State of a model and of the random generators; equal only if bit-identical."""
    state: dict[str, Any] = dict(_random_states())
    for place, module in model.named_modules(remove_duplicate=False):
        state[f"{place}.training"] = module.training
        state[f"{place}.hooks"] = [len(hooks) for hooks in _hooks(module)]
        for name, parameter in module._parameters.items():
            state[f"{place}.{name}"] = None if parameter is None else _parameter(parameter)
        for name, buffer in module._buffers.items():
            state[f"{place}.{name}"] = _tensor(buffer)
        for name, value in vars(module).items():
            if name not in _RESTORED_ELSEWHERE:
                state[f"{place}.{name}"] = _content(value)
    return state


def differences(before: dict[str, Any], after: dict[str, Any]) -> list[str]:
    return [key for key in before.keys() | after.keys() if before.get(key) != after.get(key)]


@contextmanager
def left_alone(model: nn.Module) -> Iterator[None]:
    """After the block, the model and the random generators are to have the same bits."""
    before = fingerprint(model)
    yield
    assert differences(before, fingerprint(model)) == []


def same_bits(a: Tensor, b: Tensor) -> bool:
    return _bits(a) == _bits(b)


def _random_states() -> Iterator[tuple[str, Any]]:
    yield "torch", _bits(torch.get_rng_state())
    yield "python", random.getstate()
    kind, keys, *rest = np.random.get_state()  # noqa: NPY002
    yield "numpy", (kind, keys.tobytes(), *rest)


def _content(value: Any) -> Any:
    """A value down to its bits, with the identity of everything that may be shared."""
    match value:
        case Tensor():
            return _tensor(value)
        case np.ndarray():
            return id(value), value.tobytes()
        case torch.Generator():
            return id(value), value.get_state().numpy().tobytes()
        case np.random.Generator():
            return id(value), str(value.bit_generator.state)
        case np.random.RandomState():
            return id(value), str(value.get_state(legacy=False))
        case random.Random():
            return id(value), value.getstate()
        case dict():
            return id(value), [(key, _content(item)) for key, item in value.items()]
        case list() | deque() | tuple():
            return id(value), [_content(item) for item in value]
        case set():
            return id(value), sorted(map(str, value))
        case nn.Module():
            return id(value), fingerprint(value)
        case itertools.count() | itertools.cycle():
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", DeprecationWarning)  # of itertools, from 3.12 on
                return next(copy.deepcopy(value))
        case MethodType():
            return _content(value.__self__)
    if hasattr(value, "__dict__") and not callable(value):
        return id(value), _content(vars(value))
    slots = getattr(type(value), "__slots__", ())
    return value if not slots else (id(value), [_content(getattr(value, s)) for s in slots])


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
    return (
        tensor.dtype,
        tensor.shape,
        tensor.stride(),
        bytes(flat.view(torch.uint8).cpu().numpy()),
    )
