"""A command that ends soon does so whatever its libraries make of the signal."""

import os
import signal
import sys
import threading
import time

import pytest

from equipoise.cli.signals import EndsSoon
from support.forked_ranks import server

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="Windows cannot fork")


def swallowing(ready):
    """Catch the exception, as careless libraries do, and go on for a minute."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    with EndsSoon(0.1, last=True):
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            try:
                ready.touch()
                time.sleep(60)
            except BaseException:
                continue


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_an_exception_that_is_swallowed_still_ends_the_process(tmp_path, number, code):
    ready = tmp_path / "ready"
    process = server().Process(target=swallowing, args=(ready,))
    process.start()
    while not ready.exists():
        time.sleep(0.01)
    os.kill(process.pid, number)
    process.join(30)
    assert process.exitcode == code


@pytest.mark.parametrize("within", [None, 5.0])
def test_handlers_are_as_before_after_the_block(within):
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    with EndsSoon(within, last=False) as ending:
        assert ending.code is None
    assert [signal.getsignal(n) for n in (signal.SIGINT, signal.SIGTERM)] == before
    assert signal.set_wakeup_fd(-1) == -1


def test_other_threads_leave_signals_alone():
    before, seen = signal.getsignal(signal.SIGTERM), []

    def block():
        with EndsSoon(5.0, last=False):
            seen.append(signal.getsignal(signal.SIGTERM))

    thread = threading.Thread(target=block)
    thread.start()
    thread.join()
    assert seen == [before]
