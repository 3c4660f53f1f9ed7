"""What tracking adds to a training, at the default interval and between samples.

Run ``python benchmarks/tracker_overhead.py [--quick]``. Convolutional networks take steps of SGD
on one thread: untracked, tracked without ever taking a sample, and with a sample at every step.
Variants take turns in short blocks, so that other work on the machine meets all alike; numbers
are medians over blocks of the ratio to the untracked block beside them.

A sample costs a number of steps, which for a network of k layers is about: 5 for the landscape's
five gradients, 1 + k/3 for covariate shift, 1 to 2 for gradient growth, 1/3 for activations.
Divided by the interval it is the share that tracking adds.
"""

from __future__ import annotations

import argparse
import inspect
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor, nn

from equipoise.models import cnn5, resnet_cifar, vgg
from equipoise.probes.tracker.track import track
from equipoise.probes.tracker.tracker import Tracker

Batch = tuple[Tensor, Tensor]

DEFAULT: int = inspect.signature(track).parameters["every"].default
NEVER = 10**9
# The project's budget, in per cent, of the networks named in it; what is asserted.
TARGET = 5.0
BUDGETED = ("cnn5", "small vgg")


@dataclass(frozen=True)
class Case:
    build: Callable[[], nn.Module]
    shape: tuple[int, ...]
    rows: int


CASES = {
    "cnn5": Case(cnn5, (3, 32, 32), 64),
    "cnn5, no norm": Case(lambda: cnn5(norm="none"), (3, 32, 32), 64),
    "small vgg": Case(
        lambda: vgg([[12, 12], [24, 24], [48, 48]], in_channels=1, dense=[64]), (1, 28, 28), 64
    ),
    "resnet20, width 8": Case(lambda: resnet_cifar(20, width=8), (3, 32, 32), 32),
}


def loss_fn(model: nn.Module, batch: Batch) -> Tensor:
    return nn.functional.cross_entropy(model(batch[0]), batch[1])


@dataclass
class Runner:
    """One training, ready to be timed."""

    case: Case
    every: int | tuple[int, ...] | None  # None: untracked
    tracker: Tracker | None = None
    step: Callable[[], None] = field(init=False)

    def __post_init__(self) -> None:
        torch.manual_seed(0)
        model = self.case.build()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        batch = torch.randn(self.case.rows, *self.case.shape), torch.randint(10, (self.case.rows,))
        if self.every is not None:
            self.tracker = track(model, loss_fn, optimizer, every=self.every)
        tracker = self.tracker

        def step() -> None:
            if tracker is not None:
                tracker.observe(batch)
            optimizer.zero_grad()
            loss_fn(model, batch).backward()
            optimizer.step()

        self.step = step

    def block(self, steps: int) -> float:
        """Seconds per step."""
        begin = time.perf_counter()
        for _ in range(steps):
            self.step()
        return (time.perf_counter() - begin) / steps


@dataclass(frozen=True)
class Result:
    """Medians over blocks."""

    step: float  # seconds
    between: float  # ratio, without samples
    sample: float  # steps that a sample costs
    parts: dict[str, float]  # the same, by what is measured

    @property
    def percent(self) -> float:
        """What tracking adds at the default interval."""
        return 100 * self.sample / DEFAULT


def measure(case: Case, *, blocks: int, steps: int) -> Result:
    runners = [Runner(case, None), Runner(case, (NEVER,)), Runner(case, 1)]
    for runner in runners:
        runner.block(1)
    rows = []
    for number in range(blocks):
        row = [0.0, 0.0, 0.0]
        for place in range(3):  # each goes first in its turn
            which = (place + number) % 3
            row[which] = runners[which].block(steps)
        rows.append(row)
    step = statistics.median(row[0] for row in rows)
    tracker = runners[2].tracker
    assert tracker is not None
    cost = tracker.cost()
    share = {name: seconds / sum(cost.parts.values()) for name, seconds in cost.parts.items()}
    sample = statistics.median(row[2] / row[0] - 1 for row in rows)
    return Result(
        step,
        statistics.median(row[1] / row[0] for row in rows),
        sample,
        {name: sample * part for name, part in share.items()},
    )


def bookkeeping(steps: int) -> float:
    """Microseconds per step that a tracker takes between samples, of a network with one weight."""
    model = nn.Linear(1, 1, bias=False)
    found = {}
    for tracked in (False, True):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
        tracker = track(model, loss_fn, optimizer, every=(NEVER,)) if tracked else None
        observe = (lambda _: None) if tracker is None else tracker.observe
        seconds = []
        for _ in range(5):
            begin = time.perf_counter()
            for _ in range(steps):
                observe(None)
                optimizer.step()
            seconds.append(time.perf_counter() - begin)
        found[tracked] = min(seconds) / steps
    return 1e6 * (found[True] - found[False])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--quick", action="store_true", help="few rows and blocks, nothing asserted"
    )
    quick = parser.parse_args().quick
    torch.set_num_threads(1)
    print(f"between samples: {bookkeeping(200 if quick else 5000):.1f} µs per step")
    print(
        f"{'network':18} {'step':>8} {'between':>8} {'sample':>7} {f'every {DEFAULT}':>10}  parts"
    )
    missed = []
    for name, case in CASES.items():
        if quick and name not in BUDGETED:
            continue
        if quick:
            found = measure(replace(case, rows=8), blocks=1, steps=1)
        else:
            found = measure(case, blocks=9, steps=3)
        parts = ", ".join(f"{part} {cost:.1f}" for part, cost in found.parts.items())
        print(
            f"{name:18} {found.step * 1e3:5.0f} ms {found.between:8.3f} {found.sample:7.1f} "
            f"{found.percent:8.1f} %  {parts}"
        )
        if name in BUDGETED and found.percent > TARGET:
            missed.append(name)
    print("network: steps that a sample costs, what that adds to the training, and its parts")
    if missed and not quick:
        raise SystemExit(f"tracking adds more than {TARGET:.0f} % to {', '.join(missed)}")


if __name__ == "__main__":
    main()
