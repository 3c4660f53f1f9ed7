"""Data sets that have a name, and the function that loads data by name."""

from __future__ import annotations

import difflib
from pathlib import Path

import torch

from equipoise.data.folders import user_dir
from equipoise.data.images.digits import digits_images
from equipoise.data.images.named import IMAGE_SETS
from equipoise.data.images.scaling import standardised
from equipoise.data.resolve import importing, resolve
from equipoise.data.source import Samples, Source
from equipoise.data.synthetic import gaussian_noise
from equipoise.data.text import python_manual
from equipoise.data.user import as_source
from equipoise.numerics.options import named_options

_SPECS = (
    "digits",
    *IMAGE_SETS,
    "text:LENGTH",
    "random:SHAPE:CLASSES",
    "file.py:name",
    "package.module:name",
)


@named_options
def load(spec: str, *, data_dir: str | Path | None = None, download: bool = False) -> Source:
    """Load labelled data by name.

    Args:
        spec: ``digits``, ``fashion-mnist``, ``mnist``, ``cifar10`` or ``cifar100``, standardised
            training sets; ``text:LENGTH`` for pieces of Python's manual and the next characters,
            as in ``text:64``; ``random:SHAPE:CLASSES`` for Gaussian noise, as in
            ``random:3x32x32:10``; ``file.py:name`` or ``package.module:name`` for an iterable,
            ``DataLoader``, ``Dataset`` or function of yours.
        data_dir: Where to look first for the files of a named set; ``$EQUIPOISE_DATA`` by default.
        download: Whether a set that is in none of the known folders may be fetched into the
            cache; only ``fashion-mnist`` can.

    Returns:
        A source, from which batches can be drawn.

    Raises:
        DataNotFoundError: If a named set is in none of the known folders.
        ValueError: If the spec is unknown, there is no folder ``data_dir``, or what the
            spec names cannot be loaded.

    Examples:
        >>> digits = load("digits")
        >>> x, y = next(digits.batches(32, count=1, generator=torch.Generator()))
        >>> tuple(x.shape), y.dtype, digits.classes
        ((32, 1, 8, 8), torch.int64, 10)
    """
    folder = user_dir(data_dir)
    if spec == "digits":
        return digits()
    if spec in IMAGE_SETS:
        named = IMAGE_SETS[spec]
        images, labels = named.images("train", folder, download=download)
        return standardised(spec, images, labels, named.classes)
    if spec.startswith("random:"):
        return gaussian_noise(spec)
    if spec.startswith("text:"):
        return python_manual(spec)
    if ":" in spec and not spec.rpartition(":")[2].isdecimal():
        found = resolve(spec)
        with importing(spec):
            return as_source(found, spec)
    raise ValueError(_unknown(spec))


def digits() -> Samples:
    """scikit-learn's 1,797 digits: inputs ``[1797, 1, 8, 8]`` of mean 0 and variance 1.

    The whole set is standardised at once, not pixel by pixel: many pixels are always blank.
    """
    images, labels = digits_images()
    inputs = (images - images.mean()) / images.std(correction=0)
    return Samples("digits", inputs.to(torch.float32), labels, classes=10)


def _unknown(spec: str) -> str:
    if spec.endswith(".py"):
        return f"{spec!r} names a file but no object in it. Write {spec}:name."
    known = {known.partition(":")[0]: known for known in _SPECS[:-2]}
    close = difflib.get_close_matches(spec.partition(":")[0], known, n=1)
    hint = f" Did you mean {known[close[0]]!r}?" if close else ""
    return f"There are no data named {spec!r}. Known are {', '.join(_SPECS)}.{hint}"
