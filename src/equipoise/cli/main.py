"""Parse, call one subcommand, keep and show what it returns."""

from __future__ import annotations

import argparse
import contextlib
import functools
import importlib.metadata
import io
import json
import os
import re
import signal
import sys
import sysconfig
import tempfile
import threading
import traceback
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol, TextIO

from rich.console import Console

from equipoise import __version__
from equipoise.cli import checkup, probe, report, theory
from equipoise.cli.arguments import NO_ROOM, shortened
from equipoise.cli.flags import in_flags
from equipoise.cli.signals import EndsSoon

# Subcommands of other packages: named here to say how to get them.
_GROUP = "equipoise.commands"
_ELSEWHERE = dict.fromkeys(("gather", "reproduce", "sweep"), "equipoise-papers")

# Functions of the library that the command line calls by another name.
_OF_PYTHON = {"fix": "checkup --fix", "measure": "probe", "predict": "theory"}
# Options in whose place the model stands alone.
_MODEL = ("model", "net", "network", "module", "target")

# What Python raises of wrong programs, which no input of the user's is to cause.
_OF_PROGRAMS = LookupError, AttributeError, TypeError, NameError, AssertionError, ArithmeticError

# Conventions of the shell: failure, bad usage, and ended by Ctrl-C. A result that was measured but
# could not be written where it was asked for has a code of its own.
_FAILED, _BAD_INPUT, _NOT_WRITTEN, _INTERRUPTED = 1, 2, 3, 130
# Seconds after which what could not be raised is: then it can.
_SOON = 0.02


class Command(Protocol):
    """A subcommand: a module with these functions, whose docstring is its help.

    Other packages add theirs through the entry-point group ``equipoise.commands``. A module may
    also have ``save(result, args) -> Path``, which runs before anything is printed,
    ``verify(result, args)``, which raises at the very end if the result is a failure,
    ``ENDS_WITHIN``, the most seconds from SIGINT or SIGTERM to the end of the process, and
    ``WORDS_BELONG_TO``, the option that is suggested for words without one.
    """

    __doc__: str | None

    def configure(self, parser: argparse.ArgumentParser) -> None:
        """Declare the arguments; nothing heavy is imported here."""

    def run(self, args: argparse.Namespace) -> Any:
        """Return a record, or None if another process has it."""

    def show(self, result: Any, args: argparse.Namespace, console: Console) -> None:
        """Print the record for people; ``--json`` prints it otherwise."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code."""
    _prepare_streams()
    if argv is None:  # the process is ours
        sys.unraisablehook = functools.partial(_not_lost, sys.unraisablehook)
        if type(sys.stderr) is io.TextIOWrapper:
            sys.stderr = _Unfailing(
                sys.stderr.buffer, sys.stderr.encoding, "replace", line_buffering=True
            )
    given = list(sys.argv[1:] if argv is None else argv)
    commands, broken = _commands()
    first = given[0] if given else ""
    if first in broken:
        if "--debug" in given:
            raise broken[first]
        print(f"equipoise {first}: {broken[first]}", file=sys.stderr)
        return _FAILED
    if first in _ELSEWHERE and first not in commands:
        package = _ELSEWHERE[first]
        print(
            f"equipoise {first} comes with the package {package}: pip install {package}.",
            file=sys.stderr,
        )
        return _BAD_INPUT
    args = _parsed(given, commands, broken)
    command = commands[args.command]
    within = getattr(command, "ENDS_WITHIN", None)
    with EndsSoon(within, last=argv is None) as ending:
        try:
            code = _guarded(command, args)
        except BaseException as error:
            if ending.code is None and not isinstance(error, KeyboardInterrupt):
                raise
            # Other exceptions are what a library has made of the signal.
            print(f"equipoise {args.command}: {ending.words}.", file=sys.stderr)
            return ending.code or _INTERRUPTED
        return ending.code or code


