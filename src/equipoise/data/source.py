"""What every set of labelled data offers: batches, drawn with the caller's generator."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor

from equipoise.instrument.types import Batch
from equipoise.numerics.checks import check_size

# Samples whose order, 8 bytes each, is drawn at once.
_PERMUTED = 2**25


@runtime_checkable
class Source(Protocol):
    """Anything that hands out batches of inputs and targets."""

    @property
    def name(self) -> str:
        """The data as the user named them."""

    @property
    def classes(self) -> int | None:
        """Number of classes, where it is known."""

    @property
    def fixed_batches(self) -> bool:
        """Whether batches keep a size of their own, whatever size is asked for."""

    def batches(self, batch_size: int, count: int, generator: torch.Generator) -> Iterator[Batch]:
        """Yield ``count`` pairs of inputs and targets.

        Args:
            batch_size: Samples per batch; without effect where ``fixed_batches`` is true.
            count: How many batches.
            generator: CPU generator that decides all that is random; PyTorch's global
                random state is left as found.
        """


@dataclass(frozen=True, slots=True, eq=False)
class Samples:
    r"""A labelled set held in memory.

    Batches are drawn without replacement from a shuffled order; where fewer samples than
    one batch are left, the order is shuffled again, so that every batch is full.

    Args:
        name: The data as the user named them.
        inputs: Shape ``[N, ...]``.
        targets: Shape ``[N, ...]``; class numbers where ``classes`` is known.
        classes: Number of classes, or ``None``.

    Raises:
        ValueError: If there are no samples, or not as many targets as inputs.

    Examples:
        >>> samples = Samples("squares", torch.arange(6.0), torch.arange(6.0) ** 2, None)
        >>> for x, y in samples.batches(4, count=2, generator=torch.Generator()):
        ...     print(tuple(x.shape), bool((x**2 == y).all()))
        (4,) True
        (4,) True
    """

    name: str
    inputs: Tensor
    targets: Tensor
    classes: int | None = None

    def __post_init__(self) -> None:
        if not self.inputs.ndim or not self.targets.ndim or not len(self.inputs):
            raise ValueError(
                f"{self.name} must hold at least one sample along the first dimension, got "
                f"inputs {list(self.inputs.shape)} and targets {list(self.targets.shape)}."
            )
        if len(self.inputs) != len(self.targets):
            raise ValueError(
                f"{self.name} must have one target for each input, got "
                f"{len(self.inputs)} inputs and {len(self.targets)} targets."
            )

    @property
    def fixed_batches(self) -> bool:
        """False: batches have the size asked for."""
        return False

    def __len__(self) -> int:
        return len(self.inputs)

    def batches(self, batch_size: int, count: int, generator: torch.Generator) -> Iterator[Batch]:
        """Yield ``count`` full random batches.

        Raises:
            ValueError: If ``batch_size`` exceeds the number of samples.
        """
        check_request(batch_size, count, generator)
        check_enough(self.name, len(self), batch_size)
        return (
            (chosen_rows(self.inputs, chosen), chosen_rows(self.targets, chosen))
            for chosen in shuffled_indices(len(self), batch_size, count, generator)
        )


def chosen_rows(tensor: Tensor, chosen: Tensor) -> Tensor:
    """Some rows of a tensor, which may be sparse.

    Examples:
        >>> chosen_rows(torch.eye(3).to_sparse(), torch.tensor([2, 0])).to_dense()
        tensor([[0., 0., 1.],
                [1., 0., 0.]])
    """
    if tensor.layout is torch.strided:
        return tensor[chosen]
    found = tensor.to_sparse(layout=torch.sparse_coo).index_select(0, chosen)
    return found.to_sparse(layout=tensor.layout)


def shuffled_indices(
    samples: int, batch_size: int, count: int, generator: torch.Generator
) -> Iterator[Tensor]:
    """Index sets of random full batches, without replacement until the set is exhausted."""
    if samples > _PERMUTED:
        yield from _drawn_one_by_one(samples, batch_size, count, generator)
        return
    order, used = torch.empty(0, dtype=torch.int64, device="cpu"), 0
    for _ in range(count):
        if used + batch_size > len(order):
            order, used = torch.randperm(samples, generator=generator, device="cpu"), 0
        yield order[used : used + batch_size]
        used += batch_size


def _drawn_one_by_one(
    samples: int, batch_size: int, count: int, generator: torch.Generator
) -> Iterator[Tensor]:
    """The same of so many samples that their order would fill the memory; half is exhausted."""
    seen: set[int] = set()
    for _ in range(count):
        chosen: list[int] = []
        if len(seen) > samples // 2:
            seen.clear()
        while len(chosen) < batch_size:
            index = int(torch.randint(samples, (), generator=generator, device="cpu"))
            if index not in seen:
                seen.add(index)
                chosen.append(index)
        yield torch.tensor(chosen, device="cpu")


@contextmanager
def randomness_from(generator: torch.Generator) -> Iterator[None]:
    """Lend a generator to code that draws from PyTorch's global CPU generator.

    Users' loaders shuffle and augment with the global state. Inside the block that state is
    the generator's; afterwards the generator has advanced and the global state has not.
    """
    outside = torch.get_rng_state()
    torch.set_rng_state(generator.get_state())
    try:
        yield
    finally:
        generator.set_state(torch.get_rng_state())
        torch.set_rng_state(outside)


def check_request(batch_size: int, count: int, generator: torch.Generator) -> None:
    """Refuse sizes below one and generators that cannot shuffle on the CPU."""
    check_size(batch_size=batch_size, count=count)
    if not isinstance(generator, torch.Generator) or generator.device.type != "cpu":
        place = getattr(generator, "device", None)
        got = f"one on {place}" if place else repr(generator)
        raise ValueError(
            f"Batches are drawn on the CPU, with a torch.Generator() of it; got {got}. Move each "
            "batch where it is needed."
        )


def check_enough(name: str, samples: int, batch_size: int) -> None:
    """Refuse a batch larger than the whole set."""
    if batch_size > samples:
        raise ValueError(
            f"{name} has {samples} samples, fewer than one batch of {batch_size}. "
            f"Choose a batch size of at most {samples}."
        )
