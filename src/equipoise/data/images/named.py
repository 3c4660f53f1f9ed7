"""Image sets that have a name, and the reader of each."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TypeAlias

from torch import Tensor

from equipoise.data.images.cifar import cifar_images
from equipoise.data.images.mnist import Part, fashion_mnist_images, mnist_images

Read: TypeAlias = Callable[[Part, Path | None], tuple[Tensor, Tensor]]


@dataclass(frozen=True, slots=True)
class ImageSet:
    """A set that lies in files of its authors.

    Args:
        read: Bytes ``[N, C, H, W]`` and labels of a part, from a folder or else the known ones.
        classes: How many there are.
        download: Reads likewise, and fetches what is nowhere, where terms allow it.
    """

    read: Read
    classes: int
    download: Read | None = None

    def images(self, part: Part, folder: Path | None, *, download: bool) -> tuple[Tensor, Tensor]:
        """Read a part; one that may not be fetched has to be there."""
        read = self.download if download and self.download is not None else self.read
        return read(part, folder)


IMAGE_SETS: Mapping[str, ImageSet] = {
    "fashion-mnist": ImageSet(
        fashion_mnist_images, 10, download=partial(fashion_mnist_images, download=True)
    ),
    "mnist": ImageSet(mnist_images, 10),
    "cifar10": ImageSet(partial(cifar_images, "cifar10"), 10),
    "cifar100": ImageSet(partial(cifar_images, "cifar100"), 100),
}
