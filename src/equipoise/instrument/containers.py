"""Containers and what they hold at one time, to be filled with it again in place.

Each takes a function that chooses what stands for a value, :func:`itself` for the value as it is.
"""

from __future__ import annotations

import array
import contextlib
import ctypes
import io
import queue
import types
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable
from operator import is_
from typing import Any, Protocol, TypeAlias

from torch import Tensor


class Container(Protocol):
    """Something whose contents can be put back."""

    def fill(self, choose: Callable[[Any], Any]) -> None:
        """Put back what is chosen."""


class NamedContainer(Container, Protocol):
    """One whose contents have names."""

    entries: dict[str, Any]


# What an empty class has, and names that Python writes to when it is asked for them.
_OF_PYTHON = frozenset((
    *vars(type("Empty", (), {})), "__annotations__", "__annotate__", "__annotations_cache__",
    "__annotate_func__", "__slots__", "__abstractmethods__", "__orig_bases__", "__parameters__",
    "__static_attributes__", "__firstlineno__", "__type_params__", "_abc_impl",
))  # fmt: skip
_OF_ELEMENTS = (list, deque, set, bytearray, array.array)
_WITHOUT_ATTRIBUTES = frozenset((dict, tuple, *_OF_ELEMENTS))
Place: TypeAlias = tuple[str, NamedContainer]


def itself(value: Any) -> Any:
    """Choose the value as it is."""
    return value


class Entries:
    """A dictionary and its entries, in order."""

    __slots__ = ("_value", "entries")

    def __init__(self, value: dict[Any, Any]) -> None:
        self._value, self.entries = value, dict(_kind_of(value).items(value))

    def fill(self, choose: Callable[[Any], Any]) -> None:
        """Put back what is chosen."""
        value, entries = self._value, self.entries
        if choose is not itself:
            entries = {key: choose(item) for key, item in entries.items()}
        refill(value, entries)


class Elements:
    """A list, queue, set or array and its elements."""

    __slots__ = ("_elements", "_kind", "_value")

    def __init__(self, value: Any) -> None:
        self._value = value
        self._kind: Any = next(kind for kind in _OF_ELEMENTS if isinstance(value, kind))
        self._elements = self._present()

    def _present(self) -> list[Any]:
        return [*self._kind.__iter__(self._value)]  # a class of the user's may yield others

    def fill(self, choose: Callable[[Any], Any]) -> None:
        """Put back what is chosen."""
        value, kind, present = self._value, self._kind, self._present()
        elements = self._elements if choose is itself else [*map(choose, self._elements)]
        if len(present) == len(elements) and all(map(is_, present, elements)):
            return
        if kind is set:
            set.clear(value)
            set.update(value, elements)
        elif kind is array.array:
            value[:] = array.array(value.typecode, elements)
        elif kind is deque:
            deque.clear(value)
            deque.extend(value, elements)
        else:
            kind.__setitem__(value, slice(None), elements)


class Text:
    """A text or bytes in memory that are written and read as a file, and the place in them."""

    __slots__ = ("_place", "_stream", "_text")

    def __init__(self, stream: io.StringIO | io.BytesIO) -> None:
        self._stream: Any = stream
        self._text, self._place = self._present()

    def _present(self) -> tuple[Any, int]:
        stream = self._stream
        return (None, 0) if stream.closed else (stream.getvalue(), stream.tell())

    def fill(self, choose: Callable[[Any], Any]) -> None:
        """Put the text back, unless it was closed before."""
        stream = self._stream
        if self._text is None or (self._text, self._place) == self._present():
            return
        stream.seek(0)
        stream.truncate()
        stream.write(self._text)
        stream.seek(self._place)


class Waiting:
    """What waits in a queue that shows its elements to none but who takes them."""

    __slots__ = ("_elements", "_queue")

    def __init__(self, value: queue.SimpleQueue[Any]) -> None:
        self._queue = value
        self._elements = self._taken()
        self._put(self._elements)

    def _taken(self) -> list[Any]:
        found = []
        with contextlib.suppress(queue.Empty):
            while True:
                found.append(self._queue.get_nowait())
        return found

    def _put(self, elements: list[Any]) -> None:
        for element in elements:
            self._queue.put(element)

    def fill(self, choose: Callable[[Any], Any]) -> None:
        """Put back what is chosen."""
        self._taken()
        self._put([*map(choose, self._elements)])


class Memory:
    """The memory of a number, an array or a structure of C, which processes may share."""

    __slots__ = ("_bytes", "_value")

    def __init__(self, value: Any) -> None:
        self._value = value
        self._bytes = ctypes.string_at(ctypes.addressof(value), ctypes.sizeof(value))

    def fill(self, choose: Callable[[Any], Any]) -> None:
        """Put the bytes back."""
        ctypes.memmove(ctypes.addressof(self._value), self._bytes, len(self._bytes))


class Slots:
    """The attributes of an object that stand in slots."""

    __slots__ = ("_value", "entries")

    def __init__(self, value: Any, names: Iterable[str]) -> None:
        self._value = value
        self.entries = {name: getattr(value, name) for name in names if hasattr(value, name)}

    def fill(self, choose: Callable[[Any], Any]) -> None:
        """Put back what is chosen."""
        for name, item in self.entries.items():
            chosen = choose(item)
            if getattr(self._value, name, None) is not chosen:
                object.__setattr__(self._value, name, chosen)  # also of a frozen dataclass


