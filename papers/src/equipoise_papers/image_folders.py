"""Photographs in folders by class, which only scale ``paper`` needs.

Nothing is downloaded. torchvision reads the images; it is no dependency of this package.
"""

from __future__ import annotations

import importlib
from pathlib import Path
from types import ModuleType

import torch

from equipoise.data import find_folder

PARTS = ("train", "test")


def torchvision() -> ModuleType:
    """Import torchvision.

    Raises:
        ValueError: If it, or Pillow, which it uses, is not installed, or does not fit PyTorch.
    """
    try:
        importlib.import_module("PIL.Image")
        return importlib.import_module("torchvision")
    except ImportError as error:
        raise ValueError(
            f"scale paper reads photographs with torchvision and Pillow, "
            f"and {error.name} is not installed: pip install torchvision pillow."
        ) from error
    except (RuntimeError, OSError) as error:  # a build for another PyTorch
        raise ValueError(
            f"torchvision cannot be loaded ({error}); install the build that belongs to PyTorch "
            f"{torch.__version__}."
        ) from error


def image_folder(name: str, data_dir: Path | None = None) -> Path:
    """Find the folder of a data set: ``NAME/train/CLASS/*.jpg`` and ``NAME/test/CLASS/*.jpg``.

    Raises:
        DataNotFoundError: If it lies neither in ``data_dir`` nor in the cache.
    """
    return find_folder(
        name,
        holding=PARTS,
        data_dir=data_dir,
        remedy="Get the set from its authors and sort its images into these folders, with one "
        "folder of images per class in each.",
    )
