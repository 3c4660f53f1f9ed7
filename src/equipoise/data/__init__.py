"""Real and synthetic batches: small built-in sets, and the user's own data."""

from equipoise.data.catalogue import load
from equipoise.data.folders import DataNotFoundError, find_folder
from equipoise.data.images.augmentation import crop_and_flip
from equipoise.data.source import Samples, Source
from equipoise.data.splits import Split, split

__all__ = [
    # by name, or the user's own
    "load",
    "Split",
    "split",
    # sources
    "Source",
    "Samples",
    # augmentation
    "crop_and_flip",
    # files
    "find_folder",
    "DataNotFoundError",
]
