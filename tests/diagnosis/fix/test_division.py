"""A fifth of the data judges, and nothing of it is trained on."""

import pytest
import torch
from torch.utils.data import IterableDataset, TensorDataset

from equipoise.data.source import Samples
from equipoise.data.user import IndexedSource, RowsSource, StreamedSource
from equipoise.diagnosis.fix.division import divide

X = torch.arange(40.0)[:, None]
SOURCES = {
    "samples": Samples("x", X, X[:, 0].long(), 40),
    "rows": RowsSource("x", (X, X), 40),
    "a data set": IndexedSource("x", TensorDataset(X, X)),
}


def numbers(batches):
    return sorted(number for x, _ in batches for number in x.flatten().tolist())


@pytest.mark.parametrize("kind", SOURCES)
def test_every_sample_trains_or_judges(kind):
    division = divide(SOURCES[kind], batch_size=8, steps=10, seed=0)
    assert division.samples == 8
    generator = torch.Generator().manual_seed(0)
    trained = division.train.batches(8, 4, generator)
    assert numbers([*trained, *division.held_out]) == [*range(40)]


class Stream(IterableDataset):
    def __iter__(self):
        return zip(X[:20], X[:20], strict=True)


def test_a_stream_that_starts_over_is_divided_once():
    division = divide(StreamedSource("x", Stream()), batch_size=4, steps=20, seed=0)
    generator = torch.Generator().manual_seed(0)
    trained = division.train.batches(4, 4, generator)
    assert numbers([*trained, *division.held_out]) == [*range(20)]
