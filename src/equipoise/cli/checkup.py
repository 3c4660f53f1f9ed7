"""Predict and measure whether a model can train, and say what to change."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from errno import ENOTDIR
from functools import partial
from pathlib import Path
from tempfile import TemporaryFile
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # --help does not wait for torch
    from equipoise.records import Checkup


def configure(parser: ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument(
        "target",
        nargs="?",
        metavar="TARGET",
        help="file.py:factory or package.module:factory, a callable that returns a "
        "torch.nn.Module; by default a batch-normalised ReLU network, 32 layers deep",
    )
    parser.add_argument(
        "--arg",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="keyword argument for the factory; may be repeated",
    )
    parser.add_argument(
        "--data",
        default="digits",
        help="digits, fashion-mnist, mnist, cifar10, cifar100, random:3x32x32:10, or "
        "file.py:name of a DataLoader, a Dataset or an iterable of (input, target) batches "
        "(default: %(default)s)",
    )
    parser.add_argument("--data-dir", type=Path, help="folder with the data's archives")
    parser.add_argument("--download", action="store_true", help="download the data if missing")
    parser.add_argument("--batch-size", type=int, default=64, help="default: %(default)s")
    parser.add_argument(
        "--loss",
        default="auto",
        help="auto, cross-entropy, mse, or file.py:name of a function (model, batch) → scalar",
    )
    parser.add_argument("--device", default="cpu", help="such as cpu, cuda, mps")
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
        "--steps", type=int, default=200, help="steps of each run of --try (default: %(default)s)"
    )
    parser.add_argument(
        "--optimizer",
        choices=("sgd", "adam", "adamw"),
        default="sgd",
        help="optimiser of --try, each arm with its best rate (default: %(default)s)",
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

    _check_writable(args.out)
    if args.remedy is not None:
        diagnosis.check_trial(args.optimizer, args.steps)
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
            progress=progress,
        )


def _check_writable(path: Path) -> None:
    """Before any work is lost, see that the report can be written."""
    existing = next(folder for folder in (path, *path.absolute().parents) if folder.exists())
    try:
        if not existing.is_dir():
            raise NotADirectoryError(ENOTDIR, "it is not a folder")
        with TemporaryFile(dir=existing):
            pass
    except OSError as error:
        raise ValueError(
            f"cannot write the report to {str(path)!r}: {error.strerror}. Name another folder "
            "with --out."
        ) from error
