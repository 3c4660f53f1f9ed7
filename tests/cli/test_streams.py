"""The command line has its streams and its folder, whatever the user's code does to them."""

import contextlib
import os
import signal
import sys

import pytest

from equipoise.cli.streams import Unfailing, surroundings_given_back


def closes():
    sys.stdout.close()


def replaces():
    sys.stdout = None


def fails():
    sys.stdout = None
    raise RuntimeError("late")


@pytest.mark.parametrize("careless", [closes, replaces, fails])
def test_a_stream_that_is_closed_or_replaced_is_given_back(tmp_path, careless):
    with open(tmp_path / "printed", "w") as file, contextlib.redirect_stdout(file):
        print("before")
        try:
            with surroundings_given_back():
                careless()
        except RuntimeError:
            assert careless is fails
        with sys.stdout:
            print("after")
    assert (tmp_path / "printed").read_text() == "before\nafter\n"


def test_a_closed_one_fails_without(tmp_path):
    with open(tmp_path / "printed", "w") as file, contextlib.redirect_stdout(file):
        closes()
        with pytest.raises(ValueError, match="closed file"):
            print("after")


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no SIGCHLD")
def test_the_folder_and_the_handler_of_dead_workers_are_given_back(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    before = signal.getsignal(signal.SIGCHLD)
    with surroundings_given_back():
        os.chdir("/")
        signal.signal(signal.SIGCHLD, lambda *_: None)
    assert os.getcwd() == str(tmp_path)
    assert signal.getsignal(signal.SIGCHLD) == before


def test_words_to_a_closed_standard_error_are_lost_and_no_work(tmp_path):
    with open(tmp_path / "told", "wb") as file:
        told = Unfailing(file, "utf-8", line_buffering=True)
        told.write("a\n")
        told.close()
        told.write("b\n")
        told.flush()
    assert (tmp_path / "told").read_text() == "a\n"
