"""Arguments that several subcommands share: which model, which data, where to."""

from __future__ import annotations

import errno
import os
from argparse import ArgumentParser, ArgumentTypeError, Namespace
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryFile
from typing import TYPE_CHECKING

from equipoise.files import refuse_file_name

if TYPE_CHECKING:  # --help does not wait for torch
    from argparse import _ActionsContainer  # a parser, or a group of its arguments

    from rich.console import Console

    from equipoise.diagnosis.record import Checkup

# A full disk, a quota, and a limit on the size of files (ulimit -f).
NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
# Bytes that a report may need: the largest of the tests' have 1 MB, of a model of 200 layers.
_ROOM = 4 * 2**20
# Folders in one another, and letters of a path in a message.
_DEEPEST, _LONGEST = 200, 200
# Of the default model: its gradients differ by e^26, and about 41 of its 63 blocks could train.
DEPTH = 64
# Seconds after a signal in which a check-up or a probe reports what was finished: two or three as
# a rule, of which a busy machine makes more.
REPORTED_WITHIN = 20.0
# Where a check-up writes, and where its report is looked for.
DIRECTORY = "equipoise-report"


def add_inputs(parser: ArgumentParser) -> None:
    """Declare the model, the data, the loss and the device."""
    group = parser.add_argument_group("model and data")
    group.add_argument(
        "target",
        nargs="?",
        metavar="TARGET",
        help="file.py:name or package.module:name of a class or function that builds a "
        "torch.nn.Module, or of a module; by default a batch-normalised ReLU network, "
        f"{DEPTH} layers deep",
    )
    group.add_argument(
        "--arg",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="keyword argument for the factory; may be repeated",
    )
    group.add_argument(
        "--checkpoint",
        type=Path,
        metavar="FILE",
        help="weights that torch.save wrote, or a training's whole checkpoint; the model is then "
        "checked as it is",
    )
    group.add_argument(
        "--data",
        default="digits",
        help="digits, fashion-mnist, mnist, cifar10, cifar100, text:64 (characters, for language "
        "models), random:3x32x32:10, or file.py:name of a DataLoader, a Dataset or an iterable of "
        "(input, target) batches (default: %(default)s)",
    )
    group.add_argument("--data-dir", type=Path, help="folder with the data's archives")
    group.add_argument("--download", action="store_true", help="download the data if missing")
    group.add_argument(
        "--batch-size",
        type=int,
        help="default: 64, or all samples where there are fewer; a loader's batches keep their "
        "own size",
    )
    group.add_argument(
        "--loss",
        default="auto",
        help="auto, cross-entropy, mse, or a function of (model, batch) or of (output, target), "
        "as file.py:name or torch.nn:functional.l1_loss (default: auto)",
    )
    group.add_argument("--device", default="cpu", help="such as cuda, mps (default: cpu)")


def add_forms(parser: _ActionsContainer) -> None:
    """Declare how much of a check-up is printed, and as what."""
    parser.add_argument(
        "--full", action="store_true", help="print the whole report, not its first screen alone"
    )
    parser.add_argument(
        "--markdown",
        action="store_true",
        help="print a summary in Markdown, such as for a pull request",
    )


def print_as_asked(checkup: Checkup, args: Namespace, console: Console) -> None:
    """Print a check-up in the form that :func:`add_forms` has declared."""
    from equipoise.report.checkup.markdown import markdown
    from equipoise.report.checkup.terminal.overview import print_checkup

    if args.markdown:
        print(markdown(checkup))
    else:
        print_checkup(checkup, console, full=args.full)


def whole(most: int) -> Callable[[str], int]:
    """A type of argument: a whole number from 1 to ``most``, beyond which nothing would end."""

    def number(text: str) -> int:
        try:
            found = int(text)
        except ValueError:
            found = 0
        if not 1 <= found <= most:
            raise ArgumentTypeError(f"takes a whole number from 1 to {most:,}, got {text[:40]!r}")
        return found

    return number


def check_writable(path: Path) -> None:
    """Before any work is lost, see that a report can be written and finds room.

    Raises:
        ValueError: If it cannot be written there.
        OSError: If there is no room for it: a full disk, a quota or a limit on files.
    """
    refuse_file_name(path)
    if len(path.absolute().parts) > _DEEPEST:  # pathlib makes them one inside the other
        raise ValueError(
            f"cannot write the report to {shortened(path)!r}: it is more than {_DEEPEST} folders "
            "deep. Name another folder with --out."
        )
    try:
        os.path.lexists(path)  # a name may be too long to ask for
        if path.is_symlink() and not path.exists():
            raise FileNotFoundError(errno.ENOENT, "it is a link to a place that is not there")
        existing = next(folder for folder in (path, *path.absolute().parents) if folder.exists())
        if not existing.is_dir():
            raise NotADirectoryError(errno.ENOTDIR, "it is not a folder")
        with TemporaryFile(dir=existing) as file:
            file.write(bytes(_ROOM))
    except OSError as error:
        why = f"cannot write the report to {shortened(path)!r}: {error.strerror}."
        if error.errno in NO_ROOM:
            room = (
                f"It may need {_ROOM // 2**20} MB. Make room, or name another folder with --out."
            )
            raise OSError(error.errno, f"{why} {room}") from error
        raise ValueError(f"{why} Name another folder with --out.") from error


def shortened(path: Path) -> str:
    """A path for a message, cut in the middle if it is very long."""
    text = str(path)
    return text if len(text) <= _LONGEST else f"{text[:60]}…{text[-30:]}"
