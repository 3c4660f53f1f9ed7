"""Where models keep what is no parameter and no buffer.

Attributes, slots, attributes of classes, hooks, default arguments, and what the users' methods
assign, read or cache in their file.
"""

from __future__ import annotations

import argparse
import array
import dis
import functools
import random
import sys
import sysconfig
import types
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from equipoise.instrument.containers import (
    ClassEntries,
    Defaults,
    Entries,
    Place,
    Slots,
    SomeEntries,
    TensorAttributes,
    slots_of,
)
from equipoise.instrument.saved_objects import (
    OF_EVERY_MODULE,
    STANDARD_LIBRARY,
    Named,
    is_of_others,
)

_Cached = type(functools.cache(len))
_PACKAGES = tuple({sysconfig.get_path("purelib"), sysconfig.get_path("platlib")})
# Containers and numbers that a file may keep for its functions. Classes made of them may be
# anything, such as a dictionary that makes its values when it is asked for them.
_KEPT_IN_A_FILE = frozenset((
    dict, OrderedDict, defaultdict, Counter, list, deque, set, bytearray, array.array,
    types.SimpleNamespace, argparse.Namespace, Tensor, np.ndarray, torch.Generator,
    np.random.Generator, np.random.RandomState, random.Random,
))  # fmt: skip


def own_attributes(model: nn.Module) -> Iterator[Named]:
    """What modules keep that not every module has, by the names of module and attribute.

    Hooks are among them, and what the users' methods keep in default arguments and in containers
    of their file, if it is not that of an installed package.
    """
    named = dict(model.named_modules())
    kinds = _kinds_of(named.values())
    functions = _functions_of(kinds)
    for name, module in named.items():
        place = f"{name}." if name else f"{type(module).__name__}."
        for attribute, value in vars(module).items():
            if attribute not in OF_EVERY_MODULE:
                yield place + attribute, value
            elif attribute.endswith("_hooks") and value:
                hooks = (hook for hook in value.values() if not _is_paused(hook))
                yield from ((place + attribute, hook) for hook in hooks)
    for place, container in _hidden_places(named, kinds, functions):
        for attribute, value in container.entries.items():
            yield f"{place}.{attribute}", value
    for function in functions:
        if _is_installed(function.__code__.co_filename):
            continue
        for name, value in _globals_of(function):
            if type(value) in _KEPT_IN_A_FILE or _is_of_a_user(type(value)):
                yield name, value


def _is_installed(file: str) -> bool:
    """Whether a file is of an installed package, whose containers are tables and no state."""
    return file.startswith((STANDARD_LIBRARY, *_PACKAGES))


def _is_paused(hook: Any) -> bool:
    """Whether it belongs to an observer that is paused instead, as those of this library are."""
    owner = getattr(hook, "__self__", getattr(hook, "func", hook))
    ours = type(owner).__module__.partition(".")[0] == "equipoise"
    return ours or callable(getattr(owner, "while_probed", None))


def hidden_places(model: nn.Module) -> Iterator[Place]:
    """Where modules keep what is not in their dictionaries.

    These are slots, attributes of their classes, and global variables that their methods assign.
    Classes of PyTorch and of training frameworks are passed over.
    """
    named = dict(model.named_modules())
    kinds = _kinds_of(named.values())
    yield from _hidden_places(named, kinds, _functions_of(kinds))


def _hidden_places(
    named: Mapping[str, nn.Module], kinds: Iterable[type], functions: Iterable[types.FunctionType]
) -> Iterator[Place]:
    for name, module in named.items():
        slots = slots_of(type(module))
        if slots:
            yield name or type(module).__name__, Slots(module, slots)
    yield "an attribute of", TensorAttributes(_tensors(named))
    for kind in kinds:
        yield kind.__name__, ClassEntries(kind)
    for function in functions:
        yield function.__qualname__, Entries(function.__dict__)
        yield f"a default of {function.__qualname__}", Defaults(function)
        assigned = _assigned_globals(function.__code__)
        if assigned:
            yield function.__module__ or "", SomeEntries(function.__globals__, assigned)
        for name, value in _globals_of(function):
            if isinstance(value, type) and _is_of_a_user(value) and value not in kinds:
                yield name, ClassEntries(value)
        for file in _modules_of(function):
            assigned = _assigned_attributes(function.__code__)
            if assigned:
                yield file.__name__, SomeEntries(vars(file), assigned)


def _tensors(named: Mapping[str, nn.Module]) -> Iterator[tuple[str, Tensor]]:
    """Parameters and buffers, but for those that are made of other tensors."""
    for name, module in named.items():
        for key, tensor in (*module._parameters.items(), *module._buffers.items()):
            if tensor is not None and not hasattr(tensor, "__tensor_flatten__"):
                yield f"{name}.{key}", tensor


def _kinds_of(modules: Iterable[nn.Module]) -> dict[type, None]:
    """The users' classes of modules, in order."""
    kinds = dict.fromkeys(map(type, modules))  # of which there are few
    return dict.fromkeys(
        k
        for kind in kinds
        for k in kind.__mro__
        if issubclass(k, nn.Module) and not _is_of_a_framework(k)
    )


