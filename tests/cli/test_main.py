"""Subcommands of other packages: found, missing, or broken."""

import importlib.metadata
from importlib.metadata import EntryPoint

import pytest


@pytest.fixture
def installed(monkeypatch):
    """Make these the entry points of other packages."""

    def install(**values):
        points = [EntryPoint(name, value, "equipoise.commands") for name, value in values.items()]
        monkeypatch.setattr(importlib.metadata, "entry_points", lambda group: points)

    return install


@pytest.mark.parametrize("command", ["reproduce", "sweep", "gather"])
def test_a_missing_command_says_how_to_get_it(equipoise, installed, command):
    installed()
    done = equipoise(command, "--list")
    assert (done.code, done.out) == (2, "")
    assert done.err == (
        f"equipoise {command} comes with the package equipoise-papers: pip install "
        "equipoise-papers.\n"
    )


def test_help_names_missing_and_broken_commands(equipoise, installed):
    installed(sweep="equipoise_nowhere.sweep", again="equipoise.cli.report")
    done = equipoise("--help")
    assert done.code == 0
    text = " ".join(done.out.split())
    assert "pip install equipoise-papers adds gather, reproduce." in text
    assert "Cannot be loaded (run one to see why): sweep." in text
    assert "again Show a stored check-up again" in text


class TestABrokenCommand:
    @pytest.fixture(autouse=True)
    def broken(self, folder, monkeypatch, installed):
        (folder / "broken_command.py").write_text("raise RuntimeError('no\\ngood')")
        monkeypatch.syspath_prepend(folder)
        installed(reproduce="broken_command")

    def test_is_one_line_that_says_why(self, equipoise):
        done = equipoise("reproduce", "--list")
        assert (done.code, done.out) == (1, "")
        assert done.err == (
            "equipoise reproduce: cannot load broken_command: RuntimeError: no good. Reinstall "
            "the package that adds it; --debug shows more.\n"
        )

    def test_is_a_traceback_with_debug(self, equipoise):
        with pytest.raises(ImportError, match="cannot load broken_command") as error:
            equipoise("reproduce", "--list", "--debug")
        assert isinstance(error.value.__cause__, RuntimeError)

    def test_leaves_the_others_alone(self, equipoise):
        done = equipoise("report", "nowhere")
        assert (done.code, done.err.count("\n")) == (2, 1)
        assert "nowhere does not exist" in done.err
