"""The command as its own process: start-up, exit codes, signals, pipes."""

import json
import signal
import subprocess
import sys
import time
from functools import partial

import pytest

COMMAND = [sys.executable, "-m", "equipoise"]
HEAVY = {"torch", "scipy", "matplotlib", "sklearn"}


def run(*arguments, **keywords):
    return subprocess.run(
        [*COMMAND, *arguments], capture_output=True, text=True, timeout=60, **keywords
    )


@pytest.mark.parametrize(
    "arguments", [["--help"], ["checkup", "--help"], ["--version"], ["theory"]]
)
def test_help_does_not_wait_for_torch(arguments):
    """The twin, a real prediction, does import it."""
    script = (
        "import sys\n"
        "from equipoise.cli.main import main\n"
        f"try: main({arguments!r})\n"
        "except SystemExit: pass\n"
        f"print(sorted({HEAVY!r} & set(sys.modules)), file=sys.stderr)"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=60
    )
    imported = done.stderr.splitlines()[-1]
    assert ("torch" in imported) == (arguments == ["theory"])
    if arguments != ["theory"]:
        assert imported == "[]"


def test_python_dash_m():
    done = run("theory", "--activation", "identity", "--batch-size", "4", "--json")
    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads(done.stdout)[0]["rate"]["value"] == 2.0


@pytest.mark.parametrize("arguments", [[], ["bogus"], ["theory", "--batch-size", "2.5"]])
def test_usage_errors(arguments):
    done = run(*arguments)
    assert done.returncode == 2
    assert "usage: equipoise" in done.stderr
    assert "Traceback" not in done.stderr


def test_debug_shows_the_traceback():
    plain, debug = (run("theory", "--batch-size", "3", *rest) for rest in ([], ["--debug"]))
    assert plain.returncode == 2
    assert "Traceback" not in plain.stderr
    assert debug.returncode != 0
    assert "Traceback" in debug.stderr
    assert "batch_size must be at least 4" in debug.stderr


def test_a_reader_that_stops_early_is_no_error():
    with subprocess.Popen(
        [*COMMAND, "theory", "--json"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        process.stdout.close()
        assert process.stderr.read() == ""
        assert process.wait(60) == 0


def test_a_terminal_without_unicode():
    environment = {"PYTHONIOENCODING": "ascii", "PYTHONUTF8": "0", "LC_ALL": "C"}
    done = run("theory", "--activation", "relu", "--batch-size", "8", env=environment)
    assert done.returncode == 0
    assert "relu" in done.stdout


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no SIGINT for children")
def test_ctrl_c_ends_cleanly_with_what_was_finished(folder):
    """Interrupted in the middle of measuring, which the loss tells by writing a file."""
    (folder / "telling.py").write_text(
        "from pathlib import Path\n"
        "from torch.nn import functional as F\n"
        "calls = []\n"
        "def loss(model, batch):\n"
        "    calls.append(1)\n"
        "    if len(calls) > 4: Path('measuring').touch()\n"
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
    assert len(stored["blocks"]) == 60
    assert "nterrupted" in out
