"""Names that a room imports on first use.

What shows a stored report needs records of many rooms and nothing that computes: rooms that import
all they export would make it wait for torch and scipy.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Mapping
from types import ModuleType
from typing import Any


class _Room(ModuleType):
    """A package that imports the names it exports on first use."""

    _homes: Mapping[str, str]

    def __getattr__(self, name: str) -> Any:
        if name not in self._homes:
            raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}")
        home = importlib.import_module(f"{self.__name__}.{self._homes[name]}")
        found = self.__dict__[name] = getattr(home, name)
        return found

    def __setattr__(self, name: str, value: Any) -> None:
        # Importing the module probes.landscape would put it where the function of that name is.
        if not (isinstance(value, ModuleType) and name in self._homes):
            super().__setattr__(name, value)

    def __dir__(self) -> list[str]:
        return sorted({*self.__dict__, *self._homes})


def import_on_first_use(room: str, names: Mapping[str, str]) -> None:
    """Let a room import what it exports when it is asked for.

    Args:
        room: The package's ``__name__``.
        names: What it exports, separated by spaces, by the module inside that defines it.
    """
    module = sys.modules[room]
    module.__dict__["_homes"] = {name: home for home, own in names.items() for name in own.split()}
    module.__class__ = _Room
