"""The user's own data: loaders, data sets, iterables, and functions that return them."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree
from torch.utils.data import DataLoader, Dataset, IterableDataset

from equipoise.data.items import as_batch, as_plain, stacked
from equipoise.data.source import (
    Samples,
    Source,
    check_enough,
    check_request,
    chosen_rows,
    randomness_from,
    shuffled_indices,
)
from equipoise.instrument.batches import fields, is_pair, mapped, tensors
from equipoise.instrument.types import Batch
from equipoise.records.wording import said, with_article

_ACCEPTED = (
    "a DataLoader, a Dataset, an iterable of batches, one batch (a pair of tensors, or a tuple or "
    "dictionary of them), or a function without arguments that returns one of these"
)


@dataclass(frozen=True, slots=True, eq=False)
class LoaderSource:
    """Batches as the user's own loader yields them.

    Iteration starts over when the loader is exhausted. A one-shot iterator is drawn from only
    as far as needed, and the next draw goes on where the last one ended.

    Args:
        name: The data as the user named them.
        loader: Iterable of batches.
    """

    name: str
    loader: Iterable[Any]
    classes: int | None = field(default=None, init=False)
    fixed_batches: bool = field(default=True, init=False)

    def batches(self, batch_size: int, count: int, generator: torch.Generator) -> Iterator[Batch]:
        """Yield ``count`` batches of the loader's own size.

        Raises:
            ValueError: If the loader is empty, a one-shot iterator runs dry, or what it
                yields holds no tensor.
        """
        check_request(batch_size, count, generator)
        return self._draw(count, generator)

    def _draw(self, count: int, generator: torch.Generator) -> Iterator[Batch]:
        for number, item in enumerate(_cycle(self.loader, count, generator, self.name)):
            if item is _EXHAUSTED:
                raise self._exhausted(number, count)
            yield as_batch(item, self.name)

    def _exhausted(self, number: int, count: int) -> ValueError:
        if not isinstance(self.loader, Iterator):
            return ValueError(f"{self.name} is empty: it yields no batches.")
        return ValueError(
            f"{self.name} is a one-shot iterator that ended after {number} of {count} batches. "
            "Give a function that returns it instead; it is then started anew when exhausted."
        )


@dataclass(frozen=True, slots=True, eq=False)
class IndexedSource:
    """Random full batches from a map-style data set of the user's.

    Args:
        name: The data as the user named them.
        dataset: Has a length, and a sample at every index.
    """

    name: str
    dataset: Dataset[Any]
    classes: int | None = field(default=None, init=False)
    fixed_batches: bool = field(default=False, init=False)

    def __len__(self) -> int:
        return _length(self.dataset, self.name)

    def batches(self, batch_size: int, count: int, generator: torch.Generator) -> Iterator[Batch]:
        """Yield ``count`` full random batches.

        Raises:
            ValueError: If ``batch_size`` exceeds the number of samples, or samples do not stack
                to tensors.
        """
        check_request(batch_size, count, generator)
        check_enough(self.name, len(self), batch_size)
        return self._draw(batch_size, count, generator)

    def _draw(self, batch_size: int, count: int, generator: torch.Generator) -> Iterator[Batch]:
        for chosen in shuffled_indices(len(self), batch_size, count, generator):
            samples = []
            with randomness_from(generator):
                for index in chosen.tolist():
                    with _of_the_user(self.name, f"give sample {index}"):
                        samples.append(self.dataset[index])
            yield stacked(samples, self.name)


@dataclass(frozen=True, slots=True, eq=False)
class StreamedSource:
    """Full batches from an iterable data set of the user's, in its own order.

    Args:
        name: The data as the user named them.
        dataset: Yields single samples.
    """

    name: str
    dataset: IterableDataset[Any]
    classes: int | None = field(default=None, init=False)
    fixed_batches: bool = field(default=False, init=False)

    def batches(self, batch_size: int, count: int, generator: torch.Generator) -> Iterator[Batch]:
        """Yield ``count`` full batches of consecutive samples, starting over at the end.

        Raises:
            ValueError: If the stream is shorter than one batch, or samples do not stack to
                tensors.
        """
        check_request(batch_size, count, generator)
        return self._draw(batch_size, count, generator)

    def _draw(self, batch_size: int, count: int, generator: torch.Generator) -> Iterator[Batch]:
        for samples in _cycle(_Chunks(self.dataset, batch_size), count, generator, self.name):
            if samples is _EXHAUSTED:
                raise ValueError(
                    f"{self.name} yields too few samples for one batch of {batch_size}. "
                    "Choose a smaller batch size."
                )
            yield stacked(samples, self.name)


@dataclass(frozen=True, slots=True, eq=False)
class RowsSource:
    """Random rows of tensors that are equally long.

    Args:
        name: The data as the user named them.
        rows: A nest of tensors.
        length: Their common length.
    """

    name: str
    rows: Any
    length: int
    classes: int | None = field(default=None, init=False)
    fixed_batches: bool = field(default=False, init=False)

    def __len__(self) -> int:
        return self.length

    def batches(self, batch_size: int, count: int, generator: torch.Generator) -> Iterator[Batch]:
        """Yield ``count`` full random batches.

        Raises:
            ValueError: If ``batch_size`` exceeds the number of rows.
        """
        check_request(batch_size, count, generator)
        check_enough(self.name, self.length, batch_size)
        return (
            mapped(partial(chosen_rows, chosen=chosen), self.rows)
            for chosen in shuffled_indices(self.length, batch_size, count, generator)
        )


def as_source(data: object, name: str) -> Source:
    """Wrap the user's data, so that batches can be drawn from them.

    Args:
        data: A ``DataLoader``, an iterable of batches, or anything with ``train_dataloader``
            such as a Lightning data module, which keep their own batch size; a ``Dataset`` or
            anything else with a length and samples at indices, batched here; one batch, which
            is a tuple of tensors or of nests of them, or a dictionary; or a function without
            arguments that returns one of these.
        name: What to call it in messages and reports.

    Raises:
        ValueError: If it is anything else, or the function fails.

    Examples:
        >>> source = as_source([(torch.zeros(8, 3), torch.zeros(8))], "zeros")
        >>> source.fixed_batches
        True
        >>> as_source(3, "three")
        Traceback (most recent call last):
        ValueError: three is of type int; expected a DataLoader, a Dataset, ...
    """
    if isinstance(data, type) or (
        callable(data) and not isinstance(data, Iterable | Dataset | nn.Module | Source)
    ):
        return _from_function(data, name)
    return _from_object(data, name)


def _from_object(data: object, name: str) -> Source:
    if isinstance(data, Source):
        return data
    if callable(getattr(data, "train_dataloader", None)):
        return _from_module(data, f"train_dataloader of {name}")
    if isinstance(data, str | bytes | nn.Module):
        raise _refused(data, name)
    if isinstance(data, IterableDataset):
        return StreamedSource(name, data)
    if isinstance(data, DataLoader):
        return LoaderSource(name, data)
    batch = _one_batch(data, name)
    if batch is not None:
        return _from_batch(batch, name)
    if isinstance(data, Dataset) and not hasattr(data, "__len__"):
        raise ValueError(f"{name} is {with_article(type(data).__name__)} without __len__; add it.")
    if isinstance(data, Dataset) or (
        not isinstance(data, Sequence | Mapping | Iterator | np.ndarray | Tensor)
        and all(hasattr(data, method) for method in ("__len__", "__getitem__"))
    ):
        dataset = cast(Any, data)
        if not _length(dataset, name):
            raise ValueError(f"{name} is an empty {type(data).__name__}; give it samples.")
        return IndexedSource(name, dataset)
    if isinstance(data, Iterable) and not isinstance(data, Mapping | np.ndarray):
        return LoaderSource(name, data)
    raise _refused(data, name)


def _refused(data: object, name: str) -> ValueError:
    kind = type(data).__name__
    found = f"the data are {with_article(kind)}" if name == kind else f"{name} is of type {kind}"
    return ValueError(f"{found}; expected {_ACCEPTED}.")


def _from_module(data: Any, name: str) -> Source:
    """A Lightning data module, or whatever else makes a loader for training."""
    loader = _call(lambda: _training_loader(data), name)
    if isinstance(loader, Mapping):
        raise ValueError(f"the {name} returns several loaders, {list(loader)}. Pass one of them.")
    return _from_object(loader, name)


def _training_loader(data: Any) -> object:
    for method, arguments in (("prepare_data", ()), ("setup", ("fit",))):
        function = getattr(data, method, None)
        if callable(function):
            function(*arguments)
    return data.train_dataloader()


def _one_batch(data: object, name: str) -> Any:
    """The data as one batch, if they are one, and not several."""
    data = as_plain(data, name)
    if isinstance(data, Tensor):
        return data
    if isinstance(data, Mapping):
        return data if tensors(data) else None
    if not isinstance(data, tuple | list) or not data:
        return _named_tensors(data)
    if all(isinstance(part, Tensor) for part in data):
        # Three and more equal tensors in a list are batches of inputs without targets; in a tuple
        # they are one batch, such as triplets.
        alike = isinstance(data, list) and len({part.shape for part in data}) == 1
        return tuple(data) if len(data) > 1 and not (alike and len(data) > 2) else None
    if isinstance(data, list) or all(_is_sample(part) for part in data):
        return None
    return data if tensors(data) else None


def _named_tensors(data: object) -> Any:
    """An object with named tensors, such as a graph, if it is one."""
    if isinstance(data, Tensor | Dataset | DataLoader) or not fields(data):
        return None
    return data if tensors(data) else None


def _is_sample(part: object) -> bool:
    return isinstance(part, tuple | list) and len(part) == 2 and isinstance(part[1], Tensor)


def _from_batch(batch: Any, name: str) -> Source:
    """Rows of equally long tensors are drawn in any number; another nest is one batch."""
    if is_pair(batch):
        return Samples(name, batch[0], batch[1])
    lengths = {len(tensor) if tensor.ndim else -1 for tensor in tensors(batch)}
    rows = lengths.pop() if len(lengths) == 1 else 0
    nested = isinstance(batch, Tensor | Mapping | tuple)
    if rows < 1 or not nested or any(_is_loose(leaf) for leaf in pytree.tree_leaves(batch)):
        return LoaderSource(name, [batch])
    return RowsSource(name, batch, rows)


def _is_loose(leaf: object) -> bool:
    return not isinstance(leaf, Tensor)


def _from_function(function: Callable[..., object], name: str) -> Source:
    try:
        inspect.signature(function).bind()
    except TypeError as error:
        raise ValueError(
            f"{name} is called without arguments, but {error}. Give its arguments defaults, or "
            "name a function that needs none."
        ) from error
    except ValueError:
        pass  # Some built-in callables have no signature; calling them shows whether it works.
    made = _call(function, name)
    if isinstance(made, Iterator):
        return LoaderSource(name, _Restarted(function, name, made))
    return _from_object(made, name)


def _call(function: Callable[..., object], name: str) -> object:
    try:
        return function()
    except Exception as error:
        raise ValueError(f"Calling {name} raised {said(error)}") from error


class _Restarted:
    """Calls a function for a new one-shot iterator whenever iteration starts."""

    def __init__(self, function: Callable[..., object], name: str, first: object):
        self._function, self._name, self._first = function, name, first

    def __iter__(self) -> Iterator[Any]:
        made, self._first = self._first, None
        made = _call(self._function, self._name) if made is None else made
        if not isinstance(made, Iterator):
            raise ValueError(
                f"{self._name} first returned an iterator and then "
                f"{with_article(type(made).__name__)}."
            )
        return made


class _Chunks:
    """Lists of consecutive items.

    An incomplete last one is dropped, never filled up by starting over: a batch that holds a
    sample twice has other statistics.
    """

    def __init__(self, items: Iterable[Any], size: int):
        self._items, self._size = items, size

    def __iter__(self) -> Iterator[list[Any]]:
        chunk: list[Any] = []
        for item in self._items:
            chunk.append(item)
            if len(chunk) == self._size:
                yield chunk
                chunk = []


_EXHAUSTED = object()


@contextmanager
def _of_the_user(name: str, stage: str) -> Iterator[None]:
    """Say which data failed, and at what, when the user's code raises inside the block.

    Raises:
        ValueError: With what was raised as its cause.
    """
    try:
        yield
    except Exception as error:
        raise ValueError(f"{name} could not {stage}: {said(error)}") from error


def _length(data: Any, name: str) -> int:
    """How many samples there are; what ``__len__`` raises is the user's."""
    with _of_the_user(name, "tell its length"):
        return len(data)


def _cycle(
    items: Iterable[Any], count: int, generator: torch.Generator, name: str
) -> Iterator[Any]:
    """Draw ``count`` items, starting over at the end; ``_EXHAUSTED`` if there are none.

    The lent random state is in place only while the user's code runs, never while this
    generator waits for its caller.
    """
    with _of_the_user(name, "be iterated over"), randomness_from(generator):
        iterator = iter(items)
    for number in range(count):
        with _of_the_user(name, f"yield batch {number + 1}"), randomness_from(generator):
            item = next(iterator, _EXHAUSTED)
            if item is _EXHAUSTED:
                iterator = iter(items)
                item = next(iterator, _EXHAUSTED)
        yield item
        if item is _EXHAUSTED:
            return
