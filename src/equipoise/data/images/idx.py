"""The IDX format, in which MNIST and Fashion-MNIST are published.

A file is two zero bytes, a type code, the number of dimensions, one big-endian uint32 for
each dimension, and then the values, big-endian and row-major.
"""

from __future__ import annotations

import gzip
import math
import struct
import zlib
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

# The codes of http://yann.lecun.com/exdb/mnist, "The IDX file format".
_TYPES = {0x08: ">u1", 0x09: ">i1", 0x0B: ">i2", 0x0C: ">i4", 0x0D: ">f4", 0x0E: ">f8"}
_GZIP = b"\x1f\x8b"


def read_idx(path: Path) -> Tensor:
    """Read an IDX file, plain or gzipped; its first bytes tell which.

    Args:
        path: The file.

    Returns:
        A tensor of the file's type and shape.

    Raises:
        ValueError: If the file is not IDX, is damaged, or holds more or fewer values than
            its header declares. The message names the file and what was found.
    """
    content = _content(path)
    if len(content) < 4:
        raise ValueError(
            f"{path} is truncated: an IDX file starts with 4 bytes, this has {len(content)}."
        )
    zeros, code, dimensions = struct.unpack(">HBB", content[:4])
    if zeros or code not in _TYPES:
        raise ValueError(
            f"{path} is not an IDX file: its magic number is 0x{content[:4].hex()}, and should "
            f"be 0x0000, one of the type codes {', '.join(f'{c:02x}' for c in _TYPES)}, and "
            "the number of dimensions."
        )
    start = 4 + 4 * dimensions
    if len(content) < start:
        raise ValueError(
            f"{path} is truncated: the header of {dimensions} dimensions takes {start} bytes, "
            f"the file has {len(content)}."
        )
    shape = struct.unpack(f">{dimensions}I", content[4:start])
    kind = np.dtype(_TYPES[code])
    expected, found = math.prod(shape) * kind.itemsize, len(content) - start
    if found != expected:
        trouble = "is truncated" if found < expected else "has trailing bytes"
        raise ValueError(
            f"{path} {trouble}: its header declares shape {list(shape)} of {kind.name}, "
            f"{expected} bytes of values, and {found} follow."
        )
    values = np.frombuffer(content, kind, offset=start).reshape(shape)
    # A copy, because a tensor must be writable and native-endian; a file's bytes are neither.
    return torch.from_numpy(np.array(values, dtype=kind.newbyteorder("=")))


def read_labelled_images(images: Path, labels: Path) -> tuple[Tensor, Tensor]:
    """Read a pair of IDX files: images ``[N, H, W]`` and labels ``[N]``, both uint8.

    Raises:
        ValueError: If either file has other dimensions or another type, or the counts differ.
    """
    pixels, numbers = read_idx(images), read_idx(labels)
    for path, values, dimensions in ((images, pixels, 3), (labels, numbers, 1)):
        if values.ndim != dimensions or values.dtype != torch.uint8:
            raise ValueError(
                f"{path} must hold uint8 values of {dimensions} dimensions, got "
                f"{str(values.dtype).removeprefix('torch.')} of shape {list(values.shape)}."
            )
    if len(pixels) != len(numbers):
        raise ValueError(
            f"{images} holds {len(pixels)} images, but {labels} holds {len(numbers)} labels; "
            "the two files do not belong together."
        )
    return pixels, numbers


def _content(path: Path) -> bytes:
    content = path.read_bytes()
    if not content.startswith(_GZIP):
        return content
    try:
        return gzip.decompress(content)
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise ValueError(f"{path} is a damaged gzip file ({error}); fetch it again.") from error
