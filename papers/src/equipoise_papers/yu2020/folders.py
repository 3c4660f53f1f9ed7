"""Fine-grained images in folders by class, which only scale ``paper`` asks for.

Nothing here is fetched. torchvision reads the images and holds the backbone; it is no dependency
of the library, and its absence is one clear error.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn

from equipoise.data.places import DataNotFoundError, cache_dir, own_dir

PARTS = ("train", "test")
_SIDE, _CROP = 512, 448
_WORKERS = 8
# Those of the backbone's training.
_MEAN, _DEVIATION = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


def torchvision() -> ModuleType:
    """Import torchvision.

    Raises:
        ValueError: If it, or the reader of images that it uses, is not installed.
    """
    try:
        importlib.import_module("PIL.Image")
        return importlib.import_module("torchvision")
    except ImportError as error:
        raise ValueError(
            f"scale paper reads photographs with torchvision and Pillow, "
            f"and {error.name} is not installed: pip install torchvision pillow."
        ) from error


def image_folder(name: str, data_dir: Path | None = None) -> Path:
    """Where a set lies: ``NAME/train/CLASS/*.jpg`` and ``NAME/test/CLASS/*.jpg``.

    Raises:
        DataNotFoundError: If it lies neither in ``data_dir`` nor in the cache.
    """
    places = [place / name for place in (data_dir or own_dir(), cache_dir()) if place is not None]
    for place in places:
        if all((place / part).is_dir() for part in PARTS):
            return place
    raise DataNotFoundError(
        f"{name} was not found: looked for folders train and test, with one folder of images per "
        f"class in each, in {', '.join(map(str, places))}. Get the set from its authors and sort "
        "its images so."
    )


def loaders(name: str, batch_size: int, seed: int) -> tuple[Any, Any, int]:
    """Loaders of training and test images, and the number of classes."""
    folder = image_folder(name)
    vision = torchvision()
    transforms = vision.transforms
    ending = [transforms.ToTensor(), transforms.Normalize(_MEAN, _DEVIATION)]
    augmented = [
        transforms.Resize(_SIDE),
        transforms.RandomCrop(_CROP),
        transforms.RandomHorizontalFlip(),
    ]
    plain = [transforms.Resize(_SIDE), transforms.CenterCrop(_CROP)]
    train, test = (
        vision.datasets.ImageFolder(str(folder / part), transforms.Compose([*steps, *ending]))
        for part, steps in zip(PARTS, (augmented, plain), strict=True)
    )
    if train.classes != test.classes:
        raise ValueError(f"{folder}: train and test must have the same classes.")
    generator = torch.Generator().manual_seed(seed)
    options: dict[str, Any] = {"batch_size": batch_size, "num_workers": _WORKERS}
    return (
        torch.utils.data.DataLoader(train, shuffle=True, generator=generator, **options),
        torch.utils.data.DataLoader(test, **options),
        len(train.classes),
    )


def backbone() -> tuple[nn.Module, int]:
    """Convolutions of VGG-16 trained on ImageNet, up to the last ReLU, and their channels."""
    vision = torchvision()
    weights = vision.models.VGG16_Weights.IMAGENET1K_V1
    features: nn.Module = vision.models.vgg16(weights=weights).features[:-1]
    return features, 512


def epochs(loader: Any, count: int, device: torch.device) -> Iterator[tuple[Tensor, Tensor]]:
    """Batches of so many passes over the data, on the device."""
    for _ in range(count):
        for x, y in loader:
            yield x.to(device), y.to(device)
