"""Containers and what they hold at one time, to be filled with it again in place.

Each takes a function that chooses what stands for a value, :func:`itself` for the value as it is.
"""

from __future__ import annotations

import array
import types
from collections import deque
from collections.abc import Callable, Iterable
from operator import is_
from typing import Any, Protocol, TypeAlias


class Container(Protocol):
    """Something whose contents can be put back."""

    def fill(self, choose: Callable[[Any], Any]) -> None:
        """Put back what is chosen."""


class NamedContainer(Container, Protocol):
    """One whose contents have names."""

    entries: dict[str, Any]


Place: TypeAlias = tuple[str, NamedContainer]


def itself(value: Any) -> Any:
    """Choose the value as it is."""
    return value


class Entries:
    """A dictionary and its entries, in order."""

    __slots__ = ("_value", "entries")

    def __init__(self, value: dict[Any, Any]) -> None:
        self._value, self.entries = value, dict(value)

    def fill(self, choose: Callable[[Any], Any]) -> None:
        """Put back what is chosen."""
        value, entries = self._value, self.entries
        if choose is not itself:
            entries = {key: choose(item) for key, item in entries.items()}
        refill(value, entries)


class Elements:
    """A list, queue, set or array and its elements."""

    __slots__ = ("_elements", "_value")

    def __init__(self, value: Any) -> None:
        self._value, self._elements = value, list(value)

    def fill(self, choose: Callable[[Any], Any]) -> None:
        """Put back what is chosen."""
        value = self._value
        elements = self._elements if choose is itself else [*map(choose, self._elements)]
        if len(value) == len(elements) and all(
            a is b for a, b in zip(value, elements, strict=True)
        ):
            return
        if isinstance(value, set):
            value.clear()
            value.update(elements)
        elif isinstance(value, array.array):
            value[:] = array.array(value.typecode, elements)
        elif isinstance(value, deque):
            value.clear()
            value.extend(elements)
        else:
            value[:] = elements


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
    """The attributes of a class that are neither methods nor other descriptors."""

    __slots__ = ("_kind", "entries")

    def __init__(self, kind: type) -> None:
        self._kind = kind
        self.entries = self._present()

    def _present(self) -> dict[str, Any]:
        return {
            name: value
            for name, value in vars(self._kind).items()
            if not (name.startswith("__") or name == "_abc_impl")
            and not (callable(value) or hasattr(type(value), "__get__"))
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
    if (
        len(value) == len(entries)
        and all(map(is_, value, entries))
        and all(map(is_, value.values(), entries.values()))
    ):
        return
    for key in [key for key in value if key not in entries]:
        del value[key]
    _assign(value, entries)
    if [*value] != [*entries]:  # an entry was removed and came back
        value.clear()
        _assign(value, entries)


def _assign(value: dict[Any, Any], entries: dict[Any, Any]) -> None:
    """Set entries one by one: to a Counter, ``update`` would add them."""
    for key in entries:
        value[key] = entries[key]
