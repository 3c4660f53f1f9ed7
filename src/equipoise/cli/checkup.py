"""Predict and measure whether a model can train, and say what to change."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from equipoise.cli.arguments import add_inputs, check_writable

if TYPE_CHECKING:  # --help does not wait for torch
    from rich.console import Console

    from equipoise.diagnosis.record import Checkup


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
        help="train the model for a short while side by side: as it is, on standardised inputs, "
        "and with batch normalisation preconditioning (bnp)",
    )
    parser.add_argument(
        "--smoothness",
        action="store_true",
        help="train the model for 60 steps with and without its normalisers, and with a verified "
        "remedy, and look how far the gradient can be trusted; without it only the start is "
        "looked at",
    )
    parser.add_argument(
        "--steps", type=int, default=200, help="steps of each run of --try (default: %(default)s)"
    )
    parser.add_argument(
        "--optimizer",
        choices=("sgd", "adam", "adamw"),
        default="sgd",
        help="optimiser of --try (sgd with momentum) and --smoothness (sgd without), each arm "
        "with its best rate (default: %(default)s)",
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
    from equipoise.diagnosis.smoothness.measure import SEEDS
    from equipoise.diagnosis.trial.measure import check_trial

    check_writable(args.out)
    if args.remedy is not None:
        check_trial(args.optimizer, args.steps)
    source = data.load(args.data, data_dir=args.data_dir, download=args.download)
    name, build = choose_target(args.target, args.arg, source, args.batch_size)
    loss, device = choose_loss(args.loss), choose_device(args.device)
    with bars() as progress:
        trial = partial(
            diagnosis.try_bnp,
            build,
            source,
            loss_fn=loss,
            batch_size=args.batch_size,
            optimizer=args.optimizer,
            steps=args.steps,
            device=device,
            progress=progress,
        )
        smoothness = partial(
            diagnosis.smoothness,
            build,
            source,
            loss_fn=loss,
            batch_size=args.batch_size,
            optimizer=args.optimizer,
            seeds=min(args.seeds, SEEDS),
            device=device,
            progress=progress,
        )
        return diagnosis.checkup(
            build,
            source,
            loss_fn=loss,
            batch_size=args.batch_size,
            seeds=args.seeds,
            batches=args.batches,
            device=device,
            target=name,
            trial=trial if args.remedy == "bnp" else None,
            smoothness=smoothness if args.smoothness else None,
            progress=progress,
        )


def save(checkup: Checkup, args: Namespace) -> Path:
    """Write the report, and return the page."""
    from equipoise import report

    _, page = report.save(checkup, args.out)
    return page


def show(checkup: Checkup, args: Namespace, console: Console) -> None:
    """Print the report."""
    from equipoise import report

    report.print_checkup(checkup, console)