def _functions_of(kinds: Iterable[type]) -> dict[types.FunctionType, None]:
    """Methods of the users' classes, and the functions of their files that these call."""
    waiting = [value for kind in kinds for value in vars(kind).values()]
    found: dict[types.FunctionType, None] = {}
    seen: set[types.FunctionType] = set()
    while waiting:
        value = waiting.pop()
        if isinstance(value, property):
            waiting += [value.fget, value.fset]
        elif isinstance(value, staticmethod | classmethod | _Cached):
            waiting.append(value.__wrapped__)
        elif isinstance(value, functools.cached_property):
            waiting.append(value.func)
        elif isinstance(value, types.FunctionType) and value not in seen:
            seen.add(value)
            waiting.append(getattr(value, "__wrapped__", None))  # what a decorator calls
            if is_of_others(value.__globals__.get("__name__", "").partition(".")[0]):
                continue  # a decorator of theirs, which bears the function's name
            found[value] = None
            for _, other in _globals_of(value):
                if isinstance(other, types.FunctionType | _Cached):
                    if other.__module__ == value.__module__ or _is_users(other.__module__):
                        waiting.append(other)
                elif _is_of_a_user(kind := other if isinstance(other, type) else type(other)):
                    waiting += vars(kind).values()
    return found


def _globals_of(function: types.FunctionType) -> Iterator[Named]:
    """Global variables that a function reads, in its file and in those that it names."""
    for name in _read_globals(function.__code__):
        if name in function.__globals__:
            yield f"{function.__module__}.{name}", function.__globals__[name]
    for module in _modules_of(function):
        for name in _named(function.__code__):
            if name in vars(module):
                yield f"{module.__name__}.{name}", vars(module)[name]


def _modules_of(function: types.FunctionType) -> Iterator[types.ModuleType]:
    """The user's own files that a function names as modules."""
    names = _named(function.__code__)
    waiting = [function.__globals__.get(name) for name in _read_globals(function.__code__)]
    seen: set[int] = set()
    while waiting:
        module = waiting.pop()
        if isinstance(module, types.ModuleType) and id(module) not in seen:
            seen.add(id(module))
            if _is_users(module.__name__):
                yield module
                waiting += [vars(module).get(name) for name in names]


def function_caches(model: nn.Module) -> list[tuple[type | dict[str, Any], str, Any]]:
    """Methods of users' modules under ``functools.cache``, and functions that these call.

    Their entries cannot be restored.
    """
    kinds = _kinds_of(model.modules())
    found: list[tuple[type | dict[str, Any], str, Any]] = [
        (kind, name, value)
        for kind in kinds
        for name, value in vars(kind).items()
        if isinstance(value, _Cached)
    ]
    for function in _functions_of(kinds):
        names = _read_globals(function.__code__)
        held = ((name, function.__globals__.get(name)) for name in names)
        found += [(function.__globals__, n, v) for n, v in held if isinstance(v, _Cached)]
    return found


@contextmanager
def caches_set_aside(caches: Iterable[tuple[type | dict[str, Any], str, Any]]) -> Iterator[None]:
    """Let new caches stand in for these functions' inside the block.

    A function whose answer depends on the model is computed anew there.
    """
    caches = tuple(caches)
    for place, name, cached in caches:
        fresh = functools.lru_cache(**cached.cache_parameters())(cached.__wrapped__)
        _put(place, name, fresh)
    try:
        yield
    finally:
        for place, name, cached in caches:
            _put(place, name, cached)


def _put(place: type | dict[str, Any], name: str, value: Any) -> None:
    if isinstance(place, dict):
        place[name] = value
    else:
        setattr(place, name, value)


def _is_of_a_framework(kind: type) -> bool:
    own = kind.__module__.partition(".")[0]
    return own == "equipoise" or is_of_others(own)


def _is_of_a_user(kind: type) -> bool:
    """Whether a class is of a file of the user's own, and no module."""
    return not issubclass(kind, nn.Module) and _is_users(kind.__module__)


def _is_users(name: str | None) -> bool:
    """Whether a module is a file of the user's own: neither installed nor of a framework."""
    if not name or name.partition(".")[0] == "equipoise" or is_of_others(name.partition(".")[0]):
        return False
    file = getattr(sys.modules.get(name), "__file__", None)
    return file is not None and not _is_installed(file)


@functools.cache
def _assigned_globals(code: types.CodeType) -> tuple[str, ...]:
    """Global variables that a function or a function inside it assigns."""
    return _globals(code, "STORE_GLOBAL")


@functools.cache
def _assigned_attributes(code: types.CodeType) -> tuple[str, ...]:
    """Attributes, such as variables of other files, that a function assigns."""
    return _globals(code, "STORE_ATTR")


@functools.cache
def _named(code: types.CodeType) -> tuple[str, ...]:
    """Names of variables and attributes that a function or a function inside it uses."""
    inside = (c for c in code.co_consts if isinstance(c, types.CodeType))
    return tuple(dict.fromkeys((*code.co_names, *(n for c in inside for n in _named(c)))))


@functools.cache
def _read_globals(code: types.CodeType) -> tuple[str, ...]:
    """Global variables that a function or a function inside it reads."""
    return _globals(code, "LOAD_GLOBAL")


def _globals(code: types.CodeType, operation: str) -> tuple[str, ...]:
    found = [i.argval for i in dis.get_instructions(code) if i.opname == operation]
    inside = (c for c in code.co_consts if isinstance(c, types.CodeType))
    return tuple(dict.fromkeys((*found, *(n for c in inside for n in _globals(c, operation)))))
