"""Standard output and standard error: closed ones, full disks, and readers that stop early."""

from __future__ import annotations

import contextlib
import io
import os
import signal
import sys
import threading
from collections.abc import Iterator
from typing import TextIO


@contextlib.contextmanager
def printing_to_stderr() -> Iterator[None]:
    """Keep standard output for JSON, whatever Python code and compiled libraries print."""
    with contextlib.ExitStack() as stack:
        stack.enter_context(contextlib.redirect_stdout(sys.stderr))
        try:
            sys.__stdout__.flush()  # type: ignore[union-attr]  # a closed one is refused below
            kept = os.dup(1)
        except (OSError, AttributeError, ValueError):  # closed, or not a file
            yield
            return
        stack.callback(os.close, kept)
        os.dup2(2, 1)
        stack.callback(os.dup2, kept, 1)
        yield


@contextlib.contextmanager
def surroundings_given_back() -> Iterator[None]:
    """Give back the streams and the folder that the user's code has closed, replaced or left.

    So is the handler by which PyTorch raises an exception, wherever the program is, once the
    worker of a loader has died.
    """
    folder, before = os.getcwd(), (sys.stdout, sys.stderr)
    kept = [_duplicate(stream) for stream in before]
    number = getattr(signal, "SIGCHLD", None)  # not on Windows
    handler = None if number is None else signal.getsignal(number)
    is_main = threading.current_thread() is threading.main_thread()
    try:
        yield
    finally:
        if number is not None and handler is not None and is_main:
            signal.signal(number, handler)
        if os.getcwd() != folder:
            os.chdir(folder)
        sys.stdout, sys.stderr = map(_opened, before, kept)


def _duplicate(stream: TextIO) -> int | None:
    """Another descriptor of what a stream writes to; None if that is no file."""
    try:
        return os.dup(stream.fileno())
    except (OSError, ValueError, AttributeError):
        return None


def _opened(stream: TextIO, kept: int | None) -> TextIO:
    """The stream, or one to the same place if it has been closed."""
    if kept is None or not stream.closed:
        if kept is not None:
            os.close(kept)
        return stream
    return open(kept, "w", encoding=stream.encoding, errors="replace")


@contextlib.contextmanager
def until_closed(stream: TextIO) -> Iterator[_Whole]:
    """Write until the reader closes the pipe, as head does once it has seen enough.

    Yields:
        True, until a full disk has cut the text short.
    """
    whole = _Whole()
    try:
        yield whole
    except OSError as error:
        # What is still buffered goes nowhere; otherwise Python would complain at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
        if not isinstance(error, BrokenPipeError):
            whole.value = False
            with contextlib.suppress(OSError):
                why = error.strerror or error
                print(f"equipoise: cannot write to standard output: {why}.", file=sys.stderr)


class _Whole:
    """Whether a text was written to its end."""

    value = True

    def __bool__(self) -> bool:
        return self.value


def prepare_streams() -> None:
    """Replace closed streams (`>&-`), and print `?` where a terminal has no Unicode."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:
            devnull = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115 - open to the end
            setattr(sys, name, devnull)
            setattr(sys, f"__{name}__", devnull)  # lives on where another takes its buffer
        elif isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")


class Unfailing(io.TextIOWrapper):
    """Standard error on a full disk or a closed pipe: words are lost, and no work."""

    def write(self, text: str, /) -> int:
        """Write what there is room for, while it is open."""
        with contextlib.suppress(OSError, ValueError):
            super().write(text)
        return len(text)

    def flush(self) -> None:
        """Flush if somebody reads."""
        with contextlib.suppress(OSError, ValueError):
            super().flush()
