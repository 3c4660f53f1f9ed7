"""A command that ends soon does so whatever its libraries make of the signal."""

import os
import signal
import sys
import threading
import time
import weakref
from types import SimpleNamespace

import pytest

from equipoise.cli import checkup, main
from equipoise.cli.signals import EndsSoon
from support.forked_ranks import server

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="Windows cannot fork")


def swallowing(ready):
    """Catch the exception, as careless libraries do, and go on for a minute."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)  # nohup has it ignored
    with EndsSoon(0.1, last=True):
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            try:
                ready.touch()
                time.sleep(60)
            except BaseException:
                continue


@pytest.mark.parametrize(("number", "code"), [("SIGTERM", 143), ("SIGINT", 130), ("SIGHUP", 129)])
def test_an_exception_that_is_swallowed_still_ends_the_process(tmp_path, number, code):
    ready = tmp_path / "ready"
    process = server().Process(target=swallowing, args=(ready,))
    process.start()
    while not ready.exists():
        time.sleep(0.01)
    os.kill(process.pid, getattr(signal, number))
    process.join(30)
    assert process.exitcode == code


def keeps_what_was_finished(kept):
    """A command that is terminated in the middle, and again while its result is written."""
    signal.signal(signal.SIGINT, signal.default_int_handler)

    def run(_):
        try:
            signal.raise_signal(signal.SIGTERM)
        except KeyboardInterrupt:
            return SimpleNamespace(interrupted=True)

    def save(result, _):
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.raise_signal(number)
        kept.touch()
        return kept

    main._commands = lambda: ({"toy": command}, {})
    command = SimpleNamespace(
        __doc__="Wait.", configure=lambda parser: None, run=run, save=save,
        show=lambda *_: None, ENDS_WITHIN=checkup.ENDS_WITHIN,
    )  # fmt: skip
    sys.argv = ["equipoise", "toy"]
    raise SystemExit(main.main())


def test_a_terminated_command_writes_what_was_finished(tmp_path):
    """And the signals after the first do not keep it from that."""
    process = server().Process(target=keeps_what_was_finished, args=(tmp_path / "kept",))
    process.start()
    process.join(30)
    assert process.exitcode == 143
    assert (tmp_path / "kept").exists()


def terminates_its_child():
    with EndsSoon(0.1, last=True):
        child = os.fork()
        if child == 0:
            time.sleep(60)
        os.kill(child, signal.SIGTERM)
        _, status = os.waitpid(child, 0)
        time.sleep(0.3)
    os._exit(os.WTERMSIG(status))


def test_the_end_of_a_forked_process_is_not_that_of_its_parent():
    """As of a worker of the user's that reads data; it ends as without the block."""
    process = server().Process(target=terminates_its_child)
    process.start()
    process.join(30)
    assert process.exitcode == signal.SIGTERM


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


def ends_a_weak_reference(printed):
    """Ctrl-C in a callback that cannot raise, before what would take a minute."""
    os.dup2(os.open(printed, os.O_WRONLY | os.O_CREAT), 2)
    signal.signal(signal.SIGINT, signal.default_int_handler)

    def run(_):
        class Thing:
            pass

        thing = Thing()
        kept = weakref.ref(thing, lambda _: signal.raise_signal(signal.SIGINT))
        del thing
        time.sleep(60)
        return kept

    command = SimpleNamespace(__doc__="Wait.", configure=lambda parser: None, run=run)
    main._commands = lambda: ({"toy": command}, {})
    sys.argv = ["equipoise", "toy"]
    raise SystemExit(main.main())


def test_ctrl_c_in_the_end_of_a_weak_reference_is_not_lost(tmp_path):
    process = server().Process(target=ends_a_weak_reference, args=(tmp_path / "printed",))
    process.start()
    process.join(30)
    assert process.exitcode == 130
    assert (tmp_path / "printed").read_text() == "equipoise toy: interrupted.\n"
