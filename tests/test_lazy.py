"""Rooms that import what they export on first use."""

from __future__ import annotations

import ast
import importlib
import inspect

import pytest

from support.forked_ranks import printed_by

ROOMS = ("diagnosis", "probes", "theory", "theory.propagation", "training")


@pytest.fixture(params=ROOMS)
def room(request):
    return importlib.import_module(f"equipoise.{request.param}")


def imports_for_type_checkers(room):
    """The names that type checkers see, each with its module."""
    return {
        alias.name: node.module
        for block in ast.parse(inspect.getsource(room)).body
        if isinstance(block, ast.If)
        for node in block.body
        for alias in node.names
    }


def test_names_are_those_that_type_checkers_see(room):
    seen = imports_for_type_checkers(room)
    assert {name: f"{room.__name__}.{home}" for name, home in room._homes.items()} == seen
    assert sorted(seen) == sorted(room.__all__)


def test_every_name_is_found_and_listed(room):
    assert {*room.__all__} <= {*dir(room)}
    for name in room.__all__:
        home = importlib.import_module(imports_for_type_checkers(room)[name])
        assert getattr(room, name) is getattr(home, name)


def test_a_name_that_is_not_exported_is_missing_as_from_any_module(room):
    with pytest.raises(AttributeError, match=rf"module '{room.__name__}' has no attribute 'none'"):
        _ = room.none


def test_a_module_does_not_hide_the_function_of_its_name(tmp_path):
    """Whatever was imported first, so that the library is imported twice; torch is once."""
    code = """
import sys
for first in ("probes.landscape", "probes.hessian.record"):
    for name in [name for name in sys.modules if name.startswith("equipoise")]:
        del sys.modules[name]
    exec(f"import equipoise.{first}")
    name = first.split(".")[1]
    exec(f"from equipoise.probes import {name} as found")
    print(callable(found), callable(getattr(equipoise.probes, name)))
"""
    script = tmp_path / "imports.py"
    script.write_text(code)
    assert printed_by(script, tmp_path) == "True True\n" * 2


def test_a_function_can_be_exchanged_for_a_test(monkeypatch):
    from equipoise import probes

    monkeypatch.setattr("equipoise.probes.landscape", len)
    assert probes.landscape is len
