"""What the user is told of an exception: the message in one line, and where it came from."""

from __future__ import annotations

import functools
import os
import re
import sys
import sysconfig
import traceback
from pathlib import Path

from equipoise.cli.arguments import shortened
from equipoise.cli.imports import added_commands
from equipoise.records.exceptions import text_of, with_causes

# Where Python, the library and what is installed lie: everything else is the user's.
_INSTALLED = tuple(
    {f"{Path(path).resolve()}{os.sep}" for path in sysconfig.get_paths().values()}
    | {f"{Path(__file__).resolve().parents[1]}{os.sep}"}
)


@functools.cache
def _installed() -> tuple[str, ...]:
    """Folders whose files are not the user's, those of packages that add commands among them."""
    packages = {re.split("[.:]", entry.value)[0] for entry in added_commands()}
    loaded = [sys.modules[name] for name in packages if name in sys.modules]
    own = [f"{Path(m.__file__).resolve().parent}{os.sep}" for m in loaded if m.__file__]
    return (*_INSTALLED, *own)


def last_frame_of_user(error: BaseException) -> str | None:
    """The last line of the user's own files that an error, or one behind it, went through."""
    chain: dict[int, BaseException] = {}
    step: BaseException | None = error
    while step is not None and id(step) not in chain:
        chain[id(step)] = step
        step = step.__cause__ or step.__context__
    for one in reversed(chain.values()):
        for frame in reversed(traceback.extract_tb(one.__traceback__)):
            path = frame.filename
            if Path(path).is_file() and not str(Path(path).resolve()).startswith(_installed()):
                return f"{path}:{frame.lineno} in {frame.name}"
    return None


def in_one_line(error: BaseException, place: str | None) -> str:
    """Stage, class and message of an exception, and where to look."""
    stage = "".join(f"{note} " for note in getattr(error, "__notes__", ()))
    message = " ".join(words(error).split())
    if isinstance(error, OSError) and place is None:
        file = f"cannot write {shortened(Path(error.filename))}: " if error.filename else ""
        return f"{stage}{file}{error.strerror or message}."
    known = f"{stage}{type(error).__name__}: {message:.500}".rstrip(": ")
    return f"{known} ({f'{place}; ' if place else ''}--debug shows the whole trace.)"


def words(error: BaseException) -> str:
    """The message; of an exception in a DataLoader's worker without the trace that it holds."""
    head, mark, trace = text_of(error).partition("Original Traceback (most recent call last):")
    return f"{head.strip().rstrip('.')}: {trace.strip().splitlines()[-1]}" if mark else head


def failed_on_batch(error: BaseException | None) -> bool:
    """Whether the message tells of another exception, whose place --debug shows."""
    refusals = sys.modules.get("equipoise.diagnosis.refusals")  # theory does without
    if refusals is None:
        return False
    return any(isinstance(one, refusals.FailedOnBatchError) for one in with_causes(error))


def failed_in_torch(error: BaseException) -> bool:
    """Whether PyTorch refused what a model of its own layers did, at a stage that is known.

    As with batches of varying shapes, for which no line of the user's is on the way.
    """
    frames = traceback.extract_tb(error.__traceback__)
    folder = f"{os.sep}torch{os.sep}"
    # What tells that a loader's worker has died may come anywhere, as a signal does.
    by_loader = f"{folder}utils{os.sep}data{os.sep}"
    if not frames or folder not in frames[-1].filename:
        return False
    return hasattr(error, "__notes__") or by_loader in frames[-1].filename
