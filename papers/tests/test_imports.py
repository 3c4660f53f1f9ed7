"""Rooms import what docs/architecture.md allows, and only public names of the library."""

from __future__ import annotations

import ast
import importlib
import re
from functools import cache
from pathlib import Path

import pytest

PAPERS = Path(__file__).parents[1]
PACKAGE = PAPERS / "src" / "equipoise_papers"
LIBRARY = PAPERS.parent / "src" / "equipoise"
ROW = re.compile(r"^\| `(?P<room>\w+)` \| (?P<allowed>[^|]*) \|", re.MULTILINE)
FILES = sorted(PACKAGE.rglob("*.py"))


def allowed_imports() -> dict[str, set[str]]:
    """Read the table of the architecture page: room, rooms it may import."""
    page = (PAPERS / "docs" / "architecture.md").read_text(encoding="utf-8")
    return {row["room"]: set(re.findall(r"`(\w+)`", row["allowed"])) for row in ROW.finditer(page)}


def rooms() -> set[str]:
    return {
        path.stem
        for path in PACKAGE.iterdir()
        if path.stem[0] != "_" and (path.is_dir() or path.suffix == ".py")
    }


def imported(tree: ast.AST, package: str) -> list[str]:
    """Every dotted name that is imported from a package, also inside functions."""
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "relative imports hide which room is entered"
            found += [f"{node.module}.{alias.name}" for alias in node.names]
    return [name for name in found if name.split(".")[0] == package]


def files_of(room: str) -> list[Path]:
    return [
        path for path in FILES if path.relative_to(PACKAGE).parts[0].removesuffix(".py") == room
    ]


def test_every_room_stands_in_the_table():
    assert rooms() == set(allowed_imports())


@pytest.mark.parametrize("room", sorted(rooms()))
def test_a_room_imports_only_what_the_table_allows(room):
    allowed = allowed_imports()[room] | {room}
    for path in files_of(room):
        names = imported(ast.parse(path.read_text(encoding="utf-8")), "equipoise_papers")
        entered = {name.split(".")[1] for name in names} & rooms()
        assert entered <= allowed, f"{path} imports {sorted(entered - allowed)}"


def test_the_table_has_no_cycles():
    table = allowed_imports()
    settled: set[str] = set()
    while table:
        free = {room for room, allowed in table.items() if allowed <= settled}
        assert free, f"these rooms import each other in a circle: {sorted(table)}"
        settled |= free
        table = {room: allowed for room, allowed in table.items() if room not in free}


@cache
def public_names(room: str) -> set[str]:
    """Names that users may import from a room of the library."""
    if room == "files":
        return {"remove_abandoned", "write_bytes", "write_text"}
    return set(getattr(importlib.import_module(f"equipoise.{room}"), "__all__", ()))


@cache
def library_rooms() -> set[str]:
    return {path.parent.name for path in LIBRARY.glob("*/__init__.py")} | {"files"}


class PrivateUses(ast.NodeVisitor):
    """Finds imports and attributes of the library that are not public."""

    def __init__(self) -> None:
        self.found: list[str] = []
        self._rooms: dict[str, str] = {}  # what the file calls each room that it imports

    def visit_Import(self, node: ast.Import) -> None:  # as ast calls it
        self.found += [a.name for a in node.names if a.name.split(".")[0] == "equipoise"]

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        package, _, room = (node.module or "").partition(".")
        if package != "equipoise":
            return
        for alias in node.names:
            if not room:
                if alias.name in library_rooms():
                    self._rooms[alias.asname or alias.name] = alias.name
                elif alias.name not in {
                    "__version__",
                    *importlib.import_module("equipoise").__all__,
                }:
                    self.found.append(f"equipoise.{alias.name}")
            elif room not in library_rooms() or alias.name not in public_names(room):
                self.found.append(f"equipoise.{room}.{alias.name}")

    def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
        """A local variable may have the name of a room."""
        hidden = {n.id for n in ast.walk(node) if isinstance(n, ast.Name) and not _is_read(n)}
        hidden |= {n.arg for n in ast.walk(node) if isinstance(n, ast.arg)}
        before = self._rooms
        self._rooms = {name: room for name, room in before.items() if name not in hidden}
        self.generic_visit(node)
        self._rooms = before

    def visit_Attribute(self, node: ast.Attribute) -> None:
        if isinstance(node.value, ast.Name) and node.value.id in self._rooms:
            room = self._rooms[node.value.id]
            if node.attr not in public_names(room):
                self.found.append(f"equipoise.{room}.{node.attr}")
        self.generic_visit(node)


def _is_read(name: ast.Name) -> bool:
    return isinstance(name.ctx, ast.Load)


def private_uses(source: str) -> list[str]:
    uses = PrivateUses()
    uses.visit(ast.parse(source))
    return uses.found


def test_of_the_library_only_public_names_are_used():
    used = {str(path): private_uses(path.read_text(encoding="utf-8")) for path in FILES}
    assert {path: names for path, names in used.items() if names} == {}


@pytest.mark.parametrize(
    ("source", "name"),
    [
        ("from equipoise.records.codec import to_plain", "equipoise.records.codec.to_plain"),
        ("from equipoise.numerics import growth", "equipoise.numerics.growth"),
        ("from equipoise.theory import whole", "equipoise.theory.whole"),
        ("import equipoise.theory.table", "equipoise.theory.table"),
        ("from equipoise import theory as t\nt.whole(1)", "equipoise.theory.whole"),
        ("def f():\n    from equipoise import models\n    models.norms", "equipoise.models.norms"),
        ("from equipoise.files import Path", "equipoise.files.Path"),
    ],
)
def test_private_names_would_be_found(source, name):
    assert private_uses(source) == [name]


@pytest.mark.parametrize(
    "source",
    [
        "from equipoise.records import to_plain",
        "from equipoise import theory\ntheory.explosion_rate('relu', 8)",
        "from equipoise import data\ndef f(data):\n    return data.anything",
        "from equipoise.files import write_text",
        "from equipoise import __version__, BNP",
    ],
)
def test_public_ones_are_not(source):
    assert private_uses(source) == []
