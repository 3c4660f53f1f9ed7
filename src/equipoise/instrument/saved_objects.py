"""What modules keep outside of parameters and buffers: copied and restored in place.

A forward pass may count its calls, average activations into a plain tensor, fill a cache or a
queue. Containers and objects stay the same objects: their contents are restored. Tensors and
arrays are the leaves, which have values of their own; for a while copies may stand in for them.
"""

from __future__ import annotations

import argparse
import array
import ctypes
import functools
import io
import queue
import random
import sys
import sysconfig
import threading
import types
import warnings
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Protocol, TypeAlias

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler
from torch.utils.data import DataLoader, Dataset, Sampler
from torch.utils.data.dataloader import _BaseDataLoaderIter

from equipoise.instrument.containers import (
    Container,
    Elements,
    Entries,
    Memory,
    Place,
    Text,
    Waiting,
    attributes_of,
    itself,
    of_function,
)
from equipoise.records.wording import first_sentence

OwnGenerator: TypeAlias = (
    torch.Generator
    | np.random.Generator
    | np.random.RandomState
    | np.random.BitGenerator
    | random.Random
)
Named: TypeAlias = tuple[str, Any]
# What stands in for a tensor or an array, by the id of the original.
Replacements: TypeAlias = Mapping[int, Any]

# Parameters, buffers, children and hooks.
OF_EVERY_MODULE = vars(nn.Module())
# Nothing in them can change, or nothing that they do depends on a training.
CONSTANT = (
    int, float, complex, str, bytes, type(None), range, slice, type, frozenset, types.FunctionType,
    types.BuiltinFunctionType, types.ModuleType, types.MappingProxyType, np.generic, np.dtype,
    torch.dtype, torch.device, torch.Size, torch.layout, torch.memory_format,
    property, staticmethod, classmethod, functools.cached_property, types.MemberDescriptorType,
    types.GetSetDescriptorType,
)  # fmt: skip
_CONSTANT_TYPES = frozenset((*CONSTANT, bool))
_WRITTEN_WHOLE = (list, deque, set, bytearray, array.array)
# What surrounds a model, and is not its state.
_SURROUNDINGS = (DataLoader, Dataset, Sampler)
# PyTorch's objects that a model may use in its forward pass, as in an inner training.
_OF_TORCH = (Optimizer, LRScheduler, torch.amp.GradScaler)
_OF_C = ctypes.c_int.__mro__[-2]
_FRAMEWORKS = frozenset(
    {"torch", "numpy", "lightning", "lightning_fabric", "pytorch_lightning", "accelerate"}
)
_LEFT_ALONE = (sys.stdlib_module_names - {"__main__", "collections", "types"}) | _FRAMEWORKS
STANDARD_LIBRARY = sysconfig.get_path("stdlib")
# What they are made of is looked at; they themselves do not change.
_TRANSPARENT = (types.MethodType, functools.partial, weakref.ref, OwnGenerator)
_WALKED = (
    types.SimpleNamespace, argparse.Namespace, queue.Queue, threading.local,
    io.StringIO, io.BytesIO, _OF_C, np.random.SeedSequence, *_OF_TORCH,
    queue.SimpleQueue, _BaseDataLoaderIter,
    weakref.ref, weakref.WeakKeyDictionary, weakref.WeakValueDictionary, weakref.WeakSet,
)  # fmt: skip


class Leaf(Protocol):
    """A tensor or array with a copy of its values."""

    def restore(self) -> None:
        """Write the values back."""

    def replacement(self) -> Any:
        """A new tensor or array with these values."""


