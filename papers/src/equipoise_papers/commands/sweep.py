"""Show how many cells of each experiment are finished."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # --help does not wait for torch
    from rich.console import Console

    from equipoise_papers.reproduction.status import SweepStatus


def configure(parser: ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument(
        "action",
        nargs="?",
        choices=("status",),
        default="status",
        help="status: count finished cells, the default",
    )
    parser.add_argument(
        "directory",
        nargs="?",
        type=Path,
        default=Path("reproduction"),
        metavar="DIR",
        help="folder that equipoise reproduce writes to (default: %(default)s)",
    )


def run(args: Namespace) -> SweepStatus:
    """Read the folder; a sweep may be running there."""
    from equipoise_papers.reproduction.status import sweep_status

    return sweep_status(args.directory)


def show(result: SweepStatus, args: Namespace, console: Console) -> None:
    """Print the table."""
    from equipoise_papers.report.terminal import show_status

    show_status(result, console)
