"""End soon after SIGINT, SIGTERM or SIGHUP, without a traceback, with the exit code of a shell."""

from __future__ import annotations

import gc
import os
import signal
import socket
import threading
import time
from collections.abc import Callable
from types import FrameType
from typing import Any

# By convention 128 plus the signal's number: 130, 143 and 129.
_CODE = 128
# A closed terminal sends SIGHUP, which Windows does not know.
_ENDING = tuple(
    getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)
)
# Seconds after which what could not be raised is: then it can.
_SOON = 0.02
_WORDS = {"SIGINT": "interrupted", "SIGTERM": "terminated", "SIGHUP": "hung up"}


class EndsSoon:
    """Inside the block, SIGINT, SIGTERM or SIGHUP raises KeyboardInterrupt, and soon all ends.

    The exception may be lost in a library that catches everything, or wait for minutes while a
    compiled function runs. So a thread, which the signal wakes by a socket, ends the process if
    it has not ended itself by then. Signals after the first are ignored.

    Only the main thread may decide about signals; elsewhere, and where a signal is ignored
    (``nohup``), nothing changes. Processes that are forked in the block have the signals as they
    were before it: theirs do not end this one.

    Args:
        within: Seconds from the signal to the end at the latest; ``None`` for no change at all.
        last: Whether the process ends after the block. Signals that arrive then end it at once,
            as Python would print where in its own finalisation it was.
    """

    def __init__(self, within: float | None, *, last: bool) -> None:
        self._within, self._last = within, last
        self._received: signal.Signals | None = None
        self._handlers: dict[signal.Signals, Any] = {}
        self._socket: socket.socket | None = None
        self._waiting: set[signal.Signals | int] = set()

    @property
    def code(self) -> int | None:
        """Exit code for the signal that arrived; ``None`` if none did."""
        return None if self._received is None else _CODE + self._received

    @property
    def words(self) -> str:
        """What the signal did."""
        return _WORDS[(self._received or signal.SIGINT).name]

    def __enter__(self) -> EndsSoon:
        if self._within is None or threading.current_thread() is not threading.main_thread():
            return self
        reader, self._socket = socket.socketpair()
        self._socket.setblocking(False)
        signal.set_wakeup_fd(self._socket.fileno(), warn_on_full_buffer=False)
        watch = threading.Thread(target=self._watch, args=(reader, self._within), daemon=True)
        watch.start()
        if hasattr(os, "register_at_fork"):  # not on Windows
            os.register_at_fork(
                before=self._hold,
                after_in_parent=self._go_on,
                after_in_child=self._leave,
            )
        for number in _ENDING:
            if signal.getsignal(number) not in (signal.SIG_IGN, None):
                self._handlers[number] = signal.signal(number, self._receive)
        return self

    def __exit__(self, *_: object) -> None:
        if self._received is not None:
            gc.freeze()  # Python's last collection takes a second for PyTorch's objects
            if self._last:  # Python would make them end it with another code
                for number in self._handlers:
                    signal.signal(number, signal.SIG_IGN)
            return  # what is left of the process ends in time, too
        if self._socket is None:
            return
        for number, handler in self._handlers.items():
            signal.signal(number, signal.SIG_DFL if self._last else handler)
        signal.set_wakeup_fd(-1)
        self._socket.close()  # ends the thread

    @property
    def _is_inside(self) -> bool:
        """Whether the block has begun and not ended."""
        return self._socket is not None and self._socket.fileno() != -1

    def _hold(self) -> None:
        """Let signals wait while a process is forked."""
        if self._is_inside:
            self._waiting = signal.pthread_sigmask(signal.SIG_BLOCK, _ENDING)

    def _go_on(self) -> None:
        if self._is_inside:
            signal.pthread_sigmask(signal.SIG_SETMASK, self._waiting)

    def _leave(self) -> None:
        """Take no part in signals any more, in a process that has been forked."""
        if self._is_inside:
            signal.set_wakeup_fd(-1)
            for number, handler in self._handlers.items():
                signal.signal(number, handler)
        self._go_on()

    def _receive(self, number: int, _: FrameType | None) -> None:
        if self._received is None:
            self._received = signal.Signals(number)
            raise KeyboardInterrupt

    @staticmethod
    def _watch(reader: socket.socket, within: float) -> None:
        with reader:
            while numbers := reader.recv(1):
                if numbers[0] in _ENDING:
                    time.sleep(within)
                    os._exit(_CODE + numbers[0])


def not_lost(others: Callable[[Any], Any], unraisable: Any) -> None:
    """Repeat a Ctrl-C that came where nothing can be raised, as when a weak reference ends.

    Python would print a traceback, and go on as if nobody had pressed it.
    """
    if unraisable.exc_type is KeyboardInterrupt and hasattr(os, "killpg"):  # not on Windows
        again = threading.Timer(_SOON, os.kill, (os.getpid(), signal.SIGINT))
        again.daemon = True
        again.start()
    else:
        others(unraisable)
