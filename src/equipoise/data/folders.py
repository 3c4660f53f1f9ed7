"""Folders in which data files may lie, and the error when they lie in none."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from equipoise.numerics.options import named_options


class DataNotFoundError(ValueError):
    """A data set is in none of the known folders; the message says how to get it."""


@named_options
def find_folder(
    name: str, *, holding: Sequence[str], remedy: str, data_dir: str | Path | None = None
) -> Path:
    """Find the folder of a data set that has been put in place by hand.

    Looks for it in ``data_dir``, or else in ``$EQUIPOISE_DATA``, and then in the cache.

    Args:
        name: Of the folder.
        holding: Folders that it must hold, such as ``("train", "test")``.
        remedy: How to get the set; ends the error message.
        data_dir: Where to look first.

    Raises:
        DataNotFoundError: If it lies in none of them, or lacks a folder.

    Examples:
        >>> find_folder("birds", holding=["train"], remedy="Get it from its authors.")
        Traceback (most recent call last):
        equipoise.data.folders.DataNotFoundError: birds was not found: looked for ...
    """
    own = own_dir() if data_dir is None else Path(data_dir).expanduser()
    places = [p / name for p in (own, cache_dir()) if p is not None]
    for place in places:
        if all((place / inner).is_dir() for inner in holding):
            return place
    raise not_found(name, f"folders {' and '.join(holding)}", places, remedy)


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
    """Folder of the user's own data sets, ``$EQUIPOISE_DATA``, if the variable is set.

    An environment variable reaches the other processes in which experiments run.
    """
    own = os.environ.get("EQUIPOISE_DATA")
    return Path(own).expanduser() if own else None


def user_dir(data_dir: str | Path | None) -> Path | None:
    """The folder that a caller names, or else :func:`own_dir`.

    Raises:
        ValueError: If there is no folder of that name.
    """
    if data_dir is None:
        return own_dir()
    folder = Path(data_dir).expanduser()
    if not folder.is_dir():
        raise ValueError(f"There is no folder {str(data_dir)!r} to look for data in.")
    return folder


def first_existing(folder: Path, names: Sequence[str]) -> Path | None:
    """Return the first of several spellings of one file's name that exists in a folder."""
    return next((folder / name for name in names if (folder / name).exists()), None)


def not_found(what: str, files: str, folders: Sequence[Path], remedy: str) -> DataNotFoundError:
    """Build the error for a set that is in none of the folders."""
    places = ", ".join(str(folder) for folder in folders)
    return DataNotFoundError(f"{what} was not found: looked for {files} in {places}. {remedy}")