def _parsed(
    given: list[str], commands: dict[str, Any], broken: dict[str, ImportError]
) -> argparse.Namespace:
    """Parse, or end with the usage of the right command and what may have been meant."""
    parser, parsers = _parser(commands, broken)
    first = given[0] if given else ""
    if first and not first.startswith("-") and first not in commands:
        from equipoise.records.wording import closest  # --help does not wait for it

        meant = closest(first, [*commands, *_ELSEWHERE])
        if first in _OF_PYTHON:
            meant = f" Did you mean 'equipoise {_OF_PYTHON[first]}'?"
        elif ":" in first or first.endswith(".py"):
            meant = f" Did you mean 'equipoise checkup {first}'?"
        parser.error(f"there is no command {first!r}.{meant} Commands are {', '.join(commands)}.")
    args, strays = parser.parse_known_args(given)
    if strays:
        hint = _meant(strays[0], parsers[args.command], commands[args.command])
        parsers[args.command].error(f"unrecognized arguments: {' '.join(strays)}.{hint}")
    return args


def _meant(stray: str, parser: argparse.ArgumentParser, command: Command) -> str:
    """Which option an argument that was not recognised may belong to."""
    from equipoise.records.wording import closest

    if stray.startswith("-"):
        word = stray.partition("=")[0].lstrip("-")
        places = [action.metavar for action in parser._get_positional_actions()]
        if word in _MODEL and "TARGET" in places:
            return " The model stands without an option: file.py:factory."
        # Compared without the dashes, in which all options are alike.
        known = [option[2:] for option in parser._option_string_actions if option[:2] == "--"]
        return closest(word, known).replace("'", "'--", 1)
    option = getattr(command, "WORDS_BELONG_TO", None)
    return "" if option is None else f" Did you mean {option} {stray}?"


def _guarded(command: Command, args: argparse.Namespace) -> int:
    """Run a subcommand; expected errors become one line and an exit code."""
    try:
        return _run(command, args)
    except (ValueError, ChildProcessError) as error:
        if args.debug:
            raise
        place = _last_frame_of_user(error)
        is_unfinished = getattr(error, "finished", None) is not None
        if is_unfinished and place is None and isinstance(error.__cause__, _OF_PROGRAMS):
            raise  # a fault of this library, and none of the user's
        if place is None and _failed_on_batch(error):
            place = "--debug shows where"
        where = "" if place is None else f" ({place})"
        _complain(args, f"{_words(error)}{where}")
        return _BAD_INPUT if isinstance(error, ValueError) else _FAILED
    except SystemExit as error:  # of the user's code: our own ends nothing from here
        if args.debug:
            raise
        place = _last_frame_of_user(error) or "--debug shows where"
        _complain(
            args,
            f"the code of the model, the data or the loss exits with {error.code!r} ({place}). "
            "Leave out what ends the program.",
        )
        return _BAD_INPUT
    except Exception as error:
        place = _last_frame_of_user(error)
        no_room = isinstance(error, OSError) and error.errno in NO_ROOM
        if args.debug or (place is None and not no_room and not _failed_in_torch(error)):
            raise
        _complain(args, _in_one_line(error, place))
        return _NOT_WRITTEN if no_room else _BAD_INPUT


def _run(command: Command, args: argparse.Namespace) -> int:
    failure: ValueError | None = None
    with _printing_to_stderr() if args.json else contextlib.nullcontext():
        try:
            result = command.run(args)  # user code may print
        except ValueError as error:  # it may hold what was finished before
            result, failure = getattr(error, "finished", None), error
            if result is None:
                raise
    if result is None:
        return 0
    save = getattr(command, "save", None)
    # Files first: a reader that stops early, such as head, must not cost the report.
    page: Path | None = None
    written = True
    if save is not None:
        page, written = _saved(save, result, args)
    with _until_closed(sys.stdout) as whole:
        if args.json:
            json.dump(to_json(result), sys.stdout, indent=1, allow_nan=False)
            print()
        else:
            command.show(result, args, _Console(highlight=False))
        sys.stdout.flush()
    if page is not None:
        # JSON and Markdown are for other programs, such as a job's summary.
        stream = sys.stderr if args.json or getattr(args, "markdown", False) else sys.stdout
        with _until_closed(stream):
            print(f"Report: {page}", file=stream, flush=True)
    if failure is not None:
        raise failure
    if not (written and whole):
        return _NOT_WRITTEN
    verify = getattr(command, "verify", None)
    if verify is not None:
        verify(result, args)
    return _INTERRUPTED if getattr(result, "interrupted", False) else 0


