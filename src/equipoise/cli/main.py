"""Parse, call one subcommand, render what it returns."""

from __future__ import annotations

import argparse
import contextlib
import io
import os
import sys
from collections.abc import Sequence

from equipoise import __version__
from equipoise.cli import checkup, gather, probe, report, reproduce, sweep, theory
from equipoise.cli.render import render
from equipoise.cli.render_probe import render_probe
from equipoise.cli.render_sweeps import render_sweeps
from equipoise.records.experiments import Gathered, SweepStatus

_COMMANDS = {
    "checkup": checkup,
    "gather": gather,
    "probe": probe,
    "report": report,
    "reproduce": reproduce,
    "sweep": sweep,
    "theory": theory,
}

# Conventions of the shell: failure, bad usage, and ended by Ctrl-C.
_FAILED, _BAD_INPUT, _INTERRUPTED = 1, 2, 130


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # no crash on a terminal without Unicode
            stream.reconfigure(errors="replace")
    args = _parser().parse_args(argv)
    try:
        with contextlib.redirect_stdout(sys.stderr if args.json else sys.stdout):
            result = _COMMANDS[args.command].run(args)  # user code may print
        if result is None:  # another rank of torchrun has the result
            return 0
        if isinstance(result, SweepStatus | Gathered):
            render_sweeps(result, args)
            return 0
        show = render_probe if args.command == "probe" else render
        return _INTERRUPTED if show(result, args) else 0
    except (ValueError, ChildProcessError) as error:
        if args.debug:
            raise
        print(f"equipoise {args.command}: {error}", file=sys.stderr)
        return _BAD_INPUT if isinstance(error, ValueError) else _FAILED
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
