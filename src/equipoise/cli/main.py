"""Parse, call one subcommand, keep and show what it returns."""

from __future__ import annotations

import argparse
import contextlib
import importlib.metadata
import io
import json
import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol, TextIO

from rich.console import Console

from equipoise import __version__
from equipoise.cli import checkup, probe, report, theory

# Subcommands of other packages: named here to say how to get them.
_GROUP = "equipoise.commands"
_ELSEWHERE = dict.fromkeys(("gather", "reproduce", "sweep"), "equipoise-papers")

# Conventions of the shell: failure, bad usage, and ended by Ctrl-C.
_FAILED, _BAD_INPUT, _INTERRUPTED = 1, 2, 130


class Command(Protocol):
    """A subcommand: a module with these functions, whose docstring is its help.

    Other packages add theirs through the entry-point group ``equipoise.commands``. A module may
    also have ``save(result, args) -> Path``, which runs before anything is printed, and
    ``verify(result, args)``, which raises at the very end if the result is a failure.
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
    args = _parser(commands, broken).parse_args(given)
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
    with _until_closed(sys.stdout):
        if args.json:
            json.dump(to_json(result), sys.stdout, indent=1, allow_nan=False)
            print()
        else:
            command.show(result, args, _Console(highlight=False))
        sys.stdout.flush()
    if page is not None:
        stream = sys.stderr if args.json else sys.stdout
        with _until_closed(stream):
            print(f"Report: {page}", file=stream, flush=True)
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


@contextlib.contextmanager
def _until_closed(stream: TextIO) -> Iterator[None]:
    """Write until the reader closes the pipe, as head does once it has seen enough."""
    try:
        yield
    except BrokenPipeError:
        # What is still buffered goes nowhere; otherwise Python would complain at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def _prepare_streams() -> None:
    """Replace closed streams (`>&-`), and print `?` where a terminal has no Unicode."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:
            # Stays open until the process ends.
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115
        elif isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")


def _commands() -> tuple[dict[str, Any], dict[str, ImportError]]:
    """Every subcommand by name, in alphabetical order, and why others cannot be loaded."""
    found: dict[str, Any] = {
        "checkup": checkup,
        "probe": probe,
        "report": report,
        "theory": theory,
    }
    broken: dict[str, ImportError] = {}
    for entry in importlib.metadata.entry_points(group=_GROUP):
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


def _parser(commands: dict[str, Any], broken: dict[str, ImportError]) -> argparse.ArgumentParser:
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
    subparsers = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name, module in commands.items():
        summary = (module.__doc__ or "").strip().splitlines()[0]
        command = subparsers.add_parser(name, help=summary, description=summary)
        module.configure(command)
        command.add_argument("--json", action="store_true", help="print JSON instead of tables")
        command.add_argument("--debug", action="store_true", help="show tracebacks of errors")
    return parser
