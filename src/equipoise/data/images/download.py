"""Download Fashion-MNIST: each file is verified, and put in place only when it is complete."""

from __future__ import annotations

import hashlib
import urllib.request
from collections.abc import Mapping
from http.client import HTTPException
from pathlib import Path

from equipoise.data.folders import DataNotFoundError
from equipoise.files import replacing

OFFICIAL_HOST = "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/"

# MD5 sums published at https://github.com/zalandoresearch/fashion-mnist.
OFFICIAL_MD5: Mapping[str, str] = {
    "train-images-idx3-ubyte.gz": "8d4fb7e6c68d591d4c3dfef9ec88bf0d",
    "train-labels-idx1-ubyte.gz": "25c81989df183df01b3e8a0aad5dffbe",
    "t10k-images-idx3-ubyte.gz": "bef4ecab320f06d8554ea6380940ec79",
    "t10k-labels-idx1-ubyte.gz": "bb300cfdad3c16e7a12a480ee83cd310",
}

_CHUNK = 1 << 16
_SECONDS = 30.0  # to wait for an answer


def fetch_fashion_mnist(
    folder: Path,
    *,
    base_url: str = OFFICIAL_HOST,
    md5: Mapping[str, str] = OFFICIAL_MD5,
) -> None:
    """Download Fashion-MNIST's four files into a folder; files already there are kept.

    Each file is written under a temporary name and moved into place once its sum is right,
    so an interrupted or damaged download leaves nothing behind.

    Args:
        folder: Where to; created if missing.
        base_url: Where from.
        md5: Names of the files and their MD5 sums.

    Raises:
        DataNotFoundError: If the folder cannot be made, the server cannot be reached, or it
            does not have a file.
        ValueError: If a file that it sent has another sum.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise DataNotFoundError(
            f"The folder {folder} for downloads cannot be made: {error}. Name another with the "
            "environment variable EQUIPOISE_CACHE."
        ) from error
    for name, expected in md5.items():
        target = folder / name
        if not (target.exists() and _md5(target) == expected):
            _fetch(f"{base_url.rstrip('/')}/{name}", target, expected)


def _fetch(url: str, target: Path, expected: str) -> None:
    with replacing(target) as draft:
        try:
            with (
                urllib.request.urlopen(url, timeout=_SECONDS) as answer,
                draft.open("wb") as file,
            ):
                while chunk := answer.read(_CHUNK):
                    file.write(chunk)
        except (OSError, HTTPException) as error:
            raise DataNotFoundError(
                f"{url} could not be downloaded to {target.parent}: {error}. Try again "
                f"later, or put {target.name} into that folder yourself."
            ) from error
        found = _md5(draft)
        if found != expected:
            raise ValueError(
                f"{url} is damaged: its MD5 sum is {found} and should be {expected}. "
                "Nothing was kept; try again later."
            )


def _md5(path: Path) -> str:
    # Guards against damage, not against forgery; MD5 is what the authors publish.
    with path.open("rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.md5(usedforsecurity=False)).hexdigest()