class TensorAttributes:
    """The attributes of many tensors, most of which have none."""

    __slots__ = ("_kept", "entries")

    def __init__(self, tensors: Iterable[tuple[str, Tensor]]) -> None:
        named = [(name, vars(tensor)) for name, tensor in tensors]
        self._kept = [(present, dict(present)) for _, present in named]
        self.entries: dict[str, Any] = {
            f"{name}.{key}": value for name, present in named for key, value in present.items()
        }

    def fill(self, choose: Callable[[Any], Any]) -> None:
        """Put back what is chosen."""
        for present, entries in self._kept:
            if present or entries:
                refill(present, {key: choose(value) for key, value in entries.items()})


class SomeEntries:
    """Some entries of a dictionary that belongs to others, such as the globals of a file."""

    __slots__ = ("_value", "entries")

    def __init__(self, value: dict[str, Any], names: Iterable[str]) -> None:
        self._value = value
        self.entries = {name: value[name] for name in names if name in value}

    def fill(self, choose: Callable[[Any], Any]) -> None:
        """Put back what is chosen."""
        for name, item in self.entries.items():
            self._value[name] = choose(item)


class ClassEntries:
    """The attributes of a class, its methods among them, but for what Python keeps there."""

    __slots__ = ("_kind", "entries")

    def __init__(self, kind: type) -> None:
        self._kind = kind
        self.entries = self._present()

    def _present(self) -> dict[str, Any]:
        return {
            name: value
            for name, value in vars(self._kind).items()
            if name not in _OF_PYTHON and not hasattr(value, "cache_info")  # set aside instead
        }

    def fill(self, choose: Callable[[Any], Any]) -> None:
        """Put back what is chosen."""
        present = self._present()
        for name in present.keys() - self.entries.keys():
            delattr(self._kind, name)
        for name, item in self.entries.items():
            chosen = choose(item)
            if name not in present or present[name] is not chosen:
                setattr(self._kind, name, chosen)


class Cells:
    """The variables of a surrounding function that a function uses."""

    __slots__ = ("_cells", "entries")

    def __init__(self, function: types.FunctionType) -> None:
        named = zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)
        self._cells = dict(named)
        self.entries = {n: c.cell_contents for n, c in self._cells.items() if _is_filled(c)}

    def fill(self, choose: Callable[[Any], Any]) -> None:
        """Put back what is chosen."""
        for name, item in self.entries.items():
            self._cells[name].cell_contents = choose(item)


class Defaults:
    """The default arguments of a function."""

    __slots__ = ("_function", "entries")

    def __init__(self, function: types.FunctionType) -> None:
        self._function = function
        kept = {name: getattr(function, name) for name in ("__defaults__", "__kwdefaults__")}
        self.entries: dict[str, Any] = {name: value for name, value in kept.items() if value}

    def fill(self, choose: Callable[[Any], Any]) -> None:
        """Put back what is chosen."""
        for name, item in self.entries.items():
            chosen = choose(item)
            if getattr(self._function, name) is not chosen:
                setattr(self._function, name, chosen)


def _is_filled(cell: types.CellType) -> bool:
    try:
        _ = cell.cell_contents
    except ValueError:
        return False
    return True


def of_function(function: types.FunctionType) -> list[NamedContainer]:
    """The variables and attributes of a function."""
    return [Cells(function), Entries(function.__dict__)]


def attributes_of(value: Any) -> list[NamedContainer]:
    """The attributes of an object, in its dictionary and in slots."""
    if type(value) in _WITHOUT_ATTRIBUTES:
        return []
    found: list[NamedContainer] = []
    if isinstance(getattr(value, "__dict__", None), dict):
        found.append(Entries(value.__dict__))
    names = slots_of(type(value))
    if names:
        found.append(Slots(value, names))
    return found


def slots_of(kind: type) -> list[str]:
    """The names of a class's slots, its bases' among them."""
    return [
        name
        for one in kind.__mro__
        for name in _strings(one.__dict__.get("__slots__", ()))
        if name not in ("__dict__", "__weakref__") and not name.startswith("__")
    ]


def _strings(slots: Any) -> tuple[str, ...]:
    return (slots,) if isinstance(slots, str) else tuple(slots)


def refill(value: dict[Any, Any], entries: dict[Any, Any]) -> None:
    """Give a dictionary these entries again, in this order; write only if something differs."""
    kind = _kind_of(value)
    if (
        kind.__len__(value) == len(entries)
        and all(map(is_, kind.__iter__(value), entries))
        and all(map(is_, kind.values(value), entries.values()))
    ):
        return
    for key in [key for key in kind.__iter__(value) if key not in entries]:
        kind.__delitem__(value, key)
    _assign(value, entries)
    if [*kind.__iter__(value)] != [*entries]:  # an entry was removed and came back
        kind.clear(value)
        _assign(value, entries)


def _assign(value: dict[Any, Any], entries: dict[Any, Any]) -> None:
    """Set entries one by one: to a Counter, ``update`` would add them."""
    kind = _kind_of(value)
    for key in entries:
        kind.__setitem__(value, key, entries[key])


def _kind_of(value: dict[Any, Any]) -> Any:
    """Whose methods to call: those of a class of the user's may do more than Python's."""
    return OrderedDict if isinstance(value, OrderedDict) else dict
