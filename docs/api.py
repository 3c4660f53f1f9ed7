"""Write one page per room for the API reference, from what the rooms export.

Every public name has a section of its own, under the groups that the comments in ``__all__`` name;
what a function returns is documented beside it.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import re
import typing
from pathlib import Path
from types import ModuleType, UnionType

ROOMS = (
    "theory",
    "theory.propagation",
    "probes",
    "diagnosis",
    "layers",
    "pooling",
    "preconditioners",
    "data",
    "models",
    "training",
    "integrations",
    "instrument",
    "records",
    "report",
)
_GROUP = re.compile(r"^\s*#\s*(?P<group>.+)$")
_NAME = re.compile(r'^\s*"(?P<name>\w+)",')


def write_pages(folder: Path) -> None:
    """Write ``index.md``, ``equipoise.md`` and a page for each room; unchanged files stay."""
    folder.mkdir(exist_ok=True)
    documented: set[type] = set()
    pages = {"equipoise": _page("equipoise", documented)}
    pages |= {room: _page(f"equipoise.{room}", documented) for room in ROOMS}
    toctree = "\n".join(pages)
    index = f"# Reference\n\n```{{toctree}}\n:maxdepth: 2\n\n{toctree}\n```\n"
    for name, text in {"index": index, **pages}.items():
        path = folder / f"{name}.md"
        if not path.exists() or path.read_text("utf-8") != text:
            path.write_text(text, "utf-8")


def groups_of(room: ModuleType) -> dict[str, list[str]]:
    """The names that a room exports, under the comments before them in ``__all__``."""
    source = inspect.getsource(room)
    listed = source[source.index("__all__") :].partition("]")[0]
    groups: dict[str, list[str]] = {}
    group = ""
    for line in listed.splitlines()[1:]:
        if match := _GROUP.match(line):
            group = match["group"]
        elif match := _NAME.match(line):
            groups.setdefault(group, []).append(match["name"])
    return groups or {"": list(room.__all__)}


def _page(module: str, documented: set[type]) -> str:
    room = importlib.import_module(module)
    parts = [f"# {module}", (room.__doc__ or "").strip()]
    for group, names in groups_of(room).items():
        level = "##"
        if group:
            parts.append(f"## {group[0].upper()}{group[1:]}")
            level = "###"
        for name in names:
            parts += [f"{level} {name}", _directive(module, name, getattr(room, name))]
            parts += _results(getattr(room, name), room, documented)
    return "\n\n".join(parts) + "\n"


def _directive(module: str, name: str, member: object) -> str:
    if inspect.ismodule(member):
        return _rst(f".. automodule:: {member.__name__}\n   :members:")
    if inspect.isclass(member):
        if module == "equipoise":  # a class can be described once
            return f"See {{py:class}}`{_room_of(member)}.{name}`."
        return _rst(f".. autoclass:: {module}.{name}\n   :members:")
    if callable(member):
        return _rst(f".. autofunction:: {module}.{name}")
    return _rst(f".. autodata:: {_origin(module, name)}.{name}\n   :no-value:")


def _room_of(member: type) -> str:
    return ".".join(member.__module__.split(".")[:2])


def _origin(module: str, name: str) -> str:
    """The module that defines a constant, where its docstring stands."""
    for node in ast.parse(inspect.getsource(importlib.import_module(module))).body:
        if isinstance(node, ast.ImportFrom) and any(alias.name == name for alias in node.names):
            return str(node.module)
    return module


def _results(member: object, room: ModuleType, documented: set[type]) -> list[str]:
    """The records that a function returns, unless the room exports them or they stand above."""
    if not inspect.isfunction(member):
        return []
    try:
        returned = typing.get_type_hints(member).get("return")
    except NameError:  # imported for type checkers only
        return []
    exported = {m for name in room.__all__ if isinstance(m := getattr(room, name), type)}
    parts = []
    for kind in _classes(returned):
        if kind.__module__.startswith("equipoise.") and kind not in exported | documented:
            documented.add(kind)
            path = f"{kind.__module__}.{kind.__qualname__}"
            parts.append(_rst(f".. autoclass:: {path}\n   :members:"))
    return parts


def _classes(hint: object) -> list[type]:
    if isinstance(hint, type) and not typing.get_args(hint):
        return [hint]
    if typing.get_origin(hint) in (tuple, list, typing.Union, UnionType):
        return [kind for part in typing.get_args(hint) for kind in _classes(part)]
    return []


def _rst(text: str) -> str:
    return f"```{{eval-rst}}\n{text}\n```"
