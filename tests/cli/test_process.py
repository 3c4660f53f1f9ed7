"""The command as its own process: start-up, exit codes, signals, pipes."""

import dataclasses
import json
import os
import signal
import subprocess
import sys
import time
from functools import partial

import pytest

from equipoise.records.codec import write_json
from support.report_examples import deep_checkup, interrupted_checkup

COMMAND = [sys.executable, "-m", "equipoise"]
HEAVY = {"torch", "scipy", "matplotlib", "sklearn"}


def run(*arguments, **keywords):
    return subprocess.run(
        [*COMMAND, *arguments], capture_output=True, text=True, timeout=60, **keywords
    )


def imports_of(*arguments, **keywords):
    """The heavy packages that a command line imports, as a list in words, and its output."""
    script = (
        "import sys\n"
        "from equipoise.cli.main import main\n"
        f"try: main({list(arguments)!r})\n"
        "except SystemExit: pass\n"
        f"print(sorted({HEAVY!r} & set(sys.modules)), file=sys.stderr)"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=60, **keywords
    )
    return done.stderr.strip(), done.stdout


@pytest.mark.parametrize("arguments", [["--help"], ["checkup", "--help"], ["--version"]])
def test_help_does_not_wait_for_torch(arguments):
    imported, printed = imports_of(*arguments)
    assert imported == "[]"
    assert "equipoise" in printed


@pytest.mark.parametrize(
    ("checkup", "needed"), [(interrupted_checkup, "[]"), (deep_checkup, "['matplotlib']")]
)
def test_a_stored_report_waits_for_what_draws_alone(folder, checkup, needed):
    """The second has figures, and remedies to put into words."""
    write_json(folder / "report.json", checkup())
    imported, printed = imports_of("report", ".", "--full", cwd=folder)
    assert imported.splitlines()[-1] == needed
    assert checkup().verdict.sentence in printed


def test_a_prediction_does_and_prints_without_unicode_and_docstrings():
    """As on an old terminal, and under ``python -OO``."""
    environment = {"PYTHONIOENCODING": "ascii", "PYTHONUTF8": "0", "LC_ALL": "C"}
    arguments = ("theory", "--activation", "identity", "--batch-size", "4")
    imported, printed = imports_of(*arguments, env=environment | {"PYTHONOPTIMIZE": "2"})
    assert imported.startswith("['")  # nothing else went there
    assert "'torch'" in imported
    assert "?2.000 " in printed


@pytest.mark.parametrize("arguments", [[], ["bogus"], ["theory", "--batch-size", "2.5"]])
def test_usage_errors(arguments):
    done = run(*arguments)
    assert done.returncode == 2
    assert "usage: equipoise" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.fixture
def part(folder):
    """An interrupted report, longer than the 64 KiB that a pipe holds; no page yet."""
    findings = deep_checkup().findings * 300
    checkup = dataclasses.replace(interrupted_checkup(), findings=findings)
    write_json(folder / "part" / "report.json", checkup)
    assert (folder / "part" / "report.json").stat().st_size > 2**17
    return folder / "part"


REPORT = ("report", "part", "--json")


class TestAReaderThatStopsEarly:
    """As in ``equipoise … | head -1``."""

    def stop_after(self, lines, folder, *arguments):
        with subprocess.Popen(
            [*COMMAND, *arguments],
            cwd=folder,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        ) as process:
            for _ in range(lines):
                assert process.stdout.readline()
            process.stdout.close()
            return process.stderr.read(), process.wait(60)

    def test_gets_the_report_of_a_checkup(self, folder):
        small = ("--seeds", "1", "--batches", "1", "--data", "random:64:10")
        told, code = self.stop_after(0, folder, "checkup", "nets.py:build", *small)
        assert (code, told.count("\n")) == (0, 1)
        assert told.startswith("A training step takes")
        names = sorted(path.name for path in (folder / "equipoise-report").iterdir())
        assert names == ["report.html", "report.json"]

    def test_may_read_a_part_of_what_a_pipe_cannot_hold(self, folder, part):
        """The exit code is that of an interrupted check-up, as without a pipe."""
        assert self.stop_after(1, folder, *REPORT) == ("Report: part/report.html\n", 130)
        assert (part / "report.html").is_file()

    def test_one_that_reads_on_sees_the_same_exit_code(self, equipoise, part):
        done = equipoise(*REPORT)
        assert (done.code, done.err) == (130, "Report: part/report.html\n")
        assert len(done.out) > 2**17


@pytest.mark.skipif(sys.platform == "win32", reason="needs a process without standard output")
def test_without_a_standard_output_the_report_is_written(folder, part):
    """As in ``equipoise report part --json >&-``."""
    done = subprocess.run(
        [*COMMAND, *REPORT],
        cwd=folder,
        stderr=subprocess.PIPE,
        text=True,
        timeout=60,
        preexec_fn=partial(os.close, 1),
    )
    assert (done.returncode, done.stderr) == (130, "Report: part/report.html\n")
    assert (part / "report.html").is_file()


