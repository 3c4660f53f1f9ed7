"""The four sets of data, small enough for thousands of trainings."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

import torch
import torch.nn.functional as F
from torch import Tensor

from equipoise import data
from equipoise.instrument import Batch
from equipoise_papers.trainability.space import Network

TEXT_LENGTH = 16
_ALPHABET = "abcdefghijklmnopqrstuvwxyz .,"
_SHAPES, _SHAPE_SAMPLES = 10, 4096


@dataclass(frozen=True, slots=True, eq=False)
class Task:
    """What a network is trained on.

    Args:
        inputs: All samples: ``[N, C, H, W]``, or characters ``[N, T]``.
        targets: Classes ``[N]``, or the next characters ``[N, T]``.
        classes: Their number.
    """

    inputs: Tensor
    targets: Tensor
    classes: int

    @property
    def is_text(self) -> bool:
        """Whether every position has a target."""
        return self.targets.ndim == 2

    @property
    def chance_loss(self) -> float:
        """Cross-entropy of the best constant prediction: the entropy of the classes."""
        shares = torch.bincount(self.targets.flatten(), minlength=self.classes).double()
        shares = shares[shares > 0] / shares.sum()
        return float(-(shares * shares.log()).sum())

    def batches(self, batch_size: int, count: int, seed: int) -> Iterator[Batch]:
        """Random batches."""
        samples = data.Samples("task", self.inputs, self.targets)
        return samples.batches(batch_size, count, torch.Generator().manual_seed(seed))


def task(network: Network) -> Task:
    """The data of a network, 100 times larger where that is its fault."""
    found = _load(network.data)
    if network.fault != "input":
        return found
    return Task(100 * found.inputs, found.targets, found.classes)


@cache
def _load(name: str) -> Task:
    if name == "text":
        return _text()
    if name == "shapes":
        return _shapes()
    samples = data.load(name)
    assert isinstance(samples, data.Samples)
    inputs = samples.inputs
    if inputs.shape[-1] > 8:  # Fashion-MNIST at a quarter of its resolution
        inputs = F.avg_pool2d(inputs, 4)
    return Task(inputs, samples.targets, samples.classes or 0)


def _text() -> Task:
    """scikit-learn's descriptions of data in small letters, a window at every 8th of them."""
    folder = files("sklearn.datasets.descr")
    names = sorted(item.name for item in folder.iterdir() if item.name.endswith(".rst"))
    raw = " ".join((folder / name).read_text(encoding="utf-8").lower() for name in names)
    kept = "".join(letter if letter in _ALPHABET else " " for letter in raw)
    codes = torch.tensor([_ALPHABET.index(letter) for letter in " ".join(kept.split())])
    windows = codes.unfold(0, TEXT_LENGTH + 1, 8)
    return Task(windows[:, :-1].contiguous(), windows[:, 1:].contiguous(), len(_ALPHABET))


def _shapes() -> Task:
    """Ten smooth random images in three colours, shifted by up to a pixel, with noise."""
    generator = torch.Generator().manual_seed(0)
    coarse = torch.randn(_SHAPES, 3, 4, 4, generator=generator)
    images = F.interpolate(coarse, scale_factor=2, mode="bilinear")
    classes = torch.randint(_SHAPES, (_SHAPE_SAMPLES,), generator=generator)
    shifts = torch.randint(-1, 2, (_SHAPE_SAMPLES, 2), generator=generator).tolist()
    clean = torch.stack(
        [
            images[number].roll(shift, (1, 2))
            for number, shift in zip(classes.tolist(), shifts, strict=True)
        ]
    )
    noisy = clean + clean.std() * torch.randn(clean.shape, generator=generator)
    return Task((noisy - noisy.mean()) / noisy.std(), classes, _SHAPES)
