"""Divide data once, before anything is trained: some to train on, some to judge by."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from operator import itemgetter
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import Dataset, Subset

from equipoise.data.source import Samples, Source, check_request
from equipoise.data.user import IndexedSource, RowsSource
from equipoise.instrument.batches import mapped, samples, tensors

# One sample in five judges, as of scikit-learn's digits in the catalogue; no more than are needed
# for a standard error of two hundredths of an accuracy, as each arm is judged often.
_EVERY, _MOST = 5, 1000
# Batches that a loader's data are judged on, at most, and those that are drawn to train on.
_MOST_BATCHES, _LARGEST_POOL = 16, 512
_LEAST = 4


@dataclass(frozen=True, slots=True)
class Division:
    """Data to train on, and batches to judge by, which share no sample.

    Args:
        train: Where training batches come from.
        held_out: Batches that nothing is trained on; none if the data are too few.
        remark: Why there are none, or what they are; may be empty.
    """

    train: Source
    held_out: tuple[Any, ...]
    remark: str = ""

    @property
    def samples(self) -> int:
        """How many are held out."""
        return sum(map(samples, self.held_out))


@dataclass(frozen=True, slots=True, eq=False)
class Pool:
    """Batches that were drawn from a loader once, in a new order for each training.

    Args:
        name: The data as the user named them.
        pool: The batches.
    """

    name: str
    pool: tuple[Any, ...]
    classes: int | None = None
    fixed_batches: bool = True

    def batches(self, batch_size: int, count: int, generator: torch.Generator) -> Iterator[Any]:
        """Yield the pool's batches, shuffled anew whenever all were used."""
        check_request(batch_size, count, generator)
        return self._draw(count, generator)

    def _draw(self, count: int, generator: torch.Generator) -> Iterator[Any]:
        order: list[int] = []
        for _ in range(count):
            if not order:
                order = torch.randperm(len(self.pool), generator=generator).tolist()
            yield self.pool[order.pop()]


def divide(source: Source, batch_size: int, steps: int, seed: int) -> Division:
    """Hold out a fifth of the data, at most a thousand samples.

    Sets of samples are divided sample by sample. Of a loader, as many batches are drawn as one
    pass over it has, at most as many as are needed, and a fifth of them is held out: a pass holds
    each sample once. Of streams without a length the batches are taken to be different.

    Args:
        source: The user's data.
        batch_size: Samples per batch.
        steps: Batches of the longest training.
        seed: Decides which samples.
    """
    generator = torch.Generator().manual_seed(seed)
    if isinstance(source, Samples | RowsSource | IndexedSource):
        return _divided_samples(source, batch_size, generator)
    return _divided_batches(source, batch_size, steps, generator)


def _divided_samples(
    source: Samples | RowsSource | IndexedSource, batch_size: int, generator: torch.Generator
) -> Division:
    count = len(source)
    held = min(count // _EVERY, _MOST)
    if held < _LEAST or count - held < batch_size:
        return Division(source, (), f"{count:,} samples are too few to hold any out.")
    order = torch.randperm(count, generator=generator)
    train, test = _chosen(source, order[held:]), _chosen(source, order[:held])
    return Division(train, tuple(_in_batches(test, batch_size, generator)))


def _chosen(
    source: Samples | RowsSource | IndexedSource, part: Tensor
) -> Samples | RowsSource | IndexedSource:
    """Some samples, by their numbers."""
    if isinstance(source, Samples):
        return Samples(source.name, source.inputs[part], source.targets[part], source.classes)
    if isinstance(source, RowsSource):
        return RowsSource(source.name, mapped(itemgetter(part), source.rows), len(part))
    return IndexedSource(source.name, _Part(source.dataset, part.tolist()))


class _Part(Subset[Any], Dataset[Any]):
    """Some samples of a data set."""


def _in_batches(
    source: Samples | RowsSource | IndexedSource, batch_size: int, generator: torch.Generator
) -> Iterator[Any]:
    """Every sample once, in batches that are at least as large as those of training."""
    size = min(len(source), max(batch_size, 128))
    whole = len(source) // size
    return source.batches(size, whole, generator)


def _divided_batches(
    source: Source, batch_size: int, steps: int, generator: torch.Generator
) -> Division:
    wanted = min(_LARGEST_POOL, steps + max(1, steps // (_EVERY - 1)))
    known = _length(source)
    count = wanted if known is None else min(wanted, known)
    drawn = tuple(source.batches(batch_size, count, generator))
    if known is None:
        drawn = _until_repeated(drawn)
    held = min(len(drawn) // _EVERY, _MOST_BATCHES)
    if not held:
        return Division(
            Pool(source.name, drawn),
            (),
            f"{len(drawn)} batches are too few to hold any out.",
        )
    return Division(Pool(source.name, drawn[held:]), drawn[:held])


def _length(source: Source) -> int | None:
    """Batches of one pass, where it is known."""
    try:
        return len(source.loader)  # type: ignore[attr-defined]  # of a loader
    except (AttributeError, TypeError):
        return None


def _until_repeated(drawn: tuple[Any, ...]) -> tuple[Any, ...]:
    """The batches before the first comes again, as when a short stream starts over."""
    for place in range(1, len(drawn)):
        if all(map(torch.equal, tensors(drawn[place]), tensors(drawn[0]))):
            return drawn[:place]
    return drawn
