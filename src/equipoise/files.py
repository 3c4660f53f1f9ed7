"""Write files whole or not at all."""

from __future__ import annotations

from pathlib import Path
from uuid import uuid4


def write_text(path: Path, text: str) -> None:
    """Write a text file, whole or not at all: an interrupted write leaves the old file."""
    write_bytes(path, text.encode())


def write_bytes(path: Path, data: bytes) -> None:
    """Write a file, whole or not at all, whoever else writes it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    # A name of this writer's own: with a common one, a second writer would publish half a file.
    draft = path.with_name(f".{path.stem}.{uuid4().hex}.part")
    try:
        draft.write_bytes(data)
        draft.replace(path)
    except OSError:
        draft.unlink(missing_ok=True)
        raise
