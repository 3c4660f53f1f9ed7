"""Data that need no download: scikit-learn's digits, its two photographs, and its texts."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import sklearn.datasets
import torch
from torch import Tensor
from torch.nn import functional as F

_TEST = 4  # one sample in four is a test


@dataclass(frozen=True)
class Task:
    """Data to develop on, and data that only judge.

    Args:
        inputs: Shape ``[N, ...]``.
        targets: Classes or values.
        test_inputs: The same of the test.
        test_targets: Likewise.
    """

    inputs: Tensor
    targets: Tensor
    test_inputs: Tensor
    test_targets: Tensor

    @property
    def guess(self) -> float:
        """Test loss of the best constant."""
        if self.targets.is_floating_point():
            mean = self.targets.mean(0, keepdim=True)
            return float((self.test_targets - mean).square().mean())
        counts = torch.bincount(self.targets.flatten()).double() + 1e-3
        shares = counts / counts.sum()
        return float(-shares[self.test_targets.flatten()].log().mean())


def _divided(x: Tensor, y: Tensor, seed: int = 0) -> Task:
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(seed))
    test, train = order[: len(x) // _TEST], order[len(x) // _TEST :]
    return Task(x[train], y[train], x[test], y[test])


@functools.cache
def _digits() -> tuple[Tensor, Tensor]:
    found = sklearn.datasets.load_digits()
    images = torch.tensor(found.images, dtype=torch.float32)[:, None] / 16
    return images, torch.tensor(found.target)


def digits() -> Task:
    """Which digit it is."""
    images, labels = _digits()
    return _divided((images - 0.3) / 0.38, labels)


def parity() -> Task:
    """Whether the digit is odd."""
    images, labels = _digits()
    return _divided((images - 0.3) / 0.38, labels % 2)


def rotation() -> Task:
    """By how many quarters the image was turned."""
    images, _ = _digits()
    turns = torch.randint(4, (len(images),), generator=torch.Generator().manual_seed(1))
    turned = torch.stack(
        [torch.rot90(x, int(k), (1, 2)) for x, k in zip(images, turns, strict=True)]
    )
    return _divided((turned - 0.3) / 0.38, turns)


def _noise(like: Tensor, size: float) -> Tensor:
    return size * torch.randn(like.shape, generator=torch.Generator().manual_seed(2))


def denoising() -> Task:
    """The digit behind noise."""
    images, _ = _digits()
    return _divided(images + _noise(images, 0.5), images)


def segmentation() -> Task:
    """Which pixels belong to the digit, behind noise."""
    images, _ = _digits()
    return _divided(images + _noise(images, 0.5), (images[:, 0] > 0.4).long())


def inpainting() -> Task:
    """The lower half of the digit from the upper one."""
    images, _ = _digits()
    upper = images.clone()
    upper[:, :, 4:] = 0
    return _divided(upper, images)


def drawing() -> Task:
    """The digit from its class and noise, as a generator has it."""
    images, labels = _digits()
    noise = _noise(torch.empty(len(images), 16), 1.0)
    codes = torch.cat([F.one_hot(labels, 10).float(), noise], 1)
    return _divided(codes, 2 * images - 1)


@functools.cache
def _patches() -> tuple[Tensor, Tensor]:
    """Patches of 16 × 16 pixels of half the resolution, and which photograph each is of."""
    found = sklearn.datasets.load_sample_images()
    patches, labels = [], []
    for label, image in enumerate(found.images):
        pixels = torch.tensor(np.asarray(image), dtype=torch.float32).permute(2, 0, 1)[None] / 255
        small = F.avg_pool2d(pixels, 2)[0]
        tiles = small.unfold(1, 16, 10).unfold(2, 16, 10)
        tiles = tiles.reshape(3, -1, 16, 16).transpose(0, 1)
        patches.append(tiles)
        labels.append(torch.full((len(tiles),), label))
    return torch.cat(patches), torch.cat(labels)


def photographs() -> Task:
    """Which of two photographs a patch is of, from its grey values."""
    patches, labels = _patches()
    grey = patches.mean(1, keepdim=True)
    return _divided((grey - grey.mean()) / grey.std(), labels)


def colours() -> Task:
    """Colours from grey values."""
    patches, _ = _patches()
    grey = patches.mean(1, keepdim=True)
    return _divided((grey - grey.mean()) / grey.std(), 4 * (patches - grey))


def details() -> Task:
    """Details from a patch of a quarter of the resolution."""
    patches, _ = _patches()
    low = F.interpolate(F.avg_pool2d(patches, 4), scale_factor=4.0, mode="bilinear")
    return _divided((low - low.mean()) / low.std(), 8 * (patches - low))


@functools.cache
def _text() -> tuple[Tensor, Tensor, int]:
    """Windows of 32 characters of scikit-learn's descriptions, and which one each is of."""
    folder = Path(sklearn.datasets.__file__).parent / "descr"
    texts = [
        path.read_text(encoding="utf-8", errors="replace").lower()
        for path in sorted(folder.glob("*.rst"))
    ]
    symbols = {s: i for i, s in enumerate("abcdefghijklmnopqrstuvwxyz .,:-()0123456789\n")}
    windows, labels = [], []
    for label, text in enumerate(texts):
        codes = torch.tensor([symbols.get(s, 0) for s in text])
        found = codes.unfold(0, 33, 33)
        windows.append(found)
        labels.append(torch.full((len(found),), label))
    return torch.cat(windows), torch.cat(labels), len(symbols)


def symbols() -> int:
    """Different characters of the texts."""
    return _text()[2]


def text() -> Task:
    """The next character, everywhere."""
    windows, _, _ = _text()
    return _divided(windows[:, :-1], windows[:, 1:])


def authorship() -> Task:
    """Which of scikit-learn's descriptions a window is of."""
    windows, labels, _ = _text()
    return _divided(windows[:, :-1], labels)


def documents() -> int:
    """How many descriptions there are."""
    return int(_text()[1].max()) + 1
