"""Throughput of 16 small networks trained as one stack, and one after the other.

Run ``python papers/benchmarks/stacked_training.py [--quick]``. The first table compares, on all
threads, a stack with single trainings. They take turns, and ratios are medians over neighbours, so
that other work on the machine slows both down alike. Beside them it shows, in processor time, two
processes of one thread, which is how sweeps run: 8 models each one by one, and two stacks; their
ratio is the gain per core. The second table shows, on one thread and in processor time, where the
gain ends: multiplications per layer and model rise with the width, and "auto" is what
``train_many`` would choose. Setting up takes as long as a few steps and does not count.

The full run fails if a claim does not hold: among the networks of at most 64 inputs the median
gain on all threads is at least 4, and "auto" stacks nothing that trains slower in a stack.
Networks of 784 inputs spend their time in the products of the first layer, which a stack does not
save; they are shown as bound by products, and not judged.

Compiling the stacked forward pass (``torch.compile``, 10 layers of width 32) took 40 s and gained
nothing: what remains are the matrix products. CUDA graphs are not used.
"""

from __future__ import annotations

import argparse
import multiprocessing
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from multiprocessing.pool import Pool

import torch
from torch import Tensor, nn

from equipoise.models import mlp, vgg
from equipoise.training import cross_entropy, train
from equipoise_papers.stacked import multiplications_per_layer, train_many, worthwhile

MODELS = 16
# The project's target for 16 small networks on two cores.
TARGET = 4.0
# With more inputs the products of the first layer take most of the time.
SMALL_INPUTS = 64


@dataclass(frozen=True)
class Case:
    """A network and its batch; ``images`` is the side of grey images for a network of filters."""

    depth: int
    width: int
    rows: int
    inputs: int = 64
    images: int = 0

    def __str__(self) -> str:
        if self.images:
            return f"{self.depth}x{self.width} filters on {self.images}x{self.images}"
        return f"{self.depth}x{self.width} on {self.inputs}"

    @property
    def bound_by_products(self) -> bool:
        """Whether matrix products take most of the time, of which a stack saves nothing."""
        return not self.images and self.inputs > SMALL_INPUTS

    def build(self) -> nn.Module:
        """A network of its shape."""
        if self.images:
            return vgg(((self.width,) * self.depth,), 10, 1)
        return mlp(self.inputs, 10, depth=self.depth, width=self.width)

    def batch(self, members: int) -> tuple[Tensor, Tensor]:
        """One for each of several networks."""
        shape = (1, self.images, self.images) if self.images else (self.inputs,)
        return torch.randn(members, self.rows, *shape), torch.randint(10, (members, self.rows))


SMALL = (
    Case(3, 100, 16, inputs=784),
    Case(3, 100, 64, inputs=784),
    Case(3, 100, 16),
    Case(10, 32, 32),
    Case(10, 64, 32),
    Case(20, 64, 32, inputs=784),
    Case(40, 32, 32),
    Case(40, 128, 32),
)
CROSSOVER = (
    *(Case(5, width, 64) for width in (32, 64, 128, 256, 512)),
    *(Case(2, 8, 16, images=side) for side in (8, 14, 28)),
    Case(2, 32, 16, images=28),
)

Way = Callable[[], float]


class RepeatedBatch:
    """Yields one batch again and again, and times all steps of a training but the first."""

    def __init__(self, steps: int, clock: Callable[[], float]) -> None:
        self.seconds = 0.0
        self._steps, self._clock = steps, clock

    def batches(self, batch: tuple[Tensor, Tensor]) -> Iterator[tuple[Tensor, Tensor]]:
        """Add the time from the end of the first step to the end of the last."""
        yield batch
        begin = self._clock()
        for _ in range(self._steps):
            yield batch
        self.seconds += (self._clock() - begin) / self._steps


def trainings(case: Case, members: int, steps: int, clock: Callable[[], float]) -> dict[str, Way]:
    """Both ways to train, as functions that return the seconds of a step of all models."""
    torch.manual_seed(0)
    models = [case.build() for _ in range(members)]
    x, y = case.batch(members)
    rate, make = 1e-3, torch.optim.SGD

    def alone() -> float:
        repeated = RepeatedBatch(steps, clock)
        for model, *batch in zip(models, x, y, strict=True):
            batches = repeated.batches((*batch,))
            train(model, batches, cross_entropy, make(model.parameters(), rate))
        return repeated.seconds

    def stacked() -> float:
        repeated = RepeatedBatch(steps, clock)
        batches, rates = repeated.batches((x, y)), [rate] * members
        train_many(models, batches, cross_entropy, make, rates, method="stacked")
        return repeated.seconds

    return {"alone": alone, "stacked": stacked}


