"""CIFAR-10 and CIFAR-100 from the authors' Python archives."""

from __future__ import annotations

import io
import pickle
import tarfile
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from equipoise.data.folders import cache_dir, not_found


@dataclass(frozen=True, slots=True)
class _Layout:
    title: str
    archive: str
    folder: str
    parts: tuple[str, ...]
    test_parts: tuple[str, ...]
    labels: bytes
    classes: int


_LAYOUTS = {
    "cifar10": _Layout(
        "CIFAR-10",
        "cifar-10-python.tar.gz",
        "cifar-10-batches-py",
        tuple(f"data_batch_{number}" for number in range(1, 6)),
        ("test_batch",),
        b"labels",
        10,
    ),
    "cifar100": _Layout(
        "CIFAR-100",
        "cifar-100-python.tar.gz",
        "cifar-100-python",
        ("train",),
        ("test",),
        b"fine_labels",
        100,
    ),
}


def restricted_loads(content: bytes, where: str) -> Any:
    """Unpickle numbers, bytes, containers and NumPy arrays; refuse everything else.

    A pickle is a program. The archives need four constructors; all others are refused.

    Args:
        content: The pickle; Python 2's strings become bytes.
        where: Its origin, for messages.

    Raises:
        ValueError: If it asks for anything else, or is damaged.

    Examples:
        >>> restricted_loads(pickle.dumps({b"labels": [3, 1]}), "a file")
        {b'labels': [3, 1]}
    """
    try:
        return _ArrayUnpickler(io.BytesIO(content), encoding="bytes").load()
    except _ForbiddenNameError as error:
        raise ValueError(
            f"{where} asks to load {error}, which no CIFAR file needs; it was not loaded. "
            "Fetch the archive from its authors."
        ) from error
    # A damaged pickle can make the unpickler raise nearly anything.
    except Exception as error:
        raise ValueError(f"{where} is not a readable pickle: {error!r}.") from error


class _ForbiddenNameError(Exception):
    pass


def _encode_latin1(text: str, encoding: str) -> bytes:
    # Python 3 writes bytes so under protocol 2. Other codecs would let a file run them.
    if encoding != "latin1":
        raise _ForbiddenNameError(f"the codec {encoding!r}")
    return text.encode("latin1")


def _dtype(kind: Any, align: int = 0, copy: int = 1) -> Any:
    # Python 2 wrote the flags as integers, of which NumPy 2.4.0 to 2.4.4 warns
    # (numpy/numpy#31177). Always a copy, so that the state which follows in the file cannot
    # reach NumPy's own dtype.
    return np.dtype(kind, align=bool(align), copy=True)


# Typed as str | tuple, but an array always gives the tuple.
_reconstruct: Callable[..., Any] = np.empty(0).__reduce__()[0]  # type: ignore[assignment]

_ALLOWED: dict[tuple[str, str], Any] = {
    ("numpy.core.multiarray", "_reconstruct"): _reconstruct,
    ("numpy._core.multiarray", "_reconstruct"): _reconstruct,
    ("numpy", "ndarray"): np.ndarray,
    ("numpy", "dtype"): _dtype,
    ("_codecs", "encode"): _encode_latin1,
}


class _ArrayUnpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in _ALLOWED:
            raise _ForbiddenNameError(f"{module}.{name}")
        return _ALLOWED[module, name]


def cifar_images(
    name: Literal["cifar10", "cifar100"],
    part: Literal["train", "test"],
    data_dir: Path | None = None,
) -> tuple[Tensor, Tensor]:
    """Bytes ``[N, 3, 32, 32]`` and (fine) labels of the training or the test set.

    Looks for the extracted folder or the archive in ``data_dir``, then in the cache.

    Raises:
        DataNotFoundError: If it is in neither.
        ValueError: If a file is damaged, or holds anything but arrays and plain values.

    References:
        [krizhevsky2009] Learning multiple layers of features from tiny images.
    """
    layout = _LAYOUTS[name]
    files = layout.parts if part == "train" else layout.test_parts
    folders = [] if data_dir is None else [data_dir]
    folders.append(cache_dir() / name)
    for folder in folders:
        if (folder / layout.folder).is_dir():
            contents = _from_folder(folder / layout.folder, files)
        elif (folder / layout.archive).is_file():
            contents = _from_archive(folder / layout.archive, layout.folder, files)
        else:
            continue
        read = [_read_part(content, where, layout) for where, content in contents]
        images, labels = (torch.cat(tensors) for tensors in zip(*read, strict=True))
        return images, labels
    raise not_found(
        layout.title,
        f"{layout.archive} and the folder {layout.folder}",
        folders,
        "Download the archive from https://www.cs.toronto.edu/~kriz/cifar.html and name the "
        "folder that holds it with `data_dir=`.",
    )


def _from_folder(folder: Path, files: Sequence[str]) -> list[tuple[str, bytes]]:
    missing = [part for part in files if not (folder / part).is_file()]
    if missing:
        raise ValueError(f"{folder} lacks {', '.join(missing)}; extract the archive again.")
    return [(str(folder / part), (folder / part).read_bytes()) for part in files]


def _from_archive(archive: Path, folder: str, files: Sequence[str]) -> list[tuple[str, bytes]]:
    names = [f"{folder}/{part}" for part in files]
    try:
        with tarfile.open(archive) as tar:
            # One pass in the archive's order: going back in a gzip stream starts it over.
            found = {m.name: _member(tar, m) for m in tar if m.name in names and m.isfile()}
    except (tarfile.TarError, EOFError, OSError, zlib.error) as error:
        raise ValueError(f"{archive} is a damaged archive ({error}); fetch it again.") from error
    missing = [name for name in names if name not in found]
    if missing:
        raise ValueError(f"{archive} lacks {', '.join(missing)}; fetch it again.")
    return [(f"{archive}:{name}", found[name]) for name in names]


def _member(tar: tarfile.TarFile, member: tarfile.TarInfo) -> bytes:
    stream = tar.extractfile(member)
    return b"" if stream is None else stream.read()


def _read_part(content: bytes, where: str, layout: _Layout) -> tuple[Tensor, Tensor]:
    part = restricted_loads(content, where)
    keys = (b"data", layout.labels)
    if not isinstance(part, dict) or not all(key in part for key in keys):
        found = sorted(map(str, part)) if isinstance(part, dict) else type(part).__name__
        raise ValueError(f"{where} must hold the keys {list(keys)}, got {found}.")
    pixels, labels = part[b"data"], part[layout.labels]
    if (
        not isinstance(pixels, np.ndarray)
        or pixels.dtype != np.uint8
        or pixels.ndim != 2
        or pixels.shape[1] != 3 * 32 * 32
    ):
        raise ValueError(
            f"{where} must hold uint8 pixels of shape [N, 3072], got "
            f"{getattr(pixels, 'dtype', type(pixels).__name__)} of shape "
            f"{list(getattr(pixels, 'shape', []))}."
        )
    if not isinstance(labels, list) or not all(type(label) is int for label in labels):
        raise ValueError(f"{where} must hold a list of integer labels, got {labels!r:.80}.")
    if len(labels) != len(pixels):
        raise ValueError(f"{where} holds {len(pixels)} images but {len(labels)} labels.")
    images = torch.from_numpy(np.array(pixels)).reshape(-1, 3, 32, 32)
    return images, torch.tensor(labels, dtype=torch.int64, device="cpu")
