"""Predict and measure whether a model can train, and say what to change."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from pathlib import Path
from typing import TYPE_CHECKING

from equipoise.cli.arguments import add_inputs, check_writable

if TYPE_CHECKING:  # --help does not wait for torch
    from rich.console import Console

    from equipoise.diagnosis.record import Checkup


# Seeds of --smoothness, at most: its trainings are measured on the way, which takes longer.
_MOST_TRAININGS = 3


def configure(parser: ArgumentParser) -> None:
    """Declare the arguments."""
    add_inputs(parser)
    parser.add_argument(
        "--seeds", type=int, default=6, help="initialisations to measure (default: %(default)s)"
    )
    parser.add_argument(
        "--batches", type=int, default=4, help="batches for each of them (default: %(default)s)"
    )
    parser.add_argument(
        "--try",
        dest="remedy",
        choices=("bnp",),
        help="train the model for a short while side by side: unchanged, on standardised inputs, "
        "and with batch normalisation preconditioning (bnp)",
    )
    parser.add_argument(
        "--smoothness",
        action="store_true",
        help="train the model for 60 steps with and without its normalisers, and with a verified "
        "remedy, and measure how far the gradient is reliable; without it, measure only at "
        "initialisation",
    )
    parser.add_argument(
        "--steps",
        type=int,
        default=200,
        help="steps of each training of --try (default: %(default)s)",
    )
    parser.add_argument(
        "--optimizer",
        choices=("sgd", "adam", "adamw"),
        default="sgd",
        help="optimiser of --try (sgd with momentum) and --smoothness (sgd without), each variant "
        "at its best learning rate (default: %(default)s)",
    )
    parser.add_argument(
        "--fail-on",
        choices=("critical", "warning", "note"),
        help="end with exit code 1 if a finding is as severe as that, or more",
    )
    parser.add_argument(
        "--out",
        type=Path,
        default=Path("equipoise-report"),
        metavar="DIR",
        help="where report.json and report.html go (default: %(default)s)",
    )


def run(args: Namespace) -> Checkup:
    """Run the check-up."""
    from equipoise import data, diagnosis
    from equipoise.cli.progress import bars
    from equipoise.cli.targets import choose_device, choose_loss, choose_target
    from equipoise.diagnosis.checkup import checkup

    check_writable(args.out)
    trial = smoothness = None
    if args.remedy == "bnp":
        trial = diagnosis.TrialOptions(args.optimizer, steps=args.steps)
    if args.smoothness:
        seeds = max(1, min(args.seeds, _MOST_TRAININGS))
        smoothness = diagnosis.SmoothnessOptions(args.optimizer, seeds=seeds)
    source = data.load(args.data, data_dir=args.data_dir, download=args.download)
    name, build = choose_target(args.target, args.arg, source, args.batch_size)
    with bars() as progress:
        return checkup(
            build,
            source,
            loss_fn=choose_loss(args.loss),
            batch_size=args.batch_size,
            seeds=args.seeds,
            batches=args.batches,
            device=choose_device(args.device),
            target=name,
            trial=trial,
            smoothness=smoothness,
            progress=progress,
        )


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
    from equipoise.report.checkup.terminal.overview import print_checkup

    print_checkup(checkup, console)