@pytest.mark.skipif(sys.platform == "win32", reason="needs a process without standard error")
def test_without_a_standard_error_the_report_is_printed(folder, part):
    """As in ``equipoise report part 2>&-``; what is wrong is told by the exit code alone."""
    for arguments, code in (((*REPORT,), 130), (("report", "absent"), 2)):
        done = subprocess.run(
            [*COMMAND, *arguments],
            cwd=folder,
            stdout=subprocess.PIPE,
            text=True,
            timeout=60,
            preexec_fn=partial(os.close, 2),
        )
        assert (done.returncode, bool(done.stdout)) == (code, code == 130)


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs a device that is full")
@pytest.mark.parametrize("form", [(), ("--json",)])
def test_a_full_standard_output_is_said_in_one_line(folder, part, form):
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [*COMMAND, "report", "part", *form],
            cwd=folder,
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            timeout=60,
        )
    assert done.returncode == 3
    assert "cannot write to standard output: No space left on device." in done.stderr
    assert "Traceback" not in done.stderr
    assert "Exception ignored" not in done.stderr
    assert (part / "report.html").is_file()


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs a device that is full")
@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (REPORT, 130),
        (("report", "whole", "--json"), 0),
        (("report", "nowhere"), 2),
        (("bogus",), 2),
    ],
)
def test_a_full_standard_error_costs_words_alone(folder, part, arguments, code):
    whole = dataclasses.replace(interrupted_checkup(), interrupted=False)
    write_json(folder / "whole" / "report.json", whole)
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [*COMMAND, *arguments],
            cwd=folder,
            stdout=subprocess.PIPE,
            stderr=full,
            text=True,
            timeout=60,
        )
    assert done.returncode == code
    assert bool(done.stdout) == (code != 2)


def test_help_without_docstrings():
    """As under ``python -OO``."""
    done = run("--help", env=os.environ | {"PYTHONOPTIMIZE": "2"})
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.skipif(sys.platform == "win32", reason="needs limits of a process")
class TestNoRoomForFiles:
    """As behind ``ulimit -f`` or on a full disk."""

    def limited(self, folder, *arguments):
        import resource

        return run(
            *arguments,
            cwd=folder,
            preexec_fn=partial(resource.setrlimit, resource.RLIMIT_FSIZE, (2048, 2048)),
        )

    def test_a_result_goes_to_standard_output_instead(self, folder, part):
        done = self.limited(folder, "report", "part")
        assert done.returncode == 3
        first, second = done.stderr.splitlines()
        assert first == "equipoise report: cannot write part: File too large."
        assert "its JSON follows" in second
        assert json.loads(done.stdout) == json.loads((part / "report.json").read_text("utf-8"))
        assert [path.name for path in part.iterdir()] == ["report.json"]

    def test_is_seen_before_anything_is_measured(self, folder):
        done = self.limited(folder, "checkup", "nets.py:raises")
        assert done.returncode == 3
        (line,) = done.stderr.splitlines()
        assert "'equipoise-report': File too large. It may need 4 MB." in line


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no SIGINT for children")
def test_ctrl_c_ends_cleanly_with_what_was_finished(folder):
    """Interrupted in the middle of measuring, which the loss tells by writing a file."""
    (folder / "telling.py").write_text(
        "from pathlib import Path\n"
        "from torch.nn import functional as F\n"
        "calls = []\n"
        "def loss(model, batch):\n"
        "    calls.append(1)\n"
        "    if len(calls) > 15: Path('measuring').touch()\n"
        "    return F.cross_entropy(model(batch[0]), batch[1])\n"
    )
    arguments = ("nets.py:slow", "--loss", "telling.py:loss", "--seeds", "500", "--out", "part")
    with subprocess.Popen(
        [*COMMAND, "checkup", *arguments],
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        # A shell that runs the tests in the background lets children ignore Ctrl-C.
        preexec_fn=partial(signal.signal, signal.SIGINT, signal.SIG_DFL),
    ) as process:
        started = time.monotonic()
        while not (folder / "measuring").exists() and process.poll() is None:
            assert time.monotonic() - started < 60
            time.sleep(0.05)
        process.send_signal(signal.SIGINT)
        try:
            out, err = process.communicate(timeout=60)
        finally:
            process.kill()
    assert process.returncode == 130
    assert "Traceback" not in err
    stored = json.loads((folder / "part" / "report.json").read_text("utf-8"))
    assert stored["interrupted"] is True
    assert len(stored["predictions"]) == 6
    assert "nterrupted" in out
