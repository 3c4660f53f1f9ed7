"""Subcommands of other packages: found, missing, or broken."""

import importlib.metadata
import json
from importlib.metadata import EntryPoint

import pytest

from equipoise.cli.failures import words


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


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (("chekup",), "there is no command 'chekup'. Did you mean 'checkup'? Commands are "),
        (("theory", "relu"), "unrecognized arguments: relu. Did you mean --activation relu?"),
        (("theory", "--activatoin=relu"), "--activatoin=relu. Did you mean '--activation'?"),
        (("report", "here", "there"), "unrecognized arguments: there."),
        (("nets.py:build",), "Did you mean 'equipoise checkup nets.py:build'?"),
        (("fix", "nets.py:build"), "Did you mean 'equipoise checkup --fix'?"),
        (("checkup", "--model", "nets.py:build"), "The model stands without an option"),
        (("checkup", "nets.py:build", "--lr", "0.1"), "unrecognized arguments: --lr 0.1.\n"),
    ],
)
def test_what_may_have_been_meant_is_suggested(equipoise, given, words):
    done = equipoise(*given)
    assert (done.code, done.out) == (2, "")
    assert words in done.err
    command = f" {given[0]}" if given[0] in ("checkup", "report", "theory") else ""
    assert done.err.startswith(f"usage: equipoise{command} [-h]")


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


class TestCodeOfTheUserThatFailsLate:
    LOSS = (
        "from torch.nn import functional as F\n"
        "calls = []\n"
        "def loss(model, batch):\n"
        "    calls.append(1)\n"
        "    if len(calls) > 1: raise {error}\n"
        "    return F.cross_entropy(model(batch[0]), batch[1])\n"
    )

    @pytest.mark.parametrize("error", ["KeyError('item 7')", "OSError(5, 'broken disk')"])
    def test_one_line_names_its_last_frame(self, equipoise, folder, error):
        (folder / "late.py").write_text(self.LOSS.format(error=error))
        small = ("--data", "random:64:10", "--seeds", "1", "--batches", "1")
        found = equipoise("checkup", "nets.py:build", "--loss", "late.py:loss", *small)
        assert found.code == 2
        line = found.err.splitlines()[-1]
        assert line.startswith("equipoise checkup: ")
        assert error[:7] in line
        assert "late.py:5 in loss" in line
        assert "Traceback" not in found.err

    def test_control_codes_of_its_message_do_not_reach_the_terminal(self, equipoise, folder):
        (folder / "late.py").write_text(self.LOSS.format(error="ValueError('\\x1b[31mred\\x07')"))
        small = ("--data", "random:64:10", "--seeds", "1", "--batches", "1")
        found = equipoise("checkup", "nets.py:build", "--loss", "late.py:loss", *small)
        assert found.code == 2
        assert r"\x1b[31mred\x07" in found.err
        assert "\x1b" not in found.err.splitlines()[-1]

    def test_of_a_loaders_worker_the_cause_alone_is_said(self):
        sent = (
            "Caught ValueError in DataLoader worker process 0.\n"
            "Original Traceback (most recent call last):\n"
            '  File "user.py", line 3, in __getitem__\n'
            "ValueError: item 37 is corrupt\n"
        )
        said = "Caught ValueError in DataLoader worker process 0: ValueError: item 37 is corrupt"
        assert words(ValueError(sent)) == said
        assert words(ValueError("plain")) == "plain"

    def test_batches_of_other_shapes_are_one_line_with_the_stage(self, equipoise, folder):
        """No line of the user's is on the way: PyTorch's layers refuse them."""
        (folder / "varying.py").write_text(
            "import torch\n"
            "def batches():\n"
            "    for n in range(9):\n"
            "        yield torch.randn(16, 64 + n // 2), torch.arange(16) % 10\n"
        )
        small = ("--seeds", "1", "--batches", "4", "--batch-size", "16")
        found = equipoise("checkup", "nets.py:build", "--data", "varying.py:batches", *small)
        line = found.err.splitlines()[-1]
        assert found.code == 2
        assert line.startswith("equipoise checkup: while measuring gradients: the model or")
        assert "65 and 64" in line or "16x65" in line

    def test_debug_shows_the_whole_trace(self, equipoise, folder):
        (folder / "late.py").write_text(self.LOSS.format(error="KeyError(7)"))
        small = ("--data", "random:64:10", "--seeds", "1", "--batches", "1", "--debug")
        with pytest.raises(ValueError, match="KeyError: 7") as error:
            equipoise("checkup", "nets.py:build", "--loss", "late.py:loss", *small)
        causes = error.getrepr(chain=True)
        assert "late.py" in str(causes)

    @pytest.mark.parametrize("command", ["checkup", "probe"])
    def test_what_was_finished_is_reported_and_saved(self, equipoise, folder, command):
        """The second initialisation fails, or the first step of the short training."""
        (folder / "late.py").write_text(
            self.LOSS.replace("len(calls) > 1", "not same(model)").format(error="OSError(5)")
            + "first = []\n"
            "def same(model):\n"
            "    weight = next(model.parameters()).detach()\n"
            "    first[:] = first or [weight.clone()]\n"
            "    return bool((weight == first[0]).all())\n"
        )
        small = ("--data", "random:64:10", "--seeds", "2", "--out", "kept")
        found = equipoise(command, "nets.py:build", "--loss", "late.py:loss", *small)
        assert found.code == 2
        assert "late.py:5 in loss" in found.err.splitlines()[-1]
        assert "Interrupted: the report holds what was finished before." in found.out
        name = "report" if command == "checkup" else "probe"
        assert json.loads((folder / "kept" / f"{name}.json").read_text("utf-8"))["interrupted"]

    def test_a_fault_of_the_library_keeps_its_trace_and_what_was_finished(
        self, equipoise, folder, monkeypatch
    ):
        # It is called after gradients are measured.
        monkeypatch.setattr("equipoise.diagnosis.examination.stuck", None)
        small = ("--data", "random:64:10", "--seeds", "1", "--batches", "1", "--out", "kept")
        with pytest.raises(ValueError, match="while measuring gradients: TypeError") as error:
            equipoise("checkup", "nets.py:build", *small)
        assert isinstance(error.value.__cause__, TypeError)
        assert json.loads((folder / "kept" / "report.json").read_text("utf-8"))["interrupted"]

    @pytest.mark.parametrize(
        ("error", "words"),
        [
            ("SystemExit(0)", "exits with 0"),
            ("GeneratorExit('gone')", "GeneratorExit: gone"),
            ("BaseExceptionGroup('all', [KeyError(7)])", "all (1 sub-exception): KeyError: 7"),
        ],
    )
    def test_what_is_no_exception_is_told_as_a_failure(self, equipoise, folder, error, words):
        (folder / "late.py").write_text(self.LOSS.format(error=error))
        small = ("--data", "random:64:10", "--seeds", "1", "--batches", "1")
        found = equipoise("checkup", "nets.py:build", "--loss", "late.py:loss", *small)
        line = found.err.splitlines()[-1]
        assert found.code == 2
        assert words in line
        assert "late.py:5 in loss" in line


