"""Every statement that tests decide names a test that is there."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from equipoise_papers.report import statements
from support.cases import each

ROOT = Path(__file__).parents[3]
STATEMENTS = (*statements.YANG2019, *statements.LANGE2022, *statements.YU2020)


def is_there(test: str) -> bool:
    """Whether pytest would find ``path::Class::function``."""
    path, *names = test.split("::")
    parts = ast.parse((ROOT / path).read_text(encoding="utf-8")).body
    for name in names:
        found = [part for part in parts if getattr(part, "name", None) == name]
        if not found:
            return False
        parts = getattr(found[0], "body", [])
    return True


@each("tested", STATEMENTS, ids=lambda tested: tested.says)
def test_its_test_is_there(tested):
    assert is_there(tested.test)


@pytest.mark.parametrize(
    "name", ["test_that_nobody_wrote", "TestNobody::test_ones", "test_numbers"]
)
def test_a_test_that_is_gone_would_be_missed(name):
    assert not is_there(f"papers/tests/lange2022/test_theorem_1.py::{name}")


def test_wrong_statements_are_refuted():
    assert {check.holds for check in (tested.check() for tested in STATEMENTS)} == {True, False}