class SavedObjects:
    """The contents of objects, as they are when this object is built.

    Args:
        roots: Names, for errors, and objects.
        fixed: Ids of objects that something else restores, such as parameters and modules.
        save_tensor: Makes the leaf of a tensor.
        places: Further containers, such as :func:`.hidden_places`.

    Raises:
        ValueError: If an object among them can neither be copied nor put back.

    Examples:
        >>> calls = [0]
        >>> saved = SavedObjects([("calls", calls)], set(), lambda tensor: None)
        >>> calls[0] += 1
        >>> _ = saved.restore()
        >>> calls
        [0]
    """

    def __init__(
        self,
        roots: Iterable[Named],
        fixed: set[int],
        save_tensor: Callable[[Tensor], Leaf],
        places: Iterable[Place] = (),
    ) -> None:
        self._containers: list[Container] = [place for _, place in places]
        self._leaves: dict[int, Leaf] = {}
        self._tuples: dict[int, tuple[Any, ...]] = {}
        self._iterators: dict[int, tuple[Any, Any]] = {}
        for place, value in reachable(roots, fixed):
            try:
                self._save(place, value, save_tensor)
            except (RuntimeError, NotImplementedError, TypeError, RecursionError) as error:
                raise ValueError(
                    f"{place} is a {type(value).__name__}, which cannot be copied "
                    f"({first_sentence(error).removesuffix('.')}), so "
                    "a probe could not put it back as it was. Take it off the model while it is "
                    "probed, or make it anew in each forward pass."
                ) from error

    def _save(self, place: str, value: Any, save_tensor: Callable[[Tensor], Leaf]) -> None:
        if isinstance(value, _BaseDataLoaderIter):
            raise TypeError("what was taken from it cannot be put back")
        if isinstance(value, Tensor):
            self._leaves[id(value)] = save_tensor(value)
        elif isinstance(value, np.ndarray):
            self._leaves[id(value)] = _SavedArray(value)
        elif isinstance(value, tuple):
            self._tuples[id(value)] = value
        elif _is_moved_on(value):
            self._iterators[id(value)] = value, _copied(value)
        elif isinstance(value, dict):
            self._containers.append(Entries(value))
        elif isinstance(value, _WRITTEN_WHOLE):
            self._containers.append(Elements(value))
        elif isinstance(value, io.StringIO | io.BytesIO):
            self._containers.append(Text(value))
        elif isinstance(value, queue.SimpleQueue):
            self._containers.append(Waiting(value))
        elif isinstance(value, _OF_C):
            self._containers.append(Memory(value))
        elif isinstance(value, types.FunctionType):
            self._containers.extend(of_function(value))
        if not isinstance(value, (types.FunctionType, *_TRANSPARENT)):
            self._containers.extend(attributes_of(value))

    def replacements(self) -> dict[int, Any]:
        """New tensors and arrays with the saved values, and iterators at the saved place."""
        return {key: leaf.replacement() for key, leaf in self._leaves.items()} | self._iterated()

    def fill(self, replacements: Replacements) -> None:
        """Restore the contents of all containers, with replacements where given."""
        choose = self.chooser(replacements)
        for container in self._containers:
            container.fill(choose)

    def restore(self) -> dict[int, Any]:
        """Restore contents and values.

        Returns:
            What replaces iterators, which cannot be moved back: copies at the place of the
            originals.
        """
        iterated = self._iterated()
        self.fill(iterated)
        for leaf in self._leaves.values():
            leaf.restore()
        return iterated

    def _iterated(self) -> dict[int, Any]:
        return {key: _copied(kept) for key, (_, kept) in self._iterators.items()}

    def chooser(self, replacements: Replacements) -> Callable[[Any], Any]:
        """What stands for a value: a replacement, also inside tuples, or the value itself."""
        if not replacements:
            return itself

        def choose(value: Any) -> Any:
            found = replacements.get(id(value), value)
            if found is value and id(value) in self._tuples:
                chosen = [choose(item) for item in value]
                if any(a is not b for a, b in zip(chosen, value, strict=True)):
                    made = type(value)
                    return made(*chosen) if hasattr(value, "_fields") else made(chosen)
            return found

        return choose


def is_of_others(top: str) -> bool:
    """Whether a module is Python's or a framework's, and no file of the user's of that name."""
    if top not in _LEFT_ALONE:
        return False
    file = getattr(sys.modules.get(top), "__file__", None)
    return file is None or top in _FRAMEWORKS or file.startswith(STANDARD_LIBRARY)


def registered(model: nn.Module) -> set[int]:
    """Ids of a model's modules, parameters and buffers."""
    return {
        id(item)
        for module in model.modules()
        for item in (module, *module._parameters.values(), *module._buffers.values())
        if item is not None
    }


def reachable(roots: Iterable[Named], fixed: set[int]) -> Iterator[Named]:
    """Every object that roots consist of and that may change, once each, in order.

    These are tensors, arrays, random generators, iterators, containers, and objects with
    attributes, but none of the standard library's or of a training framework's.

    Args:
        roots: Names and objects.
        fixed: Ids of objects that are passed over.
    """
    seen: dict[int, Any] = {}  # keeps objects alive, so that ids stay theirs
    waiting = [root for root in roots if _may_change(root[1])]
    waiting.reverse()
    while waiting:
        place, value = waiting.pop()
        if id(value) in seen or id(value) in fixed or _is_left_alone(value):
            continue
        seen[id(value)] = value
        yield place, value
        waiting.extend(reversed(_parts(place, value)))


def _is_left_alone(value: Any) -> bool:
    if isinstance(value, Tensor | np.ndarray | dict | tuple | nn.Module | OwnGenerator):
        return isinstance(value, random.SystemRandom)  # it has no state
    if isinstance(value, (*_WRITTEN_WHOLE, *_WALKED, types.MethodType, functools.partial)):
        return False
    if type(value).__module__ == "multiprocessing.sharedctypes":
        return False
    if isinstance(value, types.FunctionType):
        return not _keeps_something(value)
    if isinstance(value, (*CONSTANT, *_SURROUNDINGS)):
        return True
    if is_iterator(value):
        return False
    return is_of_others(type(value).__module__.partition(".")[0])


