"""Users' files in an empty folder, and the command line run inside this process."""

import json

import pytest

from equipoise.cli.main import main
from support import cli_examples


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """An empty current directory with nets.py and batches.py in it."""
    (tmp_path / "nets.py").write_text(cli_examples.NETS)
    (tmp_path / "batches.py").write_text(cli_examples.BATCHES)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "100")
    return tmp_path


class Outcome:
    """What a run printed and returned."""

    def __init__(self, code, out, err):
        self.code, self.out, self.err = code, out, err

    @property
    def json(self):
        """Standard output as JSON, nothing before or after; NaN is none."""
        return json.loads(self.out, parse_constant=pytest.fail)


@pytest.fixture
def equipoise(capsys):
    def run(*argv):
        try:
            code = main([str(argument) for argument in argv])
        except SystemExit as stop:
            code = stop.code
        return Outcome(code, *capsys.readouterr())

    return run