@contextlib.contextmanager
def _printing_to_stderr() -> Iterator[None]:
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


def to_json(result: Any) -> Any:
    """Plain values of a record."""
    from equipoise.records import to_plain  # --help does not wait for it

    return to_plain(result)


class _Console(Console):
    def on_broken_pipe(self) -> None:
        """Let the caller decide: by default rich ends the process with exit code 1."""
        raise BrokenPipeError


def _saved(
    save: Callable[[Any, argparse.Namespace], Path], result: Any, args: argparse.Namespace
) -> tuple[Path | None, bool]:
    """Write the result's files, to a temporary folder or as JSON to stdout if all else fails.

    Returns:
        The page, if there is one, and whether it is where it was asked for.
    """
    try:
        return save(result, args), True
    except OSError as error:
        asked = getattr(args, "out", None) or getattr(args, "directory", None)
        where = "the report" if asked is None else shortened(Path(asked))
        _complain(args, f"cannot write {where}: {error.strerror or error}.")
    with contextlib.suppress(OSError):
        elsewhere = Path(tempfile.mkdtemp(prefix="equipoise-"))
        kept = argparse.Namespace(**(vars(args) | {"out": elsewhere, "directory": elsewhere}))
        page = save(result, kept)
        _complain(args, f"the report is in {elsewhere} instead.")
        return page, False
    _complain(args, "nor to a temporary folder; its JSON follows on standard output.")
    args.json = True
    return None, False


def _complain(args: argparse.Namespace, message: str) -> None:
    """Print a message, of which the user's code may have made a part, without control codes."""
    from equipoise.records.wording import printable  # --help does not wait for it

    with contextlib.suppress(OSError):
        print(
            f"equipoise {args.command}: {printable(in_flags(message))}",
            file=sys.stderr,
            flush=True,
        )


# Where Python, the library and what is installed lie: everything else is the user's.
_INSTALLED = tuple(
    {f"{Path(path).resolve()}{os.sep}" for path in sysconfig.get_paths().values()}
    | {f"{Path(__file__).resolve().parents[1]}{os.sep}"}
)


@functools.cache
def _installed() -> tuple[str, ...]:
    """Folders whose files are not the user's, those of packages that add commands among them."""
    packages = {re.split("[.:]", entry.value)[0] for entry in _entries()}
    loaded = [sys.modules[name] for name in packages if name in sys.modules]
    own = [f"{Path(m.__file__).resolve().parent}{os.sep}" for m in loaded if m.__file__]
    return (*_INSTALLED, *own)


def _last_frame_of_user(error: BaseException) -> str | None:
    """The last line of the user's own files that an error, or one behind it, went through."""
    chain: list[BaseException] = []
    step: BaseException | None = error
    while step is not None and step not in chain:
        chain.append(step)
        step = step.__cause__ or step.__context__
    for one in reversed(chain):
        for frame in reversed(traceback.extract_tb(one.__traceback__)):
            path = frame.filename
            if Path(path).is_file() and not str(Path(path).resolve()).startswith(_installed()):
                return f"{path}:{frame.lineno} in {frame.name}"
    return None


def _in_one_line(error: Exception, place: str | None) -> str:
    stage = "".join(f"{note} " for note in getattr(error, "__notes__", ()))
    message = " ".join(_words(error).split())
    if isinstance(error, OSError) and place is None:
        file = f"cannot write {shortened(Path(error.filename))}: " if error.filename else ""
        return f"{stage}{file}{error.strerror or message}."
    known = f"{stage}{type(error).__name__}: {message:.500}".rstrip(": ")
    return f"{known} ({f'{place}; ' if place else ''}--debug shows the whole trace.)"


def _words(error: Exception) -> str:
    """The message; of an exception in a DataLoader's worker without the trace that it holds."""
    head, mark, trace = str(error).partition("Original Traceback (most recent call last):")
    return f"{head.strip().rstrip('.')}: {trace.strip().splitlines()[-1]}" if mark else head


