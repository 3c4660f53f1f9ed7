"""Reproduce a published figure and judge its claim."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # --help does not wait for torch
    from equipoise.records.experiments import Catalogue, Reproductions


def configure(parser: ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument(
        "name",
        nargs="?",
        metavar="NAME",
        help="such as yang2019.fig1 for a whole figure, yang2019.fig1a for one panel",
    )
    parser.add_argument(
        "--scale",
        choices=("smoke", "small", "paper"),
        default="small",
        help="smoke takes seconds, small minutes, paper the paper's settings "
        "(default: %(default)s)",
    )
    parser.add_argument(
        "--out",
        type=Path,
        default=Path("reproduction"),
        metavar="DIR",
        help="where records and figures go; records that are there already are not computed "
        "again (default: %(default)s)",
    )
    parser.add_argument(
        "--redraw",
        action="store_true",
        help="make figures and verdicts from stored records, without computing anything",
    )
    parser.add_argument("--list", action="store_true", help="list the names and what they show")


def run(args: Namespace) -> Catalogue | Reproductions:
    """Reproduce, or list what can be."""
    from equipoise import experiments
    from equipoise.cli.progress import bars

    if args.list:
        return experiments.catalogue()
    if args.name is None:
        raise ValueError("which figure? Give a name such as yang2019.fig1, or --list them all.")
    with bars() as progress:
        return experiments.reproduce(
            args.name, scale=args.scale, out=args.out, redraw=args.redraw, progress=progress
        )