def is_opaque(value: Any) -> bool:
    """Whether a look at it does not tell if it was used, as :func:`contents` would need to."""
    kinds = (io.StringIO, io.BytesIO, queue.SimpleQueue, _OF_C, _BaseDataLoaderIter)
    return _is_moved_on(value) or isinstance(value, kinds)


def contents(value: Any) -> list[Any]:
    r"""Everything that one of the :func:`reachable` objects holds; an array's bytes.

    Examples:
        >>> contents({"a": [1]}), contents(np.zeros(1, np.int8))
        (['a', [1]], [b'\x00'])
    """
    if isinstance(value, dict):
        return [*value, *value.values()]
    if isinstance(value, (*_WRITTEN_WHOLE, tuple)):
        return [*value]
    if isinstance(value, np.ndarray):
        return [value.tobytes()]
    if isinstance(value, Tensor | OwnGenerator):
        return []
    if isinstance(value, types.MethodType):
        return [value.__self__, value.__func__]
    if isinstance(value, functools.partial):
        return [value.func, *value.args, *value.keywords.values()]
    if isinstance(value, weakref.ref):
        return [value()]
    function = isinstance(value, types.FunctionType)
    parts = of_function(value) if function else attributes_of(value)
    return [item for part in parts for entry in part.entries.items() for item in entry]


def is_iterator(value: Any) -> bool:
    """Whether it is an iterator of Python's own, which every use moves on."""
    kind = type(value)
    known = kind.__module__ == "itertools" or kind.__module__ == "builtins"
    return (known and hasattr(kind, "__next__")) or isinstance(value, types.GeneratorType)


def _parts(place: str, value: Any) -> list[Named]:
    """What a value consists of, without constants."""
    found: list[Named] = []
    if isinstance(value, dict):
        entries = Entries(value).entries
        found = [(f"{place}[{_key(k)}]", v) for k, v in entries.items() if _may_change(v)]
        found += [(f"a key of {place}", k) for k in entries if _may_change(k)]
    elif isinstance(value, list | tuple | deque | set):
        found = [(f"{place}[{i}]", v) for i, v in enumerate(value) if _may_change(v)]
    elif isinstance(value, np.ndarray) and value.dtype.hasobject:
        found = [(f"{place}[{i}]", v) for i, v in enumerate(value.flat) if _may_change(v)]
    if isinstance(value, types.MethodType):
        return [(place, value.__self__)]
    if isinstance(value, functools.partial):
        items = (value.func, *value.args, *value.keywords.values())
        return [(place, item) for item in items if _may_change(item)]
    if isinstance(value, weakref.ref):
        return [(place, value())]
    if isinstance(value, OwnGenerator) or _is_moved_on(value):
        return []
    function = isinstance(value, types.FunctionType)
    parts = of_function(value) if function else attributes_of(value)
    named = [entry for part in parts for entry in part.entries.items()]
    return found + [(f"{place}.{name}", item) for name, item in named if _may_change(item)]


def _is_moved_on(value: Any) -> bool:
    """Whether its place changes with its use, and cannot be set: a copy takes its place."""
    return is_iterator(value) or isinstance(value, np.random.SeedSequence)


def _key(key: Any) -> str:
    return f"{key!r:.40}" if isinstance(key, str | int) else type(key).__name__


def _may_change(value: Any) -> bool:
    if type(value) is types.FunctionType:
        return _keeps_something(value)
    return type(value) not in _CONSTANT_TYPES


def _keeps_something(function: types.FunctionType) -> bool:
    """Whether a function of the user has attributes, or variables of the one around it."""
    if not function.__closure__ and not function.__dict__:
        return False
    own = (function.__module__ or "").partition(".")[0]
    return own != "equipoise" and not is_of_others(own)


class _SavedArray:
    __slots__ = ("_array", "_values")

    def __init__(self, value: np.ndarray[Any, Any]) -> None:
        self._array, self._values = value, value.copy()

    def restore(self) -> None:
        if self._array.flags.writeable:
            self._array[...] = self._values

    def replacement(self) -> np.ndarray[Any, Any]:
        return self._values.copy()


def _copied(iterator: Any) -> Any:
    """An iterator over the same objects, at the same place; a generator raises ``TypeError``."""
    if isinstance(iterator, np.random.SeedSequence):
        return type(iterator)(**iterator.state)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of itertools, from Python 3.12 on
        make, arguments, *state = iterator.__reduce__()
        made = make(*_copied_inside(arguments))
        for place in state:
            # What a cycle has seen so far is a list that every pass extends.
            inside = isinstance(place, tuple)
            made.__setstate__(_copied_inside(place, lists=True) if inside else place)
    return made


def _copied_inside(values: tuple[Any, ...], *, lists: bool = False) -> tuple[Any, ...]:
    return tuple(
        _copied(value)
        if is_iterator(value)
        else [*value]
        if lists and isinstance(value, list)
        else value
        for value in values
    )
