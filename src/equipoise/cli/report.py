"""Show a stored check-up again, without recomputing anything."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from equipoise.records import Checkup


def configure(parser: ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("directory", type=Path, metavar="DIR", help="folder with report.json")


def run(args: Namespace) -> Checkup:
    """Read the report; its page is rendered anew where it lies."""
    from equipoise import report

    args.out = args.directory if args.directory.is_dir() else args.directory.parent
    return report.load(args.directory)
