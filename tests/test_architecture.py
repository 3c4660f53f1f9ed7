"""The code is built as docs/architecture.md says."""

from __future__ import annotations

import ast
import importlib
import inspect
import re
import subprocess
from pathlib import Path

import pytest

import census

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "src" / "equipoise"
EXPORTED = census.public_names(ROOT)
ROW = re.compile(r"^\| `(?P<room>\w+)` \| (?P<allowed>[^|]*) \|", re.MULTILINE)


def allowed_imports() -> dict[str, set[str]]:
    """Read the table of the architecture page: room, rooms it may import."""
    page = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    return {row["room"]: set(re.findall(r"`(\w+)`", row["allowed"])) for row in ROW.finditer(page)}


def rooms() -> set[str]:
    return {
        p.stem for p in PACKAGE.iterdir() if (p.is_dir() or p.suffix == ".py") and p.stem[0] != "_"
    }


def imported_rooms(source: str, package: str = "equipoise") -> set[str]:
    """Every room named by an import, also inside functions and type-checking blocks."""
    found = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            names = [node.module or ""]
            if node.module == package:
                names = [f"{package}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            pytest.fail("relative imports hide which room is entered; write them in full")
        else:
            continue
        found |= {name.split(".")[1] for name in names if name.startswith(f"{package}.")}
    return found


def files_of(room: str) -> list[Path]:
    single = PACKAGE / f"{room}.py"
    return [single] if single.exists() else sorted((PACKAGE / room).rglob("*.py"))


def test_every_room_stands_in_the_table():
    assert rooms() <= set(allowed_imports())


@pytest.mark.parametrize("room", sorted(rooms()))
def test_a_room_imports_only_what_the_table_allows(room):
    allowed = allowed_imports()[room] | {room}
    for path in files_of(room):
        entered = imported_rooms(path.read_text(encoding="utf-8")) & rooms()
        assert entered <= allowed, f"{path.relative_to(ROOT)} imports {sorted(entered - allowed)}"


def test_every_path_that_the_page_names_exists():
    page = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    named = set(re.findall(r"`([a-z_]+/[\w./]*)`", page))
    missing = [name for name in named if not any((at / name).exists() for at in (PACKAGE, ROOT))]
    assert len(named) > 15
    assert missing == []


def test_the_table_has_no_cycles():
    table = allowed_imports()
    settled: set[str] = set()
    while table:
        free = {room for room, allowed in table.items() if allowed <= settled}
        assert free, f"these rooms import each other in a circle: {sorted(table)}"
        settled |= free
        table = {room: allowed for room, allowed in table.items() if room not in free}


@pytest.mark.parametrize(
    ("line", "room"),
    [
        ("import equipoise.theory.batch_norm.fixed_point.solve", "theory"),
        ("from equipoise.probes import guard", "probes"),
        ("from equipoise import data, models", "data"),
        ("def f():\n    from equipoise.report import save", "report"),
    ],
)
def test_the_parser_sees_every_form_of_import(line, room):
    assert room in imported_rooms(line)


@pytest.mark.skipif(
    not (ROOT / ".git").exists(), reason="git knows what belongs to the repository"
)
def test_the_root_holds_what_newcomers_look_for_and_nothing_else():
    listed = subprocess.run(
        ["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    folders = {".ci", "benchmarks", "docs", "examples", "papers", "src", "tests"}
    files = {".gitignore", ".pre-commit-config.yaml", "CHANGELOG.md", "CITATION.cff"}
    files |= {"CONTRIBUTING.md", "LICENSE", "Makefile", "README.md", "constraints.txt"}
    files |= {"pyproject.toml"}
    assert {line.split("/")[0] for line in listed.stdout.splitlines()} == folders | files


class TestTheCensus:
    """What ``make census`` prints."""

    def test_the_front_is_small(self):
        assert sum(map(len, EXPORTED.values())) <= 150
        assert len(EXPORTED["equipoise"]) == 9

    def test_families_are_folders(self):
        assert census.families(census.all_sources(ROOT)) == {}

    def test_a_family_of_three_is_found(self, tmp_path):
        pair = [tmp_path / "run_inputs.py", tmp_path / "run_backward.py"]
        assert census.families(pair) == {}
        assert list(census.families([*pair, tmp_path / "_run_forms.py"]).values()) == [3]

    def test_each_concept_is_defined_once(self):
        assert census.copies(ROOT) == dict.fromkeys(census.CONCEPTS, 1)

    def test_a_second_definition_is_found(self, tmp_path):
        for name in ("one", "two"):
            source = tmp_path / "src" / "equipoise" / f"{name}.py"
            source.parent.mkdir(parents=True, exist_ok=True)
            source.write_text("Progress = Callable[[str, int, int], None]\n")
        assert census.copies(tmp_path)["Progress"] == 2


@pytest.mark.parametrize("module", sorted(EXPORTED))
def test_public_names_exist_and_are_documented(module):
    room = importlib.import_module(module)
    for name in room.__all__:
        member = getattr(room, name)
        if inspect.isclass(member) or inspect.isfunction(member):
            assert (member.__doc__ or "").strip(), f"{module}.{name} has no docstring"
