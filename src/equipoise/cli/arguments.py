"""Arguments that several subcommands share: which model, which data, where to."""

from __future__ import annotations

from argparse import ArgumentParser
from errno import ENOTDIR
from pathlib import Path
from tempfile import TemporaryFile


def add_inputs(parser: ArgumentParser) -> None:
    """Declare the model, the data, the loss and the device."""
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


def check_writable(path: Path) -> None:
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
