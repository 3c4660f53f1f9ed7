"""Which samples each step takes: a pure function of seed and step, for any number of ranks."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

import torch
from torch import Tensor

from equipoise.instrument import Batch
from equipoise_papers.big.distributed import Ranks

# From the inputs of a joint batch and a generator to the inputs that are trained on.
Transform: TypeAlias = Callable[[Tensor, torch.Generator], Tensor]

# How many samples of a set enter its checksum.
_CHECKED = 8


class Batches(Protocol):
    """Batches that can start at any step, each divided between the ranks."""

    @property
    def steps(self) -> int:
        """How many batches there are."""

    @property
    def batch_size(self) -> int:
        """Samples of all ranks together."""

    @property
    def identity(self) -> dict[str, int | str]:
        """What else decides which samples a step takes; a checkpoint stores and compares it.

        A difference that is not in it goes unnoticed when a training resumes.
        """

    def shares(self, start: int, here: Ranks) -> Iterator[Any]:
        """Yield this rank's part of every batch from step ``start`` (from 0) on.

        Parts have the sizes of :meth:`Ranks.share_sizes`.
        """


@dataclass(frozen=True, slots=True, kw_only=True)
class ShuffledOrder:
    """Every sample once per epoch, in an order that the seed decides.

    Where fewer samples than a batch are left, the next epoch begins, so that every batch is
    full. It is the order of :meth:`equipoise.data.Samples.batches` with a generator of that
    seed. Serves as ``batch_sampler`` of a ``DataLoader`` too, through :meth:`shares`.

    Args:
        samples: In the whole set.
        batch_size: Samples of all ranks together, at most ``samples``.
        steps: Number of batches.
        seed: Of the permutations.

    Raises:
        ValueError: If the set is smaller than a batch, or a size below 1.

    Examples:
        >>> order = ShuffledOrder(samples=6, batch_size=4, steps=3, seed=0)
        >>> [len(set(batch.tolist())) for batch in order.joint(0)]
        [4, 4, 4]
        >>> joint = next(order.joint(2)).tolist()
        >>> [next(order.shares(2, Ranks(rank, 2))).tolist() for rank in (0, 1)] == [
        ...     joint[:2], joint[2:]]
        True
    """

    samples: int
    batch_size: int
    steps: int
    seed: int

    def __post_init__(self) -> None:
        if not 1 <= self.batch_size <= self.samples:
            raise ValueError(
                f"batch_size must be from 1 to the number of samples, {self.samples}, got "
                f"{self.batch_size}."
            )
        if self.steps < 1:
            raise ValueError(f"steps must be at least 1, got {self.steps}.")

    @property
    def identity(self) -> dict[str, int | str]:
        """Everything but the number of steps, which may be raised later."""
        return {"samples": self.samples, "batch size": self.batch_size, "data seed": self.seed}

    def joint(self, start: int) -> Iterator[Tensor]:
        """Yield the indices of the joint batches from step ``start`` (from 0) on."""
        generator = torch.Generator().manual_seed(self.seed)
        per_epoch = self.samples // self.batch_size
        for epoch in range(-(-self.steps // per_epoch)):
            order = torch.randperm(self.samples, generator=generator)
            first = epoch * per_epoch
            for step in range(max(start, first), min(first + per_epoch, self.steps)):
                place = (step - first) * self.batch_size
                yield order[place : place + self.batch_size]

    def shares(self, start: int, here: Ranks) -> Iterator[Tensor]:
        """Yield the indices of this rank's samples."""
        rows = here.share(self.batch_size)
        return (indices[rows] for indices in self.joint(start))


@dataclass(frozen=True, slots=True, eq=False)
class ShuffledBatches:
    """Batches of samples held in memory.

    Args:
        inputs: ``[N, ...]``.
        targets: ``[N, ...]``.
        batch_size: Samples of all ranks together.
        steps: Number of batches.
        seed: Of the order, and of what ``transform`` draws.
        transform: Augmentation, such as random crops. It gets the inputs of the joint batch and a
            generator of that step, so that its draws depend neither on the number of ranks nor
            on where training resumed.
        device: Where batches go; by default they stay where the samples are.

    Raises:
        ValueError: If there are not as many targets as inputs, or the set is smaller than a
            batch.

    Examples:
        >>> batches = ShuffledBatches(torch.arange(4.0), torch.arange(4), 2, steps=3, seed=0)
        >>> [len(x) for x, y in batches.shares(1, Ranks())]
        [2, 2]
    """

    inputs: Tensor
    targets: Tensor
    batch_size: int
    steps: int
    seed: int
    transform: Transform | None = None
    device: torch.device | str | None = None

    def __post_init__(self) -> None:
        if len(self.inputs) != len(self.targets):
            raise ValueError(
                f"there must be one target for each input, got {len(self.inputs)} inputs and "
                f"{len(self.targets)} targets."
            )
        _ = self.order  # refuses sizes that do not fit

    @property
    def order(self) -> ShuffledOrder:
        """Which samples each step takes."""
        return ShuffledOrder(
            samples=len(self.inputs), batch_size=self.batch_size, steps=self.steps, seed=self.seed
        )

    @property
    def identity(self) -> dict[str, int | str]:
        """The order's identity, a checksum of a few samples, and whether they are transformed."""
        return self.order.identity | {
            "checksum of inputs": _checksum(self.inputs),
            "checksum of targets": _checksum(self.targets),
            "samples transformed": "no" if self.transform is None else "yes",
        }

    def shares(self, start: int, here: Ranks) -> Iterator[Batch]:
        """Yield inputs and targets of this rank."""
        rows = here.share(self.batch_size)
        for step, indices in enumerate(self.order.joint(start), start):
            if self.transform is None:
                x = self.inputs[indices[rows]]
            else:
                x = self.transform(self.inputs[indices], step_generator(self.seed, step))[rows]
            y = self.targets[indices[rows]]
            yield (x, y) if self.device is None else (x.to(self.device), y.to(self.device))


def _checksum(samples: Tensor) -> str:
    """Checksum of type, shape and a few samples: all of a large set would take seconds."""
    rows = sorted({number * (len(samples) - 1) // (_CHECKED - 1) for number in range(_CHECKED)})
    few = samples.detach()[rows].cpu().contiguous()
    digest = hashlib.sha256(f"{samples.dtype} {list(samples.shape)}".encode())
    digest.update(few.view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()[:12]


def step_generator(seed: int, step: int) -> torch.Generator:
    """Make the generator of one step's draws."""
    # A hash, because seed + step would be the same for neighbouring seeds and steps.
    digest = hashlib.sha256(f"{seed} {step}".encode()).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest[:8]) >> 1)
