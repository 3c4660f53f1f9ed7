"""Parse, call one subcommand, keep and show what it returns."""

from __future__ import annotations

import argparse
import contextlib
import importlib.metadata
import io
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

from rich.console import Console

from equipoise import __version__
from equipoise.cli import checkup, probe, report, theory

# Packages that add subcommands, and which: named here so that a missing one can be pointed to.
_GROUP = "equipoise.commands"
_ELSEWHERE = dict.fromkeys(("gather", "reproduce", "sweep"), "equipoise-papers")

# Conventions of the shell: failure, bad usage, and ended by Ctrl-C.
_FAILED, _BAD_INPUT, _INTERRUPTED = 1, 2, 130


class Command(Protocol):
    """A subcommand: a module with these functions, whose docstring is its help.

    Other packages add theirs through the entry-point group ``equipoise.commands``. A module may
    also have ``save(result, args) -> Path``, which runs before anything is printed, and
    ``verify(result)``, which raises at the very end if the result is a failure.
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
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # no crash on a terminal without Unicode
            stream.reconfigure(errors="replace")
    given = list(sys.argv[1:] if argv is None else argv)
    commands = _commands()
    if given and given[0] in _ELSEWHERE and given[0] not in commands:
        package = _ELSEWHERE[given[0]]
        print(
            f"equipoise {given[0]} comes with the package {package}: pip install {package}.",
            file=sys.stderr,
        )
        return _BAD_INPUT
    args = _parser(commands).parse_args(given)
    command = commands[args.command]
    try:
        return _run(command, args)
    except (ValueError, ChildProcessError) as error:
        if args.debug:
            raise
        print(f"equipoise {args.command}: {error}", file=sys.stderr)
        return _BAD_INPUT if isinstance(error, ValueError) else _FAILED
    except KeyboardInterrupt:
        print(f"equipoise {args.command}: interrupted.", file=sys.stderr)
        return _INTERRUPTED


def _run(command: Command, args: argparse.Namespace) -> int:
    with contextlib.redirect_stdout(sys.stderr if args.json else sys.stdout):
        result = command.run(args)  # user code may print
    if result is None:
        return 0
    save = getattr(command, "save", None)
    # Files first: a reader that stops early, such as head, must not cost the report.
    page: Path | None = None if save is None else save(result, args)
    with _closed_pipe_ends_output():
        if args.json:
            json.dump(to_json(result), sys.stdout, indent=1, allow_nan=False)
            print()
        console = Console(stderr=args.json, highlight=False)
        if not args.json:
            command.show(result, args, console)
        if page is not None:
            console.print(f"Report: {page}", soft_wrap=True, markup=False)
        sys.stdout.flush()
    verify = getattr(command, "verify", None)
    if verify is not None:
        verify(result)
    return _INTERRUPTED if getattr(result, "interrupted", False) else 0


def to_json(result: Any) -> Any:
    """Plain values of a record."""
    from equipoise.records import to_plain  # --help does not wait for it

    return to_plain(result)


@contextlib.contextmanager
def _closed_pipe_ends_output() -> Any:
    """Whoever reads the output, such as head, may have seen enough: that is no failure."""
    try:
        yield
    except BrokenPipeError:
        # Python flushes at exit and would complain once more.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _commands() -> dict[str, Any]:
    """Every subcommand by name, in alphabetical order."""
    found: dict[str, Any] = {
        "checkup": checkup,
        "probe": probe,
        "report": report,
        "theory": theory,
    }
    for entry in importlib.metadata.entry_points(group=_GROUP):
        found[entry.name] = entry.load()
    return dict(sorted(found.items()))


def _parser(commands: dict[str, Any]) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="equipoise",
        description="Predict, measure and repair whether a normalised deep network can train.",
    )
    missing = sorted({p for name, p in _ELSEWHERE.items() if name not in commands})
    if missing:
        names = ", ".join(name for name in _ELSEWHERE if name not in commands)
        parser.epilog = f"pip install {' '.join(missing)} adds {names}."
    parser.add_argument("--version", action="version", version=f"equipoise {__version__}")
    subparsers = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name, module in commands.items():
        summary = (module.__doc__ or "").strip().splitlines()[0]
        command = subparsers.add_parser(name, help=summary, description=summary)
        module.configure(command)
        command.add_argument("--json", action="store_true", help="print JSON instead of tables")
        command.add_argument("--debug", action="store_true", help="show tracebacks of errors")
    return parser
