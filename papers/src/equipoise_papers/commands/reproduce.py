"""Reproduce a published figure, or all of them, judge the claims, report and check reports."""

from __future__ import annotations

import os
import re
import sys
from argparse import ArgumentParser, ArgumentTypeError, Namespace
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # --help does not wait for torch
    from rich.console import Console

    from equipoise_papers.report.record import PublishedReport
    from equipoise_papers.reproduction.catalogue import Catalogue
    from equipoise_papers.reproduction.check.record import PublishedCheck
    from equipoise_papers.reproduction.gather import Gathered
    from equipoise_papers.reproduction.record import AllReproductions, Reproductions

    Result = (
        Catalogue | Reproductions | AllReproductions | PublishedReport | Gathered | PublishedCheck
    )


# Seconds after a signal: what is finished is stored already.
ENDS_WITHIN = 2.0
# Options that only `check` takes.
_OF_CHECK = ("cells", "seed", "only")


def configure(parser: ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument(
        "name",
        nargs="?",
        metavar="NAME",
        help="yang2019.fig1 for a whole figure, yang2019.fig1a for one panel, and so on; all for "
        "every experiment; report for a page about the records in --out; unpack to copy the "
        "records of a report into --out; check to compute some of them anew and compare",
    )
    parser.add_argument(
        "--scale",
        choices=("smoke", "small", "paper"),
        default="small",
        help="smoke takes seconds, small minutes, paper the paper's settings, whose cost is "
        "estimated first (default: %(default)s)",
    )
    parser.add_argument(
        "--yes",
        action="store_true",
        help="start scale paper even if it takes more than a day",
    )
    parser.add_argument(
        "--out",
        type=Path,
        default=Path("reproduction"),
        metavar="DIR",
        help="folder for records and figures; records that it holds already are not computed "
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
        help="folder with the archives of the data sets that scale paper needs, such as CIFAR-10 "
        "(default: $EQUIPOISE_DATA)",
    )
    parser.add_argument(
        "--page",
        type=Path,
        metavar="DIR",
        help="folder of the report that `report` writes, `unpack` and `check` read (default: "
        "report in --out)",
    )
    parser.add_argument(
        "--list", action="store_true", help="list the names, or those that begin with NAME"
    )
    _configure_check(parser)
    _configure_engine(parser)


def _configure_check(parser: ArgumentParser) -> None:
    group = parser.add_argument_group("what `check` draws")
    group.add_argument(
        "--cells", type=int, metavar="N", help="how many cells, of every kind some (default: 100)"
    )
    group.add_argument(
        "--seed", type=int, metavar="N", help="another seed draws other cells (default: 0)"
    )
    group.add_argument(
        "--only", metavar="NAME", help="draw cells of this experiment or figure alone"
    )


def _configure_engine(parser: ArgumentParser) -> None:
    group = parser.add_argument_group("where to compute")
    group.add_argument(
        "--jobs",
        type=int,
        metavar="N",
        help="cells at once, one core each (default: as many as there are cores; one where "
        "starting workers would take longer than the work, as at scale smoke)",
    )
    group.add_argument(
        "--device",
        metavar="NAME",
        help="where trainings run, such as cuda or cpu (default: cpu, but a GPU, if there is one, "
        "for the residual networks and VGGs of scale paper)",
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
        help="address of the cluster's scheduler, such as tcp://localhost:8786 for dask",
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


def run(args: Namespace) -> Result | None:
    """Reproduce, report, unpack or list; ``None`` on ranks of torchrun that follow rank 0."""
    if args.list:
        from equipoise_papers.reproduction.catalogue import catalogue

        return catalogue(args.name)
    if args.name is None:
        raise ValueError("which figure? Give a name such as yang2019.fig1, or --list them all.")
    _refuse_what_belongs_elsewhere(args)
    if args.data_dir is not None:
        if not args.data_dir.is_dir():
            raise ValueError(f"There is no folder {str(args.data_dir)!r} to look for data in.")
        # Worker processes inherit it.
        os.environ["EQUIPOISE_DATA"] = str(args.data_dir.resolve())
    if args.device is not None:
        from equipoise_papers.devices import DEVICE_VARIABLE, checked_device

        os.environ[DEVICE_VARIABLE] = str(checked_device(args.device))
    others: dict[str, Callable[[Namespace], Result]] = {
        "all": _all,
        "report": _report,
        "unpack": _unpack,
        "check": _check,
    }
    command = others.get(args.name, _named)
    if "TORCHELASTIC_RUN_ID" not in os.environ:
        return command(args)
    from equipoise_papers.experiments.torchrun import all_ranks

    with all_ranks() as leads:
        return command(args) if leads else None


def _refuse_what_belongs_elsewhere(args: Namespace) -> None:
    if args.page is not None and args.name not in ("report", "unpack", "check"):
        raise ValueError(
            "--page is where `report` writes to, and `unpack` and `check` read from, not for "
            f"{args.name!r}. Leave it out, and run `equipoise reproduce report` afterwards."
        )
    for option in _OF_CHECK:
        if getattr(args, option) is not None and args.name != "check":
            raise ValueError(
                f"--{option} says what `equipoise reproduce check` draws, and is not for "
                f"{args.name!r}. Leave it out."
            )
    if args.name == "check" and args.redraw:
        raise ValueError(
            "check computes cells anew, so that --redraw is not for it. Leave it out."
        )
    if args.name == "check" and args.shard != (1, 1):
        raise ValueError(
            "check computes a sample, not a part: leave --shard out, and give each machine "
            "another --seed."
        )


def show(result: Result, args: Namespace, console: Console) -> None:
    """Print verdicts, the catalogue, or what was published, unpacked or checked."""
    from equipoise_papers.report import terminal
    from equipoise_papers.report.check import show_check
    from equipoise_papers.report.record import PublishedReport
    from equipoise_papers.reproduction.catalogue import Catalogue
    from equipoise_papers.reproduction.check.record import PublishedCheck
    from equipoise_papers.reproduction.gather import Gathered
    from equipoise_papers.reproduction.record import AllReproductions

    match result:
        case Catalogue():
            terminal.show_catalogue(result, console)
        case AllReproductions():
            terminal.show_all(result, console)
        case PublishedReport():
            terminal.show_report(result, console)
        case Gathered():
            terminal.show_gathered(result, console)
        case PublishedCheck():
            show_check(result, console)
        case _:
            terminal.show_reproductions(result, console)


def verify(result: Result, args: Namespace) -> None:
    """Raise if something failed, so that the exit code says so; not what was only drawn again."""
    from equipoise_papers.reproduction.check.record import PublishedCheck
    from equipoise_papers.reproduction.record import AllReproductions, Reproductions

    kinds = AllReproductions | Reproductions | PublishedCheck
    if isinstance(result, kinds) and not args.redraw:
        result.raise_if_failed()


def _named(args: Namespace) -> Reproductions:
    from equipoise.cli import bars
    from equipoise_papers.reproduction.reproduce import reproduce

    _estimate(args)
    with bars() as progress:
        return reproduce(args.name, redraw=args.redraw, progress=progress, **_where(args))


def _all(args: Namespace) -> AllReproductions:
    from equipoise_papers.commands.progress import overall
    from equipoise_papers.reproduction.everything import reproduce_all

    if args.redraw:
        raise ValueError(
            "all --redraw would compute nothing: `equipoise reproduce report` draws and judges "
            "all stored records again."
        )
    _estimate(args)
    with overall() as (progress, concluded):
        return reproduce_all(progress=progress, concluded=concluded, **_where(args))


def _report(args: Namespace) -> PublishedReport:
    from equipoise.cli import bars
    from equipoise_papers.report.collect import publish

    with bars() as progress:
        return publish(args.out, scale=args.scale, page=_page(args), progress=progress)


def _unpack(args: Namespace) -> Gathered:
    from equipoise_papers.report.collect import RECORDS
    from equipoise_papers.reproduction.archive import unpack

    return unpack(_page(args) / RECORDS, out=args.out)


def _check(args: Namespace) -> PublishedCheck:
    from equipoise.cli import bars
    from equipoise_papers.reproduction.check.run import check_published

    drawn = {name: getattr(args, name) for name in _OF_CHECK}
    where = _where(args)
    del where["shard"]
    with bars() as progress:
        return check_published(
            _page(args),
            progress=progress,
            say=lambda line: print(line, file=sys.stderr, flush=True),
            **{name: value for name, value in drawn.items() if value is not None},
            **where,
        )


def _estimate(args: Namespace) -> None:
    """Say what scale ``paper`` costs, and refuse what nobody has agreed to."""
    # Ranks of torchrun compute each cell together: one of them alone cannot try it.
    if args.scale != "paper" or args.redraw or "TORCHELASTIC_RUN_ID" in os.environ:
        return
    from equipoise_papers.reproduction.price import prices, start_or_refuse

    print(f"Timing a few steps of {args.name} …", file=sys.stderr, flush=True)
    found = prices(args.name, out=args.out, jobs=args.jobs, shard=args.shard)
    start_or_refuse(found, agreed=args.yes, say=lambda line: print(line, file=sys.stderr))


def _where(args: Namespace) -> dict[str, Any]:
    names = ("scale", "out", "jobs", "backend", "scheduler", "shard")
    return {name: getattr(args, name) for name in names}


def _page(args: Namespace) -> Path:
    page: Path = args.page or args.out / "report"
    return page
