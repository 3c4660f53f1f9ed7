"""Where data files may lie, and what to say when they do not."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path


class DataNotFoundError(ValueError):
    """A known data set is on none of the known places; the message says how to get it."""


def cache_dir() -> Path:
    """Folder for downloads.

    ``$EQUIPOISE_CACHE``, else ``$XDG_CACHE_HOME/equipoise``, else ``~/.cache/equipoise``.
    """
    if own := os.environ.get("EQUIPOISE_CACHE"):
        return Path(own).expanduser()
    if shared := os.environ.get("XDG_CACHE_HOME"):
        return Path(shared).expanduser() / "equipoise"
    return Path.home() / ".cache" / "equipoise"


def own_dir() -> Path | None:
    """Folder of the user's own data sets, ``$EQUIPOISE_DATA``, if there is one.

    A variable, because experiments run in other processes, which inherit it.
    """
    own = os.environ.get("EQUIPOISE_DATA")
    return Path(own).expanduser() if own else None


def first_existing(folder: Path, names: Sequence[str]) -> Path | None:
    """The first of several spellings of one file's name that exists in a folder."""
    return next((folder / name for name in names if (folder / name).exists()), None)


def not_found(what: str, files: str, folders: Sequence[Path], remedy: str) -> DataNotFoundError:
    """The error for a set that is nowhere, in one paragraph."""
    places = ", ".join(str(folder) for folder in folders)
    return DataNotFoundError(f"{what} was not found: looked for {files} in {places}. {remedy}")
