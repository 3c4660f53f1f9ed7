"""Fine-grained images and the backbone for them, which only scale ``paper`` needs."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from equipoise.data import find_folder
from equipoise_papers.image_folders import PARTS, image_folder, torchvision

_SIDE, _CROP = 512, 448
# In the folder vgg16, named as by the authors.
_WEIGHTS = Path("weights", "vgg16-397923af.pth")
_WORKERS = 8
# As in the backbone's training.
_MEAN, _DEVIATION = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


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


def steps(name: str, batch_size: int) -> int:
    """Steps of one pass over the training images."""
    folder = torchvision().datasets.ImageFolder(str(image_folder(name) / PARTS[0]))
    return -(-len(folder) // batch_size)


def backbone() -> tuple[nn.Module, int]:
    """Convolutions of VGG-16 trained on ImageNet, up to the last ReLU, and their channels.

    Raises:
        DataNotFoundError: If their file lies neither in ``--data-dir`` nor in the cache.
    """
    folder = find_folder(
        "vgg16",
        holding=(_WEIGHTS.parent.name,),
        remedy=f"Download https://download.pytorch.org/models/{_WEIGHTS.name} there as "
        f"vgg16/{_WEIGHTS}; nothing is downloaded unasked.",
    )
    state = torch.load(folder / _WEIGHTS, map_location="cpu", weights_only=True)
    prefix = "features."
    features: nn.Module = torchvision().models.vgg16(weights=None).features
    features.load_state_dict(
        {key.removeprefix(prefix): state[key] for key in state if key.startswith(prefix)}
    )
    return nn.Sequential(*list(features.children())[:-1]), 512


def epochs(loader: Any, count: int, device: torch.device) -> Iterator[tuple[Tensor, Tensor]]:
    """Batches of ``count`` passes over the data, on the device."""
    for _ in range(count):
        for x, y in loader:
            yield x.to(device), y.to(device)
