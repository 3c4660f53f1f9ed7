"""The user's own data: loaders, data sets, iterables, and functions that return them."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, IterableDataset, default_collate

from equipoise.data.source import (
    Samples,
    Source,
    check_enough,
    check_request,
    randomness_from,
    shuffled_indices,
)
from equipoise.instrument.types import Batch

_ACCEPTED = (
    "an iterable of (input, target) batches, a DataLoader, a torch Dataset, a pair of tensors, "
    "or a function without arguments that returns one of these"
)


@dataclass(frozen=True, slots=True, eq=False)
class LoaderSource:
    """Batches as the user's own loader yields them.

    Iteration starts over when the loader is exhausted. A one-shot iterator is drawn from only
    as far as needed, and the next draw goes on where the last one ended.

    Args:
        name: The data as the user named them.
        loader: Iterable of pairs (input, target).
    """

    name: str
    loader: Iterable[Any]
    classes: int | None = field(default=None, init=False)
    fixed_batches: bool = field(default=True, init=False)

    def batches(self, batch_size: int, count: int, generator: torch.Generator) -> Iterator[Batch]:
        """Yield ``count`` batches of the loader's own size.

        Raises:
            ValueError: If the loader is empty, a one-shot iterator runs dry, or what it
                yields is not a pair (input, target).
        """
        check_request(batch_size, count, generator)
        return self._draw(count, generator)

    def _draw(self, count: int, generator: torch.Generator) -> Iterator[Batch]:
        for number, item in enumerate(_cycle(self.loader, count, generator)):
            if item is _EXHAUSTED:
                raise self._exhausted(number, count)
            yield _as_batch(item, self.name)

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
        dataset: Has a length, and a pair (input, target) at every index.
    """

    name: str
    dataset: Dataset[Any]
    classes: int | None = field(default=None, init=False)
    fixed_batches: bool = field(default=False, init=False)

    def __len__(self) -> int:
        # _from_object refuses data sets without a length.
        return len(self.dataset)  # type: ignore[arg-type]

    def batches(self, batch_size: int, count: int, generator: torch.Generator) -> Iterator[Batch]:
        """Yield ``count`` full random batches.

        Raises:
            ValueError: If ``batch_size`` exceeds the number of samples, or samples are not
                pairs that stack to tensors.
        """
        check_request(batch_size, count, generator)
        check_enough(self.name, len(self), batch_size)
        return self._draw(batch_size, count, generator)

    def _draw(self, batch_size: int, count: int, generator: torch.Generator) -> Iterator[Batch]:
        for chosen in shuffled_indices(len(self), batch_size, count, generator):
            with randomness_from(generator):
                samples = [self.dataset[index] for index in chosen.tolist()]
            yield _stack(samples, self.name)


@dataclass(frozen=True, slots=True, eq=False)
class StreamedSource:
    """Full batches from an iterable data set of the user's, in its own order.

    Args:
        name: The data as the user named them.
        dataset: Yields single samples, pairs (input, target).
    """

    name: str
    dataset: IterableDataset[Any]
    classes: int | None = field(default=None, init=False)
    fixed_batches: bool = field(default=False, init=False)

    def batches(self, batch_size: int, count: int, generator: torch.Generator) -> Iterator[Batch]:
        """Yield ``count`` full batches of consecutive samples, starting over at the end.

        Raises:
            ValueError: If the stream is shorter than one batch, or samples are not pairs
                that stack to tensors.
        """
        check_request(batch_size, count, generator)
        return self._draw(batch_size, count, generator)

    def _draw(self, batch_size: int, count: int, generator: torch.Generator) -> Iterator[Batch]:
        for samples in _cycle(_Chunks(self.dataset, batch_size), count, generator):
            if samples is _EXHAUSTED:
                raise ValueError(
                    f"{self.name} yields too few samples for one batch of {batch_size}. "
                    "Choose a smaller batch size."
                )
            yield _stack(samples, self.name)


