"""Show a stored check-up again, without recomputing anything."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from equipoise.records import Checkup


def configure(parser: ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument(
        "directory", type=Path, metavar="DIR", help="folder with report.json, or a JSON file"
    )


def run(args: Namespace) -> Checkup:
    """Read the report; its page is rendered anew beside it."""
    from equipoise import report

    path: Path = args.directory
    args.page = path / "report.html" if path.is_dir() else path.with_suffix(".html")
    return report.load(path)
