"""Synthetic data: Gaussian noise with random classes."""

from __future__ import annotations

import math
import re

import torch

from equipoise.data.source import Samples

_RANDOM = re.compile(r"random:(\d+(?:x\d+)*):(\d+)(?::(\d+))?", re.ASCII)
_RANDOM_SAMPLES = 2048


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
    inputs = torch.randn(samples, *shape, generator=generator, device="cpu")
    targets = torch.randint(classes, (samples,), generator=generator, device="cpu")
    return Samples(spec, inputs, targets, classes)
