"""Parse, call one subcommand, render what it returns."""

from __future__ import annotations

import argparse
import contextlib
import io
import os
import sys
from collections.abc import Sequence

from equipoise import __version__
from equipoise.cli import checkup, report, reproduce, theory
from equipoise.cli.render import render

_COMMANDS = {"checkup": checkup, "report": report, "reproduce": reproduce, "theory": theory}

# Conventions of the shell: bad usage, and ended by Ctrl-C.
_BAD_INPUT, _INTERRUPTED = 2, 130


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # no crash on a terminal without Unicode
            stream.reconfigure(errors="replace")
    args = _parser().parse_args(argv)
    try:
        with contextlib.redirect_stdout(sys.stderr if args.json else sys.stdout):
            result = _COMMANDS[args.command].run(args)  # user code may print
        return _INTERRUPTED if render(result, args) else 0
    except ValueError as error:
        if args.debug:
            raise
        print(f"equipoise {args.command}: {error}", file=sys.stderr)
        return _BAD_INPUT
    except BrokenPipeError:  # the reader, such as head, has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except KeyboardInterrupt:
        print(f"equipoise {args.command}: interrupted.", file=sys.stderr)
        return _INTERRUPTED


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="equipoise",
        description="Predict, measure and repair whether a normalised deep network can train.",
    )
    parser.add_argument("--version", action="version", version=f"equipoise {__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name, module in _COMMANDS.items():
        summary = (module.__doc__ or "").strip().splitlines()[0]
        command = commands.add_parser(name, help=summary, description=summary)
        module.configure(command)
        command.add_argument("--json", action="store_true", help="print JSON instead of tables")
        command.add_argument("--debug", action="store_true", help="show tracebacks of errors")
    return parser
