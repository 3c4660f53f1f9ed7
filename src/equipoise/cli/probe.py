"""Probe the loss around a model: landscape, covariate shift, curvature, a short training."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from pathlib import Path
from typing import TYPE_CHECKING

from equipoise.cli.arguments import REPORTED_WITHIN, add_inputs, check_writable, whole
from equipoise.cli.imports import import_at_once

if TYPE_CHECKING:  # --help does not wait for torch
    from rich.console import Console

    from equipoise.diagnosis.record import Probe

ENDS_WITHIN = REPORTED_WITHIN


def configure(parser: ArgumentParser) -> None:
    """Declare the arguments."""
    add_inputs(parser)
    parser.add_argument(
        "--rate",
        type=float,
        help="learning rate of plain SGD; by default the best one of the short training",
    )
    parser.add_argument(
        "--steps",
        type=int,
        default=60,
        help="steps of the short training, 0 for none (default: %(default)s)",
    )
    parser.add_argument(
        "--measurements",
        type=int,
        default=5,
        help="measurements during the training (default: %(default)s)",
    )
    parser.add_argument(
        "--seeds",
        type=whole(10_000),
        default=3,
        help="trainings, one for each seed (default: %(default)s)",
    )
    parser.add_argument(
        "--hessian",
        action="store_true",
        help="find the extremal eigenvalues of the Hessian, whole and per layer; takes the "
        "longest",
    )
    parser.add_argument(
        "--out",
        type=Path,
        default=Path("equipoise-probe"),
        metavar="DIR",
        help="where probe.json and probe.html go (default: %(default)s)",
    )


def run(args: Namespace) -> Probe:
    """Probe."""
    import_at_once("equipoise.diagnosis", "equipoise.report.probe.page", "matplotlib.figure")
    from equipoise.cli.targets import examine
    from equipoise.diagnosis.probe import measure
    from equipoise.diagnosis.smoothness.measure import SmoothnessOptions

    check_writable(args.out)
    training = None
    if args.steps:
        training = SmoothnessOptions(
            rate=args.rate, steps=args.steps, measurements=args.measurements, seeds=args.seeds
        )
    return examine(measure, args, rate=args.rate, training=training, hessian=args.hessian)


def save(probe: Probe, args: Namespace) -> Path:
    """Write the report, and return the page."""
    from equipoise.report.probe.page import save_probe

    return save_probe(probe, args.out)


def show(probe: Probe, args: Namespace, console: Console) -> None:
    """Print the report."""
    from equipoise.report.probe.terminal import print_probe

    print_probe(probe, console)
