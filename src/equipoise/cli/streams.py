"""Standard output and standard error: closed ones, full disks, and readers that stop early."""

from __future__ import annotations

import contextlib
import io
import os
import sys
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
        """Write what there is room for."""
        with contextlib.suppress(OSError):
            super().write(text)
        return len(text)

    def flush(self) -> None:
        """Flush if somebody reads."""
        with contextlib.suppress(OSError):
            super().flush()
