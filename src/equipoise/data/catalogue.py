"""The data sets that can be named by a word, and the one function that loads them."""

from __future__ import annotations

import difflib
import math
import re
from pathlib import Path

import torch

from equipoise.data.cifar import cifar10, cifar100
from equipoise.data.mnist import fashion_mnist, mnist
from equipoise.data.resolve import importing, resolve
from equipoise.data.source import Samples, Source
from equipoise.data.user import as_source

SPECS = {
    "digits": "1,797 grey 8×8 digits that come with scikit-learn",
    "fashion-mnist": "60,000 grey 28×28 pieces of clothing; can be downloaded",
    "mnist": "60,000 grey 28×28 digits, from your files",
    "cifar10": "50,000 colour 32×32 photographs in 10 classes, from your files",
    "cifar100": "50,000 colour 32×32 photographs in 100 classes, from your files",
    "random:SHAPE:CLASSES": "Gaussian noise, as in random:3x32x32:10 (2,048 samples)",
    "file.py:name": "an iterable, DataLoader, Dataset or function in your file",
    "package.module:name": "the same in an installed module",
}

_RANDOM = re.compile(r"random:(\d+(?:x\d+)*):(\d+)(?::(\d+))?", re.ASCII)
_RANDOM_SAMPLES = 2048


def load(spec: str, *, data_dir: Path | None = None, download: bool = False) -> Source:
    """Load labelled data by name.

    Args:
        spec: One of :data:`SPECS`. Named sets are training sets, standardised.
        data_dir: Where to look first for the files of a named set.
        download: Whether a set that is nowhere may be fetched; only ``fashion-mnist`` can.

    Returns:
        What batches can be drawn from.

    Raises:
        DataNotFoundError: If a named set is on none of the known places.
        ValueError: If the spec is unknown, or what it names cannot be loaded.

    Examples:
        >>> digits = load("digits")
        >>> x, y = next(digits.batches(32, count=1, generator=torch.Generator()))
        >>> tuple(x.shape), y.dtype, digits.classes
        ((32, 1, 8, 8), torch.int64, 10)
    """
    if data_dir is not None and not data_dir.is_dir():
        raise ValueError(f"There is no folder {str(data_dir)!r} to look for data in.")
    match spec:
        case "digits":
            return digits()
        case "fashion-mnist":
            return fashion_mnist(data_dir, download=download)
        case "mnist":
            return mnist(data_dir)
        case "cifar10":
            return cifar10(data_dir)
        case "cifar100":
            return cifar100(data_dir)
    if spec.startswith("random:"):
        return gaussian_noise(spec)
    if ":" in spec:
        named = resolve(spec)
        with importing(spec):
            return as_source(named, spec)
    raise ValueError(_unknown(spec))


def digits() -> Samples:
    """scikit-learn's 1,797 digits: inputs ``[1797, 1, 8, 8]`` of mean 0 and variance 1.

    The whole set is standardised at once, not pixel by pixel: many pixels are always blank.

    References:
        [alpaydin1998] Optical recognition of handwritten digits, UCI repository.
    """
    # Imported here because it takes a second, which other data need not wait for.
    from sklearn.datasets import load_digits

    bundle = load_digits()
    images = torch.as_tensor(bundle.images, dtype=torch.float64).unsqueeze(1)
    inputs = (images - images.mean()) / images.std(correction=0)
    targets = torch.as_tensor(bundle.target, dtype=torch.int64)
    return Samples("digits", inputs.to(torch.float32), targets, classes=10)


def gaussian_noise(spec: str) -> Samples:
    """Independent standard normal inputs with random classes, always the same for one spec.

    Args:
        spec: ``random:SHAPE:CLASSES`` with an optional ``:SAMPLES``, such as
            ``random:3x32x32:10`` or ``random:16:2:4096``.

    Raises:
        ValueError: If the spec has another form or a number in it is zero.

    Examples:
        >>> tuple(gaussian_noise("random:3x32x32:10").inputs.shape)
        (2048, 3, 32, 32)
    """
    found = _RANDOM.fullmatch(spec)
    if found is None:
        raise ValueError(
            f"Expected random:SHAPE:CLASSES, such as random:3x32x32:10 or random:16:2, with an "
            f"optional :SAMPLES, got {spec!r}."
        )
    shape = [int(size) for size in found[1].split("x")]
    classes, samples = int(found[2]), int(found[3] or _RANDOM_SAMPLES)
    if 0 in shape or not classes or not samples:
        raise ValueError(f"Every number must be at least 1, got {spec!r}.")
    if samples * math.prod(shape) >= 2**31:
        raise ValueError(
            f"{spec!r} means {samples} × {'×'.join(map(str, shape))} numbers, more than 8 GB. "
            "Ask for fewer samples, as in random:SHAPE:CLASSES:SAMPLES."
        )
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(samples, *shape, generator=generator)
    targets = torch.randint(classes, (samples,), generator=generator)
    return Samples(spec, inputs, targets, classes)


def _unknown(spec: str) -> str:
    if spec.endswith(".py"):
        return f"{spec!r} names a file but no object in it. Write {spec}:name."
    close = difflib.get_close_matches(spec, SPECS, n=1)
    hint = f" Did you mean {close[0]!r}?" if close else ""
    return f"There are no data named {spec!r}. Known are {', '.join(SPECS)}.{hint}"