def as_source(data: object, name: str) -> Source:
    """Wrap the user's data, so that batches can be drawn from them.

    Args:
        data: An iterable of (input, target) batches, a ``DataLoader``, a torch ``Dataset``,
            a pair of tensors, or a function without arguments that returns one of these.
            Loaders and iterables keep their own batch size; the rest is batched here.
        name: What to call it in messages and reports.

    Raises:
        ValueError: If it is anything else, or the function fails.

    Examples:
        >>> source = as_source([(torch.zeros(8, 3), torch.zeros(8))], "zeros")
        >>> source.fixed_batches
        True
        >>> as_source(3, "three")
        Traceback (most recent call last):
        ValueError: three is of type int; expected an iterable of (input, target) batches, ...
    """
    if isinstance(data, type) or (
        callable(data) and not isinstance(data, Iterable | Dataset | nn.Module | Source)
    ):
        return _from_function(data, name)
    return _from_object(data, name)


def _from_object(data: object, name: str) -> Source:
    if isinstance(data, Source):
        return data
    if isinstance(data, tuple) and len(data) == 2 and all(isinstance(x, Tensor) for x in data):
        return Samples(name, data[0], data[1])
    if isinstance(data, IterableDataset):
        return StreamedSource(name, data)
    if isinstance(data, Dataset):
        if not hasattr(data, "__len__"):
            raise ValueError(f"{name} is a {type(data).__name__} without __len__; add it.")
        return IndexedSource(name, data)
    if isinstance(data, DataLoader) or (
        isinstance(data, Iterable)
        and not isinstance(data, str | bytes | Mapping | Tensor | np.ndarray | nn.Module)
    ):
        return LoaderSource(name, data)
    raise ValueError(f"{name} is of type {type(data).__name__}; expected {_ACCEPTED}.")


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
        raise ValueError(f"Calling {name} raised {type(error).__name__}: {error}.") from error


class _Restarted:
    """Calls a function for a new one-shot iterator whenever iteration starts."""

    def __init__(self, function: Callable[..., object], name: str, first: object):
        self._function, self._name, self._first = function, name, first

    def __iter__(self) -> Iterator[Any]:
        made, self._first = self._first, None
        made = _call(self._function, self._name) if made is None else made
        if not isinstance(made, Iterator):
            raise ValueError(
                f"{self._name} first returned an iterator and then a {type(made).__name__}."
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


def _cycle(items: Iterable[Any], count: int, generator: torch.Generator) -> Iterator[Any]:
    """Draw ``count`` items, starting over at the end; ``_EXHAUSTED`` if there are none.

    The lent random state is in place only while the user's code runs, never while this
    generator waits for its caller.
    """
    with randomness_from(generator):
        iterator = iter(items)
    for _ in range(count):
        with randomness_from(generator):
            item = next(iterator, _EXHAUSTED)
            if item is _EXHAUSTED:
                iterator = iter(items)
                item = next(iterator, _EXHAUSTED)
        yield item
        if item is _EXHAUSTED:
            return


def _stack(samples: list[Any], name: str) -> Batch:
    first = samples[0]
    if not isinstance(first, tuple | list) or len(first) != 2:
        raise _not_a_pair(first, name, "samples")
    try:
        inputs, targets = default_collate([tuple(sample) for sample in samples])
    except (TypeError, RuntimeError, ValueError) as error:
        raise ValueError(
            f"{name}: samples do not stack to a batch ({error}). Make the data set return "
            "tensors of one shape."
        ) from error
    return _as_batch((inputs, targets), name)


def _as_batch(item: object, name: str) -> Batch:
    if not isinstance(item, tuple | list) or len(item) != 2:
        raise _not_a_pair(item, name, "batches")
    inputs, targets = (torch.as_tensor(x) if isinstance(x, np.ndarray) else x for x in item)
    if not isinstance(inputs, Tensor) or not isinstance(targets, Tensor):
        raise ValueError(
            f"{name} yields a pair of {type(inputs).__name__} and {type(targets).__name__}; "
            "expected two tensors, inputs and targets."
        )
    if not inputs.ndim or not targets.ndim or len(inputs) != len(targets):
        raise ValueError(
            f"{name} yields inputs of shape {list(inputs.shape)} with targets of shape "
            f"{list(targets.shape)}; expected one target for each input."
        )
    return inputs, targets


def _not_a_pair(item: object, name: str, what: str) -> ValueError:
    kind = type(item).__name__
    if isinstance(item, tuple | list):
        kind += f" of {len(item)}"
    elif isinstance(item, Mapping):
        kind += f" with the keys {list(item)}"
    return ValueError(
        f"{name} yields {what} of another form than (input, target): a {kind}. Wrap it in a "
        "function that yields such pairs."
    )