def test_a_folder_that_has_been_deleted_is_told_in_one_line(equipoise, monkeypatch, tmp_path):
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    found = equipoise("checkup", "nets.py:build")
    assert (found.code, found.err.count("\n")) == (2, 1)
    assert "the current folder has been deleted" in found.err


def test_a_link_to_nowhere_is_refused_before_anything_is_measured(equipoise, folder):
    (folder / "link").symlink_to("nowhere")
    found = equipoise("checkup", "--out", "link")
    assert found.code == 2
    assert "'link': it is a link to a place that is not there" in found.err


@pytest.mark.parametrize("seeds", ["0", "999999999999", "many"])
def test_numbers_that_would_never_end_are_refused_at_once(equipoise, seeds):
    found = equipoise("checkup", "--seeds", seeds)
    assert found.code == 2
    assert "takes a whole number from 1 to 10,000" in found.err


def test_folders_too_deep_to_be_made_are_refused_in_one_line(equipoise):
    found = equipoise("checkup", "--out", "x/" * 1500)
    assert found.code == 2
    assert "it is more than 200 folders deep" in found.err
    assert len(found.err) < 300


def test_names_that_no_file_can_have_are_refused_in_one_line(equipoise):
    found = equipoise("checkup", "--out", "x" * 5000)
    assert found.code == 2
    assert "File name too long" in found.err
    assert len(found.err) < 300


def test_names_of_models_that_no_file_can_have_too(equipoise):
    found = equipoise("checkup", f"{'x' * 5000}.py:build")
    assert found.code == 2
    assert "File name too long" in found.err
    assert len(found.err) < 300


def test_a_device_whose_package_is_not_installed(equipoise):
    found = equipoise("checkup", "--device", "hpu")
    assert found.code == 2
    assert "cannot use device 'hpu'" in found.err


def test_the_home_of_nobody_is_said(equipoise):
    found = equipoise("checkup", "~nosuchuser/x.py:build")
    assert found.code == 2
    assert "is in the home of a user that is not there" in found.err
