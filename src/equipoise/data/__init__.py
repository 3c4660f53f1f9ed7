"""Real and synthetic batches: small built-in sets, and whatever the user brings."""

from equipoise.data.augmentation import crop_and_flip
from equipoise.data.catalogue import load
from equipoise.data.deep_linear import gaussian_regression
from equipoise.data.download import fetch_fashion_mnist
from equipoise.data.places import DataNotFoundError, cache_dir, own_dir
from equipoise.data.source import Batch, Samples, Source
from equipoise.data.splits import Split, split
from equipoise.data.user import as_source

__all__ = [
    # by name, or what the user brings
    "load",
    "as_source",
    "Split",
    "split",
    "fetch_fashion_mnist",
    # sources
    "Batch",
    "Samples",
    "Source",
    "gaussian_regression",
    # augmentation
    "crop_and_flip",
    # where files lie
    "DataNotFoundError",
    "cache_dir",
    "own_dir",
]
