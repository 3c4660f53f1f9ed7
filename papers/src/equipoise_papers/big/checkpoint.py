"""A training's state in one file that is whole at any moment, and fits or says why not."""

from __future__ import annotations

import contextlib
import os
import zipfile
from pathlib import Path
from typing import Any

import torch

FORMAT = "equipoise.training/2"
PLAIN = (
    "Let state_dict() hold tensors, numbers, strings, and lists and dictionaries of them alone."
)
_MOST_NAMES = 3


class CheckpointError(ValueError):
    """A checkpoint cannot be written, read or continued; the message says why and what to do."""


def previous(path: Path) -> Path:
    """Where the checkpoint before the last one is kept."""
    return path.with_name(f"{path.name}.previous")


def write_checkpoint(path: Path, state: dict[str, Any]) -> None:
    """Write a state that readers find whole or not at all, even if power fails.

    The last checkpoint is kept beside it, see :func:`previous`. Should the process be killed
    just between the two renames, that one is read instead.

    Args:
        path: Its folder is made if it is missing.
        state: Tensors, numbers, strings, and lists, tuples and dictionaries of them.

    Raises:
        CheckpointError: If it cannot be written; the last checkpoint is then still there.
    """
    # One training writes here: a fixed name leaves no litter behind after kill -9.
    draft = path.with_name(f".{path.name}.part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with draft.open("wb") as file:
            torch.save({"format": FORMAT, **state}, file)
            file.flush()
            os.fsync(file.fileno())
        if path.exists():
            path.replace(previous(path))
        draft.replace(path)
        _settle(path.parent)
    # Whatever it is, other ranks wait to hear of it. PyTorch's writer has exceptions of its own
    # for a full disk, and pickle raises nearly anything.
    except Exception as error:
        with contextlib.suppress(OSError):
            draft.unlink(missing_ok=True)
        remedy = "Free some space or name another file; what was written before is still there."
        if not isinstance(error, OSError | RuntimeError):
            remedy = PLAIN
        reason = str(error).rstrip(".")
        raise CheckpointError(
            f"cannot write the checkpoint {str(path)!r}: {reason}. {remedy}"
        ) from error


def read_checkpoint(path: Path) -> dict[str, Any] | None:
    """Read the last whole state, on the CPU; ``None`` if there is none.

    Raises:
        CheckpointError: If the file is damaged, something else, or may not be read.
    """
    if path.is_dir():
        raise CheckpointError(f"the checkpoint {str(path)!r} is a folder. Name a file in it.")
    found = next((p for p in (path, previous(path)) if p.exists()), None)
    if found is None:
        return None
    try:
        _check_sums(found)
        state = torch.load(found, map_location="cpu", weights_only=True)
    except (PermissionError, MemoryError) as error:
        raise CheckpointError(
            f"cannot read the checkpoint {str(found)!r}: {str(error) or 'out of memory'}. Let "
            "this process read it, or name another file."
        ) from error
    except Exception as error:  # a damaged pickle raises nearly anything
        raise CheckpointError(_damaged(found, previous(path))) from error
    if not isinstance(state, dict) or state.get("format") != FORMAT:
        older = previous(path)
        both = found != older and older.exists()
        these = f"this one and {str(older)!r}" if both else "this one"
        raise CheckpointError(
            f"{str(found)!r} is no checkpoint of a training ({FORMAT}). Name another file, or "
            f"move {these} away to begin anew."
        )
    return state


def remove_checkpoint(path: Path) -> None:
    """Delete a checkpoint that is no longer needed, and the one before it."""
    for file in (path, previous(path)):
        file.unlink(missing_ok=True)


def require_same(path: Path, saved: dict[str, Any], here: dict[str, Any]) -> None:
    """Refuse to continue a training that is another one.

    Args:
        path: Named in the message.
        saved: What the checkpoint's training was, by topic; topics may be dictionaries.
        here: What this one is.

    Raises:
        CheckpointError: Naming the first differences.

    Examples:
        >>> require_same(Path("run.pt"), {"optimizer": "SGD"}, {"optimizer": "Adam"})
        Traceback (most recent call last):
        equipoise_papers.big.checkpoint.CheckpointError: 'run.pt' is of another training: optimizer
        was 'SGD', here it is 'Adam'. Repeat what it was written with, or name another file.
    """
    wrong = [line for topic in here for line in _differences(topic, saved.get(topic), here[topic])]
    if wrong:
        shown = "; ".join(wrong[:_MOST_NAMES])
        more = f"; and {len(wrong) - _MOST_NAMES} more" if len(wrong) > _MOST_NAMES else ""
        raise CheckpointError(
            f"{str(path)!r} is of another training: {shown}{more}. Repeat what it was written "
            "with, or name another file."
        )


def _differences(topic: str, saved: Any, here: Any) -> list[str]:
    if saved == here:
        return []
    if not (isinstance(saved, dict) and isinstance(here, dict)):
        return [f"{topic} was {saved!r}, here it is {here!r}"]
    names = [*here, *(name for name in saved if name not in here)]
    return [
        f"{topic} {name!r} was {saved.get(name, 'absent')}, here it is {here.get(name, 'absent')}"
        for name in names
        if saved.get(name) != here.get(name)
    ]


def _check_sums(path: Path) -> None:
    """PyTorch writes a checksum of every tensor, and does not look at them when it reads."""
    with zipfile.ZipFile(path) as archive:
        damaged = archive.testzip()
    if damaged is not None:
        raise ValueError(f"the checksum of {damaged!r} is wrong.")


def _damaged(path: Path, older: Path) -> str:
    remedy = "Remove it to begin anew."
    if older != path and older.exists():
        remedy = f"Remove it to go on from the one before, {str(older)!r}."
    return (
        f"the checkpoint {str(path)!r} is damaged or cut off ({path.stat().st_size} bytes). "
        f"{remedy}"
    )


def _settle(folder: Path) -> None:
    """Let the renames reach the disk, where the system can wait for a folder."""
    if os.name != "posix":
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
