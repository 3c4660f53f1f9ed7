"""Reproduce a published figure and judge its claim."""

from __future__ import annotations

import os
import re
from argparse import ArgumentParser, ArgumentTypeError, Namespace
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
    parser.add_argument(
        "--data-dir",
        type=Path,
        metavar="DIR",
        help="folder with the archives of the data sets that scale paper takes, such as CIFAR-10 "
        "(default: $EQUIPOISE_DATA)",
    )
    parser.add_argument("--list", action="store_true", help="list the names and what they show")
    _configure_engine(parser)


def _configure_engine(parser: ArgumentParser) -> None:
    group = parser.add_argument_group("where to compute")
    group.add_argument(
        "--jobs",
        type=int,
        metavar="N",
        help="cells at once, one core each (default: as many as there are cores; one for work "
        "too quick to be worth more, as at scale smoke)",
    )
    group.add_argument(
        "--backend",
        choices=("loky", "threading", "dask", "ray"),
        default="loky",
        help="loky: processes here; threading: threads here; dask, ray: a cluster "
        "(default: %(default)s)",
    )
    group.add_argument(
        "--scheduler",
        metavar="ADDRESS",
        help="the cluster's, such as tcp://localhost:8786 for dask",
    )
    group.add_argument(
        "--shard",
        type=_shard,
        default=(1, 1),
        metavar="I/N",
        help="compute part I of N of the cells, from 1/N to N/N, such as one on each machine; "
        "equipoise gather merges them",
    )


def _shard(text: str) -> tuple[int, int]:
    match = re.fullmatch(r"(\d+)/(\d+)", text)
    if match is None:
        raise ArgumentTypeError(f"takes I/N, such as 1/4, got {text!r}")
    return int(match[1]), int(match[2])


def run(args: Namespace) -> Catalogue | Reproductions:
    """Reproduce, or list what can be."""
    from equipoise import experiments
    from equipoise.cli.progress import bars

    if args.list:
        return experiments.catalogue()
    if args.name is None:
        raise ValueError("which figure? Give a name such as yang2019.fig1, or --list them all.")
    if args.data_dir is not None:
        if not args.data_dir.is_dir():
            raise ValueError(f"There is no folder {str(args.data_dir)!r} to look for data in.")
        # Worker processes inherit it.
        os.environ["EQUIPOISE_DATA"] = str(args.data_dir.resolve())
    with bars() as progress:
        return experiments.reproduce(
            args.name,
            scale=args.scale,
            out=args.out,
            redraw=args.redraw,
            jobs=args.jobs,
            backend=args.backend,
            scheduler=args.scheduler,
            shard=args.shard,
            progress=progress,
        )
