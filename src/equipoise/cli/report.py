"""Show a stored check-up again, without recomputing anything."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from pathlib import Path
from typing import TYPE_CHECKING

from equipoise.cli.arguments import DIRECTORY, add_forms, print_as_asked

if TYPE_CHECKING:
    from rich.console import Console

    from equipoise.diagnosis.record import Checkup


def configure(parser: ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument(
        "directory",
        type=Path,
        nargs="?",
        default=Path(DIRECTORY),
        metavar="DIR",
        help="folder with report.json, or a JSON file (default: %(default)s)",
    )
    add_forms(parser)


def run(args: Namespace) -> Checkup:
    """Read the report."""
    from equipoise import report

    return report.load(args.directory)


def save(checkup: Checkup, args: Namespace) -> Path:
    """Render the page anew, beside the numbers."""
    from equipoise.report.checkup.store import HTML_NAME, save_page

    path: Path = args.directory
    return save_page(checkup, path / HTML_NAME if path.is_dir() else path.with_suffix(".html"))


def show(checkup: Checkup, args: Namespace, console: Console) -> None:
    """Print the report."""
    print_as_asked(checkup, args, console)
