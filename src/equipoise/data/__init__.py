"""Real and synthetic batches: small built-in sets, and the user's own data."""

from equipoise.data.catalogue import load
from equipoise.data.folders import DataNotFoundError, find_folder
from equipoise.data.images.augmentation import crop_and_flip
from equipoise.data.source import Samples, Source
from equipoise.data.splits import Split, split
from equipoise.data.synthetic import gaussian_regression
from equipoise.data.user import as_source
from equipoise.instrument.types import Batch

__all__ = [
    # by name, or the user's own
    "load",
    "as_source",
    "Split",
    "split",
    # sources
    "Source",
    "Samples",
    "Batch",
    "gaussian_regression",
    # augmentation
    "crop_and_flip",
    # files
    "find_folder",
    "DataNotFoundError",
]
