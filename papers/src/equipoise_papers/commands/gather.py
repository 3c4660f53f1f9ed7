"""Merge records that were computed on several machines."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # --help does not wait for torch
    from rich.console import Console

    from equipoise_papers.reproduction.gather import Gathered


def configure(parser: ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument(
        "directories",
        nargs="+",
        type=Path,
        metavar="DIR",
        help="folders that equipoise reproduce wrote to, such as one for each --shard",
    )
    parser.add_argument(
        "--out",
        type=Path,
        required=True,
        metavar="DIR",
        help="folder for all records; equipoise reproduce --redraw draws and judges them there",
    )


def run(args: Namespace) -> Gathered:
    """Merge, unless records of the same cell differ."""
    from equipoise_papers.reproduction.gather import gather

    return gather(args.directories, out=args.out)


def show(result: Gathered, args: Namespace, console: Console) -> None:
    """Print what was merged."""
    from equipoise_papers.report.terminal import show_gathered

    show_gathered(result, console)
