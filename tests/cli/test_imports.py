"""Imports without collections of garbage, which go on afterwards."""

import gc
import sys

import pytest

from equipoise.cli.imports import import_at_once


@pytest.fixture
def module(tmp_path, monkeypatch):
    """Tells whether garbage was collected while it was imported."""
    (tmp_path / "watched_import.py").write_text("import gc\nCOLLECTS = gc.isenabled()\n")
    monkeypatch.syspath_prepend(tmp_path)
    yield "watched_import"
    sys.modules.pop("watched_import", None)


@pytest.fixture
def frozen(monkeypatch):
    """How often objects were taken out of later collections."""
    calls = []
    monkeypatch.setattr(gc, "freeze", lambda: calls.append(1))
    return calls


def test_nothing_is_collected_while_modules_are_imported(module, frozen):
    import_at_once(module)
    assert not sys.modules[module].COLLECTS
    assert gc.isenabled()
    assert frozen == [1]


def test_a_second_command_of_one_process_freezes_nothing(module, frozen):
    import_at_once(module)
    import_at_once(module)
    assert frozen == [1]


def test_collections_go_on_after_an_error(frozen):
    with pytest.raises(ModuleNotFoundError):
        import_at_once("no_such_module_of_anyone")
    assert gc.isenabled()


def test_a_collector_that_was_off_stays_off(module, frozen):
    gc.disable()
    try:
        import_at_once(module)
        assert not gc.isenabled()
    finally:
        gc.enable()
