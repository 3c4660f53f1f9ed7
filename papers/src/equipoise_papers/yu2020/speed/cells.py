"""What is timed: all methods at one size, in turns."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import nn

from equipoise_papers.experiments.experiment import Scale
from equipoise_papers.sweeps.cell import Cell, Excerpt, Work
from equipoise_papers.yu2020.speed.methods import METHODS, Method, Part, inputs, methods_of
from equipoise_papers.yu2020.speed.timing import (
    WARM_UPS,
    forward_backward,
    in_turns,
    machine_rates,
    saved_bytes,
)

PARTS: tuple[Part, ...] = ("normalisation", "head")
WIDE = (784, 512)


@dataclass(frozen=True, slots=True)
class Timing:
    """One method at one size.

    Args:
        part: Normalisation alone or a whole head.
        method: The method's name.
        milliseconds: Of forward and backward of the batch, turn by turn: process CPU time, on a
            GPU elapsed time.
        saved: Bytes that autograd keeps besides the input.
        floor_milliseconds: Least time at the machine's rates of products and of copies.
    """

    part: str
    method: str
    milliseconds: tuple[float, ...]
    saved: int
    floor_milliseconds: float


@dataclass(frozen=True, slots=True)
class Quartiles:
    """Three quartiles over turns."""

    low: float
    median: float
    high: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Quartiles:
        """Quartiles, interpolated between turns.

        Examples:
            >>> Quartiles.of([5.0, 1.0, 2.0, 3.0, 4.0])
            Quartiles(low=2.0, median=3.0, high=4.0)
        """
        return cls(*(float(value) for value in np.quantile(values, (0.25, 0.5, 0.75))))

    def above(self, bound: float) -> bool | None:
        """Whether the middle half of the turns is above; undecided if the bound lies within."""
        return None if self.low <= bound <= self.high else self.low > bound

    def words(self) -> str:
        """The median, and the others in brackets.

        Examples:
            >>> Quartiles(1.0, 1.25, 2.0).words()
            '1.25 (1 to 2)'
        """
        return f"{self.median:.3g} ({self.low:.3g} to {self.high:.3g})"


@dataclass(frozen=True, slots=True)
class Timings:
    """All methods at one size.

    Args:
        rows: One per method.
        operations_per_second: Rate of a float32 matrix product.
        bytes_per_second: Rate of a copy.
    """

    rows: tuple[Timing, ...]
    operations_per_second: float
    bytes_per_second: float

    def row(self, part: str, method: str) -> Timing:
        """One method's timing."""
        (found,) = [row for row in self.rows if (row.part, row.method) == (part, method)]
        return found

    def milliseconds(self, part: str, method: str) -> Quartiles:
        """The time to compare between sizes."""
        return Quartiles.of(self.row(part, method).milliseconds)

    def times_slower(self, part: str, method: str, other: str) -> Quartiles:
        """How many times as long a method takes as another in the same turn."""
        pairs = zip(
            self.row(part, method).milliseconds, self.row(part, other).milliseconds, strict=True
        )
        return Quartiles.of([mine / its for mine, its in pairs])


@dataclass(frozen=True, slots=True)
class TimedSize(Cell[Timings]):
    """All methods at one size, timed in turns on one thread.

    Args:
        positions: N, a square.
        channels: D.
        batch: Samples.
        turns: How often each method is timed.
        device: ``cpu`` or ``cuda``.
    """

    positions: int
    channels: int
    batch: int
    turns: int
    device: str

    def possible_here(self) -> bool:
        """Whether there is such a device."""
        return self.device == "cpu" or torch.cuda.is_available()

    def excerpt(self, steps: int) -> Excerpt:
        """The first turns."""
        return Excerpt(replace(self, turns=steps), self.turns, 1)

    def work(self) -> Work:
        """Calls and operations of all methods' turns, warm-ups included."""
        passes = self.turns + WARM_UPS
        operations = sum(m.operations(self.positions, self.channels) for m in METHODS)
        return Work(passes * len(METHODS), passes * self.batch * operations)

    def runs_on(self) -> torch.device:
        """The device that is timed."""
        return torch.device(self.device)

    def run(self) -> Timings:
        """Time every method."""
        device = torch.device(self.device)
        threads = torch.get_num_threads()
        torch.set_num_threads(1)
        try:
            rate, bandwidth = machine_rates(device)
            rows = [row for part in PARTS for row in _rows(self, part, device, rate, bandwidth)]
        finally:
            torch.set_num_threads(threads)
        return Timings(tuple(rows), rate, bandwidth)


def cells(scale: Scale) -> tuple[TimedSize, ...]:
    """One cell per size and device: what is compared must be timed side by side."""
    sizes, batch, turns = {
        "smoke": (((49, 16), (49, 32)), 2, 2),
        "small": (((784, 64), (784, 128), (784, 256), WIDE, (196, 256)), 4, 8),
        "paper": (((784, 128), (784, 256), WIDE, (196, 256), (196, 512)), 8, 12),
    }[scale]
    return tuple(
        TimedSize(positions, channels, samples, turns, device)
        for device, samples in {"cpu": batch, "cuda": 4 * batch}.items()
        for positions, channels in sizes
    )


def _rows(
    cell: TimedSize, part: Part, device: torch.device, rate: float, bandwidth: float
) -> list[Timing]:
    methods = methods_of(part)
    side = math.isqrt(cell.positions)
    passes, saved = {}, {}
    for method in methods:
        forward = method.make(cell.channels)
        if isinstance(forward, nn.Module):
            forward = forward.to(device)
        fed = inputs(method, cell.batch, side, cell.channels).to(device)
        passes[method.name] = forward_backward(forward, fed)
        saved[method.name] = saved_bytes(forward, fed)
    turns = in_turns(passes, cell.turns, device)

    def row(method: Method) -> Timing:
        floor = method.floor_seconds(
            cell.batch, cell.positions, cell.channels, rate=rate, bandwidth=bandwidth
        )
        return Timing(
            part,
            method.name,
            tuple(float(f"{1e3 * turn:.5g}") for turn in turns[method.name].on(device)),
            saved[method.name],
            1e3 * floor,
        )

    return [row(method) for method in methods]


def on_device(results: Mapping[TimedSize, Timings], device: str) -> dict[TimedSize, Timings]:
    """Those of one device."""
    return {cell: found for cell, found in results.items() if cell.device == device}


def by_channels(results: Mapping[TimedSize, Timings]) -> dict[int, Timings]:
    """Sizes with the most positions, of one device's; those are a series in D."""
    most = max(cell.positions for cell in results)
    chosen = {cell.channels: found for cell, found in results.items() if cell.positions == most}
    return dict(sorted(chosen.items()))