def _failed_on_batch(error: BaseException | None) -> bool:
    """Whether the message tells of another exception, whose place --debug shows."""
    refusals = sys.modules.get("equipoise.diagnosis.refusals")  # theory does without
    if refusals is None or error is None:
        return False
    return isinstance(error, refusals.FailedOnBatchError) or _failed_on_batch(error.__cause__)


def _failed_in_torch(error: Exception) -> bool:
    """Whether PyTorch refused what a model of its own layers did, at a stage that is known.

    As with batches of varying shapes, for which no line of the user's is on the way.
    """
    frames = traceback.extract_tb(error.__traceback__)
    folder = f"{os.sep}torch{os.sep}"
    return bool(frames) and folder in frames[-1].filename and hasattr(error, "__notes__")


@contextlib.contextmanager
def _until_closed(stream: TextIO) -> Iterator[_Whole]:
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


def _prepare_streams() -> None:
    """Replace closed streams (`>&-`), and print `?` where a terminal has no Unicode."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:
            devnull = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115 - open to the end
            setattr(sys, name, devnull)
        elif isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")


def _not_lost(others: Callable[[Any], Any], unraisable: Any) -> None:
    """Repeat a Ctrl-C that came where nothing can be raised, as when a weak reference ends.

    Python would print a traceback, and go on as if nobody had pressed it.
    """
    if unraisable.exc_type is KeyboardInterrupt and hasattr(os, "killpg"):  # not on Windows
        again = threading.Timer(_SOON, os.kill, (os.getpid(), signal.SIGINT))
        again.daemon = True
        again.start()
    else:
        others(unraisable)


class _Unfailing(io.TextIOWrapper):
    """Standard error on a full disk or a closed pipe: words are lost, and no work."""

    def write(self, text: str, /) -> int:
        with contextlib.suppress(OSError):
            super().write(text)
        return len(text)

    def flush(self) -> None:
        with contextlib.suppress(OSError):
            super().flush()


def _commands() -> tuple[dict[str, Any], dict[str, ImportError]]:
    """Every subcommand by name, in alphabetical order, and why others cannot be loaded."""
    found: dict[str, Any] = {
        "checkup": checkup,
        "probe": probe,
        "report": report,
        "theory": theory,
    }
    broken: dict[str, ImportError] = {}
    for entry in _entries():
        try:
            found[entry.name] = entry.load()
        except Exception as error:  # another package's module may raise anything
            why = f"{type(error).__name__}: {' '.join(str(error).split())}"
            package = entry.dist.name if entry.dist else "the package that adds it"
            broken[entry.name] = ImportError(
                f"cannot load {entry.value}: {why}. Reinstall {package}; --debug shows more."
            )
            broken[entry.name].__cause__ = error
    return dict(sorted(found.items())), broken


def _entries() -> importlib.metadata.EntryPoints:
    return importlib.metadata.entry_points(group=_GROUP)


def _parser(
    commands: dict[str, Any], broken: dict[str, ImportError]
) -> tuple[argparse.ArgumentParser, dict[str, argparse.ArgumentParser]]:
    """The whole parser, and that of each subcommand."""
    parser = argparse.ArgumentParser(
        prog="equipoise",
        description="Predict, measure and repair whether a normalised deep network can train.",
    )
    notes = []
    missing = [name for name in _ELSEWHERE if name not in commands and name not in broken]
    if missing:
        packages = sorted({_ELSEWHERE[name] for name in missing})
        notes.append(f"pip install {' '.join(packages)} adds {', '.join(missing)}.")
    if broken:
        notes.append(f"Cannot be loaded (run one to see why): {', '.join(broken)}.")
    parser.epilog = " ".join(notes)
    parser.add_argument("--version", action="version", version=f"equipoise {__version__}")
    parsers = {}
    subparsers = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name, module in commands.items():
        # Without any under `python -OO`.
        summary = next(iter((module.__doc__ or "").strip().splitlines()), "")
        parsers[name] = command = subparsers.add_parser(name, help=summary, description=summary)
        module.configure(command)
        command.add_argument("--json", action="store_true", help="print JSON instead of tables")
        command.add_argument("--debug", action="store_true", help="show tracebacks of errors")
    return parser, parsers
