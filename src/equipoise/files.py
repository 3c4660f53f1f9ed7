"""Write files completely or not at all."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

_DRAFT = ".part"
# Seconds after which nobody writes a draft any more.
_ABANDONED = 3600


def refuse_file_name(folder: Path) -> None:
    """Refuse the name of a page or of its numbers in the place of a folder.

    Raises:
        ValueError: If it is one, and no folder has it.

    Examples:
        >>> refuse_file_name(Path("report.html"))
        Traceback (most recent call last):
        ValueError: 'report.html' is the name of a file, and several are written to a ...
    """
    if folder.suffix in (".html", ".json") and not folder.is_dir():
        raise ValueError(
            f"{str(folder)!r} is the name of a file, and several are written to a folder. Name "
            f"one, such as {folder.stem!r}."
        )


def write_text(path: Path, text: str) -> None:
    """Write a text file as UTF-8; an interrupted write leaves the old file."""
    write_bytes(path, text.encode())


def write_bytes(path: Path, data: bytes) -> None:
    """Write a file; an interrupted write, or a second writer, never leaves half a file."""
    with replacing(path) as draft:
        draft.write_bytes(data)


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Lend the path of a draft, which becomes the file once the block has ended.

    Where the block fails, the draft is removed and the old file stays.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    # The draft has a unique name: with a fixed one, a second writer would publish half a file.
    draft = path.with_name(f".{path.stem}.{uuid4().hex}{_DRAFT}")
    try:
        yield draft
        draft.replace(path)
    except OSError as error:
        if error.filename in (None, str(draft)):  # none at all on a full disk
            error.filename = str(path)
        raise
    finally:
        draft.unlink(missing_ok=True)


def remove_abandoned(folder: Path) -> None:
    """Remove drafts of writers that were killed; those of the last hour may still be written."""
    for draft in folder.glob(f".*{_DRAFT}"):
        with contextlib.suppress(OSError):  # somebody else removed it
            if time.time() - draft.stat().st_mtime > _ABANDONED:
                draft.unlink()
