"""Parse, call one subcommand, keep and show what it returns."""

from __future__ import annotations

import argparse
import contextlib
import functools
import io
import json
import os
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol

from rich.console import Console

from equipoise import __version__
from equipoise.cli import checkup, probe, report, theory
from equipoise.cli.arguments import NO_ROOM, shortened
from equipoise.cli.failures import (
    failed_in_torch,
    failed_on_batch,
    in_one_line,
    last_frame_of_user,
    words,
)
from equipoise.cli.flags import in_flags
from equipoise.cli.imports import added_commands
from equipoise.cli.signals import EndsSoon, not_lost
from equipoise.cli.streams import (
    Unfailing,
    prepare_streams,
    printing_to_stderr,
    surroundings_given_back,
    until_closed,
)
from equipoise.records.exceptions import exit_in_words, text_of

# Subcommands of other packages: named here to say how to get them.
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


class Command(Protocol):
    """A subcommand: a module with these functions, whose docstring is its help.

    Other packages add theirs through the entry-point group ``equipoise.commands``. A module may
    also have ``save(result, args) -> Path``, which runs before anything is printed,
    ``verify(result, args)``, which raises at the very end if the result is a failure,
    ``ENDS_WITHIN``, the most seconds from SIGINT, SIGTERM or SIGHUP to the end, and
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
    prepare_streams()
    if argv is None:  # the process is ours
        sys.unraisablehook = functools.partial(not_lost, sys.unraisablehook)
        if type(sys.stderr) is io.TextIOWrapper:
            sys.stderr = Unfailing(
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
    if not _is_somewhere():
        _complain(args, "the current folder has been deleted. Change to one that is there.")
        return _BAD_INPUT
    try:
        return _run(command, args)
    except (ValueError, ChildProcessError) as error:
        if args.debug:
            raise
        place = last_frame_of_user(error)
        is_unfinished = getattr(error, "finished", None) is not None
        if is_unfinished and place is None and isinstance(error.__cause__, _OF_PROGRAMS):
            raise  # a fault of this library, and none of the user's
        if place is None and failed_on_batch(error):
            place = "--debug shows where"
        where = "" if place is None else f" ({place})"
        _complain(args, f"{words(error)}{where}")
        return _BAD_INPUT if isinstance(error, ValueError) else _FAILED
    except SystemExit as error:  # of the user's code: our own ends nothing from here
        if args.debug:
            raise
        place = last_frame_of_user(error) or "--debug shows where"
        _complain(args, f"{exit_in_words(error)} ({place})")
        return _BAD_INPUT
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # the user's code may raise what is no Exception
        place = last_frame_of_user(error)
        no_room = isinstance(error, OSError) and error.errno in NO_ROOM
        if args.debug or (place is None and not no_room and not failed_in_torch(error)):
            raise
        _complain(args, in_one_line(error, place))
        return _NOT_WRITTEN if no_room else _BAD_INPUT


def _is_somewhere() -> bool:
    """Whether there is a current folder, which everything reads and writes beside."""
    try:
        os.getcwd()
    except FileNotFoundError:
        return False
    return True


def _run(command: Command, args: argparse.Namespace) -> int:
    failure: ValueError | None = None
    with printing_to_stderr() if args.json else contextlib.nullcontext():
        try:
            with surroundings_given_back():
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
    with until_closed(sys.stdout) as whole:
        if args.json:
            json.dump(to_json(result), sys.stdout, indent=1, allow_nan=False)
            print()
        else:
            command.show(result, args, _Console(highlight=False))
        sys.stdout.flush()
    if page is not None:
        # JSON and Markdown are for other programs, such as a job's summary.
        stream = sys.stderr if args.json or getattr(args, "markdown", False) else sys.stdout
        with until_closed(stream):
            print(f"Report: {page}", file=stream, flush=True)
    if failure is not None:
        raise failure
    if not (written and whole):
        return _NOT_WRITTEN
    verify = getattr(command, "verify", None)
    if verify is not None:
        verify(result, args)
    return _INTERRUPTED if getattr(result, "interrupted", False) else 0


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


def _commands() -> tuple[dict[str, Any], dict[str, ImportError]]:
    """Every subcommand by name, in alphabetical order, and why others cannot be loaded."""
    found: dict[str, Any] = {
        "checkup": checkup,
        "probe": probe,
        "report": report,
        "theory": theory,
    }
    broken: dict[str, ImportError] = {}
    for entry in added_commands():
        try:
            found[entry.name] = entry.load()
        except Exception as error:  # another package's module may raise anything
            why = f"{type(error).__name__}: {' '.join(text_of(error).split())}"
            package = entry.dist.name if entry.dist else "the package that adds it"
            broken[entry.name] = ImportError(
                f"cannot load {entry.value}: {why}. Reinstall {package}; --debug shows more."
            )
            broken[entry.name].__cause__ = error
    return dict(sorted(found.items())), broken


def _parser(
    commands: dict[str, Any], broken: dict[str, ImportError]
) -> tuple[argparse.ArgumentParser, dict[str, argparse.ArgumentParser]]:
    """The whole parser, and that of each subcommand."""
    parser = argparse.ArgumentParser(
        prog="equipoise",
        description="Predict and measure whether a deep network can train, and say what to "
        "change. Begin with: equipoise checkup file.py:build --data file.py:loader",
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