def in_process(case: Case, name: str, members: int, steps: int) -> float:
    """Processor time of a step, in a process with one thread."""
    torch.set_num_threads(1)
    way = trainings(case, members, steps, time.thread_time)[name]
    way()
    return way()


def here_and_in_two_processes(case: Case, steps: int, pool: Pool) -> dict[str, Way]:
    """Seconds for a step of 16 models."""

    def two(name: str, members: int) -> float:
        jobs = [(case, name, members, steps)] * 2
        slowest: float = max(pool.starmap(in_process, jobs))
        return slowest * MODELS / (2 * members)

    return {
        **trainings(case, MODELS, steps, time.perf_counter),
        "2 alone": lambda: two("alone", MODELS // 2),
        "2 stacks": lambda: two("stacked", MODELS),
    }


def in_turns(ways: dict[str, Way], rounds: int) -> dict[str, list[float]]:
    """Seconds of every way in every round; a first round warms up and does not count."""
    found: dict[str, list[float]] = {name: [] for name in ways}
    for turn in range(rounds + 1):
        for name, way in ways.items():
            value = way()
            if turn:
                found[name].append(value)
    return found


def ratio(found: dict[str, list[float]], base: str, other: str) -> float:
    """Median over rounds of one way's seconds over another's."""
    return statistics.median(a / b for a, b in zip(found[base], found[other], strict=True))


def compare(cases: tuple[Case, ...], *, steps: int, rounds: int) -> list[float]:
    """Print times; returns the gains that the target is about."""
    print(f"{MODELS} models, {torch.get_num_threads()} threads; milliseconds per step of all")
    print("network           rows    alone  stacked  2 alone 2 stacks   gain  per core  target")
    gains = []
    # Forked, because spawned processes import PyTorch again; and before PyTorch starts threads,
    # which forks lose.
    with multiprocessing.get_context("fork").Pool(2) as pool:
        for case in cases:
            found = in_turns(here_and_in_two_processes(case, steps, pool), rounds)
            medians = " ".join(f"{statistics.median(v) * 1e3:8.2f}" for v in found.values())
            gain, per_core = ratio(found, "alone", "stacked"), ratio(found, "2 alone", "2 stacks")
            if case.bound_by_products:
                verdict = "bound by products"
            else:
                verdict = "met" if gain >= TARGET else "missed"
                gains.append(gain)
            print(f"{case!s:17} {case.rows:4} {medians} {gain:6.1f} {per_core:9.1f}  {verdict}")
    return gains


def crossover(cases: tuple[Case, ...], *, steps: int, rounds: int) -> list[str]:
    """Print where a stack stops to gain; returns what "auto" stacks although it is slower."""
    torch.set_num_threads(1)
    print("\none thread, processor time")
    print("network               rows models  thousands/layer   gain  auto")
    lost = []
    for case in cases:
        for members in (2, 4, MODELS):
            ways = trainings(case, members, steps, time.thread_time)
            gain = ratio(in_turns(ways, rounds), "alone", "stacked")
            models, inputs = [case.build()] * members, case.batch(members)[0]
            chosen = worthwhile(models, inputs)
            size = multiplications_per_layer(models[0], inputs[0]) / 1e3
            print(
                f"{case!s:21} {case.rows:4} {members:6} {size:16.0f} {gain:6.2f}  "
                f"{'stacked' if chosen else 'one by one'}"
            )
            if chosen and gain < 1:
                lost.append(f"{members} of {case}, {case.rows} rows")
    return lost


def broken_claims(gains: list[float], lost: list[str]) -> list[str]:
    """The claims that the measurements contradict."""
    median = statistics.median(gains)
    broken = [] if median >= TARGET else [f"the median gain is {median:.1f}, not {TARGET:g}"]
    return broken + ([f"a stack is chosen, and slower, for {lost}"] if lost else [])


def main() -> None:
    """Measure, and fail if a claim does not hold."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="few cases, nothing asserted")
    quick = parser.parse_args().quick
    steps, rounds = (2, 1) if quick else (20, 5)
    if quick:
        torch.set_num_threads(1)  # several threads wait for each other on a busy machine
    gains = compare(SMALL[2:3] if quick else SMALL, steps=steps, rounds=rounds)
    lost = crossover(
        CROSSOVER[:1] if quick else CROSSOVER, steps=max(2, steps // 4), rounds=rounds
    )
    broken = broken_claims(gains, lost)
    if broken and not quick:
        raise SystemExit("; ".join(broken))


if __name__ == "__main__":
    main()
