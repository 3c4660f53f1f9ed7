"""Predict and measure whether a model can train, and say what to change."""

from __future__ import annotations

import sys
from argparse import ArgumentParser, ArgumentTypeError, Namespace
from pathlib import Path
from typing import TYPE_CHECKING

from equipoise.cli.arguments import (
    DIRECTORY,
    REPORTED_WITHIN,
    add_forms,
    add_inputs,
    check_writable,
    print_as_asked,
    whole,
)
from equipoise.cli.flags import in_flags
from equipoise.cli.imports import import_at_once

if TYPE_CHECKING:  # --help does not wait for torch
    from argparse import _ActionsContainer

    from rich.console import Console

    from equipoise.diagnosis.fix.options import FixOptions
    from equipoise.diagnosis.record import Checkup


ENDS_WITHIN = REPORTED_WITHIN
# Seeds of --smoothness, at most: its trainings are measured on the way, which takes longer.
_MOST_TRAININGS = 3
# Budget of --fix for the default model.
_DEFAULT_SECONDS = 20.0
_UNITS = {"s": 1.0, "m": 60.0, "h": 3600.0}


def configure(parser: ArgumentParser) -> None:
    """Declare the arguments."""
    add_inputs(parser)
    _add_measurements(parser.add_argument_group("what is measured"))
    _add_trainings(parser.add_argument_group("trainings"))
    report = parser.add_argument_group("report")
    add_forms(report)
    report.add_argument(
        "--fail-on",
        choices=("critical", "warning", "note"),
        help="end with exit code 1 if a finding is as severe as that, or more",
    )
    report.add_argument(
        "--out",
        type=Path,
        default=Path(DIRECTORY),
        metavar="DIR",
        help="where report.json and report.html go (default: %(default)s)",
    )


def _add_measurements(parser: _ActionsContainer) -> None:
    parser.add_argument(
        "--seeds",
        type=whole(10_000),
        default=5,
        help="initialisations to measure (default: %(default)s)",
    )
    parser.add_argument(
        "--batches",
        type=whole(10_000),
        default=2,
        help="batches for each of them (default: %(default)s)",
    )
    parser.add_argument(
        "--preconditioning",
        action="store_true",
        help="measure what preconditioning would do to the condition numbers of layers' inputs",
    )
    parser.add_argument(
        "--hessian",
        action="store_true",
        help="as --preconditioning, and what it would do to the condition numbers of the Hessian "
        "of one unit of every layer; takes long",
    )


def _add_trainings(parser: _ActionsContainer) -> None:
    parser.add_argument(
        "--fix",
        nargs="?",
        const="all",
        choices=("all", "norms", "starts", "weights", "activations", "bnp", "none"),
        help="train remedies beside the model as it is, each at its best learning rate, and rank "
        "them: all that apply, or only other norms, starts of their shift and scale, sizes of "
        "weights, activations, or batch normalisation preconditioning (default: none for a model "
        "of yours, all for the default model)",
    )
    parser.add_argument(
        "--budget",
        type=_seconds,
        metavar="TIME",
        help="for all trainings of --fix, such as 60s or 5m (default: 60s, or no limit with "
        f"--steps; of the default model {_DEFAULT_SECONDS:.0f}s); without --fix, for the whole "
        "check-up, so that optional measurements that fit are made",
    )
    parser.add_argument(
        "--steps",
        type=whole(10_000_000),
        help="steps of each judged training of --fix (default: what fits into the budget, at most "
        "200)",
    )
    parser.add_argument(
        "--optimizer",
        help="your own, as file.py:name of a function of the model that returns it: what it holds "
        "is looked at, and a few of its steps show whether the learning rate is too large; or "
        "sgd, adam or adamw, with which --fix and --smoothness train each variant at its best "
        "learning rate (default: sgd, in --fix with momentum). --fix takes your own if it is one "
        "of these",
    )
    parser.add_argument(
        "--smoothness",
        action="store_true",
        help="train the model for 60 steps with and without its normalisers, and with a verified "
        "remedy, and measure how far the gradient is reliable; within a --budget that is measured "
        "at initialisation alone",
    )


def run(args: Namespace) -> Checkup:
    """Run the check-up."""
    check_writable(args.out)
    import_at_once("equipoise.diagnosis", "equipoise.report.checkup.page", "matplotlib.figure")
    from equipoise.cli.targets import choose_optimizer, examine
    from equipoise.diagnosis.checkup import checkup
    from equipoise.diagnosis.smoothness.measure import SmoothnessOptions

    smoothness = None
    own = choose_optimizer(args.optimizer)
    named = args.optimizer if own is None else None
    fix = _fix(args, named)
    if args.smoothness:
        seeds = max(1, min(args.seeds, _MOST_TRAININGS))
        smoothness = SmoothnessOptions(named or "sgd", seeds=seeds)
    return examine(
        checkup,
        args,
        optimizer=own,
        seeds=args.seeds,
        batches=args.batches,
        fix=fix,
        folder=args.out,
        smoothness=smoothness,
        preconditioning=args.preconditioning,
        hessian=args.hessian,
        budget=None if fix is not None else args.budget,
        notice=lambda words: print(in_flags(words), file=sys.stderr, flush=True),
    )


def _fix(args: Namespace, optimizer: str | None) -> FixOptions | None:
    """Which remedies to train; of the default model all, for a short while."""
    from equipoise.diagnosis.fix.options import FixOptions

    family, budget = args.fix, args.budget
    if family is None and args.target is None:
        family, budget = "all", budget or _DEFAULT_SECONDS
    if family in (None, "none"):
        if args.steps is not None:
            raise ValueError("--steps belongs to --fix. Add --fix.")
        return None
    return FixOptions(family, optimizer, budget=budget, steps=args.steps)


def _seconds(text: str) -> float:
    """Seconds of a time such as 60s, 5m, 1h or 90."""
    number, unit = (text[:-1], text[-1:]) if text[-1:] in _UNITS else (text, "s")
    try:
        return float(number) * _UNITS[unit]
    except ValueError as error:
        raise ArgumentTypeError(f"{text!r} is no time; write 60s, 5m or 1h") from error


def save(checkup: Checkup, args: Namespace) -> Path:
    """Write the report, and return the page."""
    from equipoise.report.checkup.store import save

    return save(checkup, args.out)


def verify(checkup: Checkup, args: Namespace) -> None:
    """Raise if the worst finding is as severe as ``--fail-on`` says."""
    from equipoise.records.finding import SEVERITIES

    found = checkup.verdict.severity
    if args.fail_on is None or found is None:
        return
    if SEVERITIES.index(found) <= SEVERITIES.index(args.fail_on):
        worst = next(one for one in checkup.findings if one.severity == found)
        raise ChildProcessError(f"{found}: {worst.title} (--fail-on {args.fail_on}).")


def show(checkup: Checkup, args: Namespace, console: Console) -> None:
    """Print the report."""
    print_as_asked(checkup, args, console)
