"""MNIST and Fashion-MNIST: grey 28×28 images, 60,000 to train and 10,000 to test, in IDX files."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Literal, TypeAlias

from torch import Tensor

from equipoise.data.folders import cache_dir, first_existing, not_found
from equipoise.data.images.download import fetch_fashion_mnist
from equipoise.data.images.idx import read_labelled_images

# Debian's package dataset-fashion-mnist installs here.
DEBIAN_FOLDER = Path("/usr/share/datasets/fashion-mnist")

Part: TypeAlias = Literal["train", "test"]
_STEMS = {"train": "train", "test": "t10k"}


def fashion_mnist_images(
    part: Part,
    data_dir: Path | None = None,
    *,
    download: bool = False,
    debian: Path = DEBIAN_FOLDER,
) -> tuple[Tensor, Tensor]:
    """Bytes ``[N, 1, 28, 28]`` and labels of Fashion-MNIST's training or test set.

    Looks in ``data_dir``, then where Debian installs it, then in the cache; downloads into
    the cache only if it is in none of these and ``download`` allows it.

    Raises:
        DataNotFoundError: If it is in none of them, or cannot be downloaded.
        ValueError: If a file is damaged.

    References:
        [xiao2017] Fashion-MNIST: a novel image dataset for benchmarking machine learning
        algorithms, arXiv:1708.07747.
    """
    cache = cache_dir() / "fashion-mnist"
    folders = [*_user_folders(data_dir, "FashionMNIST"), debian, cache]
    pair = _find_pair(folders, part)
    if pair is None and download:
        fetch_fashion_mnist(cache)
        pair = _find_pair([cache], part)
    if pair is None:
        raise not_found(
            "Fashion-MNIST",
            _files(part),
            folders,
            "Install it with `apt install dataset-fashion-mnist`, allow fetching it with "
            "`download=True` (31 MB), or name the folder that holds it with `data_dir=`.",
        )
    return _read(pair)


def mnist_images(part: Part, data_dir: Path | None = None) -> tuple[Tensor, Tensor]:
    """Bytes ``[N, 1, 28, 28]`` and labels of MNIST's training or test set.

    Looks in ``data_dir``, there also in torchvision's ``MNIST/raw``, then in the cache.

    Raises:
        DataNotFoundError: If it is in none of them. MNIST is never downloaded, because its terms
            are unclear.
        ValueError: If a file is damaged.

    References:
        [lecun1998] Gradient-based learning applied to document recognition.
    """
    folders = [*_user_folders(data_dir, "MNIST"), cache_dir() / "mnist"]
    pair = _find_pair(folders, part)
    if pair is None:
        raise not_found(
            "MNIST",
            _files(part),
            folders,
            "Name the folder that holds these files with `data_dir=`; `fashion-mnist` has the "
            "same shape and can be downloaded.",
        )
    return _read(pair)


def _user_folders(data_dir: Path | None, torchvision: str) -> list[Path]:
    # The folder that carries the set's name comes first: both sets use the same file names.
    return [] if data_dir is None else [data_dir / torchvision / "raw", data_dir]


def _find_pair(folders: Sequence[Path], part: Part) -> tuple[Path, Path] | None:
    stem = _STEMS[part]
    for folder in folders:
        images = first_existing(folder, _spellings(f"{stem}-images", "idx3-ubyte"))
        labels = first_existing(folder, _spellings(f"{stem}-labels", "idx1-ubyte"))
        if images is not None and labels is not None:
            return images, labels
    return None


def _spellings(stem: str, kind: str) -> list[str]:
    # Some mirrors unpacked the files with a tool that turned the dash into a dot.
    return [f"{stem}{mark}{kind}{end}" for end in ("", ".gz") for mark in "-."]


def _files(part: Part) -> str:
    stem = _STEMS[part]
    return f"{stem}-images-idx3-ubyte and {stem}-labels-idx1-ubyte (plain or .gz)"


def _read(pair: tuple[Path, Path]) -> tuple[Tensor, Tensor]:
    images, labels = read_labelled_images(*pair)
    return images.unsqueeze(1), labels
