"""Users of the command line read its flags, users of the library its options."""

import ast
import re
from dataclasses import dataclass
from pathlib import Path

import pytest

import equipoise
from equipoise.cli.flags import FLAGS, in_flags
from equipoise.diagnosis.price import plan
from equipoise.records.finding import Finding

PARTS = ("smoothness", "preconditioning", "hessian")
LIBRARY = Path(equipoise.__file__).parent


@dataclass(frozen=True)
class Record:
    findings: tuple[Finding, ...]
    number: float
    left_out: tuple = ()


def test_every_text_of_a_record():
    kept = Finding("note", "Nothing to say", "More seeds would tell.")
    told = Finding("note", "Cut", "It is cut.", "`budget=60` lets theory go further.")
    found = in_flags(Record((kept, told), 0.5, plan(0.1, dict.fromkeys(PARTS, 1.0)).left_out))
    assert found.findings[1].remedy == "`--budget 60s` lets theory go further."
    assert found.findings[0] is kept
    assert [one.option for one in found.left_out] == [
        "--budget",
        "--preconditioning",
        "--hessian",
    ]


def test_a_record_without_options_is_the_same():
    record = Record((), 0.5)
    assert in_flags(record) is record


@pytest.mark.parametrize("text", ["my_download=True", "budget=600", "fix=TrueNorth"])
def test_other_words_stay(text):
    assert in_flags(text) == text


def test_flags_stand_in_the_command_line_alone():
    """Whoever calls the library in Python is told of options."""
    flag = re.compile(r"(?<![-\w(])--[a-z]")
    renderers = {
        "report/svg.py",
        "report/checkup/terminal/overview.py",
        "report/theory/spectra.py",
    }
    for path in LIBRARY.rglob("*.py"):
        name = path.relative_to(LIBRARY).as_posix()
        if name.startswith("cli/") or name in renderers:
            continue
        tree = ast.parse(path.read_text("utf-8"))
        docs = {
            node.body[0].value
            for node in ast.walk(tree)
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef)
            and node.body
            and isinstance(node.body[0], ast.Expr)
        }
        found = [
            node.value
            for node in ast.walk(tree)
            if isinstance(node, ast.Constant)
            and isinstance(node.value, str)
            and node not in docs
            and flag.search(node.value)
        ]
        assert not found, name


@pytest.mark.parametrize("option", FLAGS)
def test_every_option_is_written_somewhere(option):
    texts = (
        path.read_text("utf-8")
        for path in LIBRARY.rglob("*.py")
        if path.relative_to(LIBRARY).parts[0] != "cli"
    )
    assert any(option in text for text in texts)
