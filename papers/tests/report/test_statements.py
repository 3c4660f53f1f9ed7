"""Every statement that tests decide names a test that is there."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from equipoise_papers.report import statements
from equipoise_papers.report.statements import DecidedByTest

ROOT = Path(__file__).parents[3]
STATEMENTS = (*statements.YANG2019, *statements.LANGE2022, *statements.YU2020)


def names(path: Path) -> set[str]:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}


@pytest.mark.parametrize("tested", STATEMENTS, ids=lambda tested: tested.says)
def test_its_test_is_there(tested):
    path, name = tested.test.split("::")
    assert name in names(ROOT / path)


def test_a_test_that_is_gone_would_be_missed():
    lost = DecidedByTest("a", True, "b", "tests/theory/test_limits.py::test_that_nobody_wrote")
    path, name = lost.test.split("::")
    assert name not in names(ROOT / path)


def test_wrong_statements_are_refuted():
    assert {check.holds for check in (tested.check() for tested in STATEMENTS)} == {True, False}
