"""Real and synthetic batches: small built-in sets, and whatever the user brings."""

from equipoise.data.augmentation import crop_and_flip
from equipoise.data.catalogue import SPECS, load
from equipoise.data.deep_linear import gaussian_regression
from equipoise.data.download import fetch_fashion_mnist
from equipoise.data.idx import read_idx
from equipoise.data.places import DataNotFoundError, cache_dir, own_dir
from equipoise.data.source import Batch, Samples, Source
from equipoise.data.splits import Split, split
from equipoise.data.user import IndexedSource, LoaderSource, StreamedSource, as_source

__all__ = [
    "SPECS",
    "Batch",
    "DataNotFoundError",
    "IndexedSource",
    "LoaderSource",
    "Samples",
    "Source",
    "Split",
    "StreamedSource",
    "as_source",
    "cache_dir",
    "crop_and_flip",
    "fetch_fashion_mnist",
    "gaussian_regression",
    "load",
    "own_dir",
    "read_idx",
    "split",
]
