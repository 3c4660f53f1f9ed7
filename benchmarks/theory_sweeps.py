"""Time of a table of 1,000 settings, beside its settings one by one.

Run ``python benchmarks/theory_sweeps.py [--settings N] [--quick] [--random N [--seed N]]
[--survey [ACTIVATION ...]]``. Every sweep is solved as
:func:`equipoise.theory.table.prediction_table` does it; a tenth of its settings is solved one by
one as well, for the ratio of times per setting and for the largest distance of two numbers, in
units of the sum of their stated errors. Times are processor seconds. ``--random`` draws sweeps
along γ, β, B or ε around the settings of ``stated_errors.py`` instead, and compares interpolated
numbers with those solved alone; none may lie outside the sum of the stated errors. ``--survey``
times sweeps along ε, β, γ and B of the named activations, or of the whole catalogue and a few
callables, at several batch sizes, and prints the slowest.

The floor at ε > 0: each setting needs its scan over κ (100 κ × about 100 circles), some ten steps
of Newton's method over about 200 circles, and three evaluations of all numbers, whose averages
over χ² take about 200 × 150 reciprocals and roots each: 1e5 of them, 0.3 ms.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import numpy as np
import torch

import stated_errors
from equipoise.theory import Setting, as_activation
from equipoise.theory.activation.adapt import ActivationLike
from equipoise.theory.activation.catalogue import ACTIVATIONS
from equipoise.theory.batch_norm.fixed_point.axes import AXES, Axis
from equipoise.theory.batch_norm.fixed_point.homogeneous import solve_homogeneous
from equipoise.theory.batch_norm.fixed_point.interpolate import interpolate
from equipoise.theory.batch_norm.fixed_point.solution import Solution
from equipoise.theory.batch_norm.fixed_point.solve import solve, solve_by_quadrature
from equipoise.theory.batch_norm.fixed_point.sweep import solve_all
from equipoise.theory.table import prediction_table

T = TypeVar("T")

GOAL = 1.0  # seconds for 1,000 settings
ONE_OF = 10
# Of the interpolated settings of a random sweep one in so many is compared.
POINTS_PER_CHECK = 7


@dataclass(frozen=True)
class Sweep:
    """Settings that differ in one number.

    Args:
        name: What differs, and where.
        along: A setting at a position from 0 to 1.
    """

    name: str
    along: Callable[[float], Setting]

    def settings(self, count: int) -> list[Setting]:
        """Evenly spaced ones."""
        return [self.along(at) for at in np.linspace(0, 1, count).tolist()]


def of_eps(name: str, batch_size: int, **options: Any) -> Sweep:
    return Sweep(
        f"{name}, B = {batch_size}: ε from 1e-5 to 0.5",
        lambda at: Setting(name, batch_size, eps=1e-5 * 5e4**at, **options),
    )


SWEEPS = (
    *(of_eps(name, size) for name in ("tanh", "relu", "gelu") for size in (4, 8, 64, 1024)),
    of_eps("hardtanh", 8, beta=0.3),
    Sweep("tanh, B = 64, ε = 0: γ", lambda at: Setting("tanh", 64, gamma=0.1 * 30**at)),
    Sweep("gelu, B = 64, ε = 0: β", lambda at: Setting("gelu", 64, beta=4 * at - 2)),
    Sweep(
        "tanh, B = 64, ε = 1e-5: γ", lambda at: Setting("tanh", 64, gamma=0.1 * 30**at, eps=1e-5)
    ),
    Sweep("relu, B = 8, ε = 1e-5: γ", lambda at: Setting("relu", 8, gamma=0.1 * 30**at, eps=1e-5)),
    Sweep("gelu, B = 16, ε = 0.1: β", lambda at: Setting("gelu", 16, beta=4 * at - 2, eps=0.1)),
    Sweep("relu, B = 64, ε = 1e-5: β", lambda at: Setting("relu", 64, beta=4 * at - 2, eps=1e-5)),
    Sweep("relu, B = 5, ε = 1e-3: β", lambda at: Setting("relu", 5, beta=4 * at - 1, eps=1e-3)),
    Sweep(
        "hardtanh, B = 8, ε = 0.01: β",
        lambda at: Setting("hardtanh", 8, beta=4 * at - 2, eps=0.01),
    ),
    Sweep("relu, ε = 1e-5: B from 4", lambda at: Setting("relu", 4 + round(999 * at), eps=1e-5)),
    Sweep("gelu, ε = 0.1: B from 32", lambda at: Setting("gelu", 32 + round(999 * at), eps=0.1)),
    Sweep("tanh, ε = 0: B from 32", lambda at: Setting("tanh", 32 + round(999 * at))),
    Sweep("tanh, ε = 1e-5: B from 32", lambda at: Setting("tanh", 32 + round(999 * at), eps=1e-5)),
)


# Callables of the survey, whose kinks are not declared: smooth, kinked, and steep.
CALLABLES: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "x / sqrt(1 + x²)": lambda x: x * (1 + x * x).rsqrt(),
    "tanh x + 0.3 |x - 0.5|": lambda x: torch.tanh(x) + 0.3 * (x - 0.5).abs(),
    "three pieces": lambda x: torch.relu(x + 1) - 1.5 * torch.relu(x - 0.4) + 0.2 * x,
    "tanh 20x": lambda x: torch.tanh(20 * x),
    "|x - 0.7|^1.5": lambda x: (x - 0.7).abs() ** 1.5,
}
SURVEY_SIZES = (4, 5, 8, 64, 1024)
SLOWEST = 15


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--settings", type=int, default=1000)
    parser.add_argument("--quick", action="store_true", help="10 settings of every sixth")
    parser.add_argument("--random", type=int, metavar="N", help="N random sweeps instead")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--survey", nargs="*", metavar="ACTIVATION", help="time sweeps of these, or of all"
    )
    options = parser.parse_args()
    if options.random:
        attack(options.random, options.seed)
        return
    count = 10 if options.quick else options.settings
    if options.survey is not None:
        survey(options.survey or [*ACTIVATIONS, *CALLABLES], count)
        return
    print(f"{'sweep':42} {'all':>7} {'per setting':>12} {'alone':>9} {'ratio':>6} {'distance':>9}")
    late = []
    for sweep in SWEEPS[::6] if options.quick else SWEEPS:
        settings = sweep.settings(count)
        solve(settings[count // 2])  # rules and tables of nodes
        found, seconds = timed(solve_all, settings)
        some = settings[::ONE_OF]
        solve_by_quadrature.cache_clear()
        solve_homogeneous.cache_clear()
        alone, each = timed(lambda some: [solve(one) for one in some], some)
        distance = max(apart(one, many) for one, many in zip(alone, found[::ONE_OF], strict=True))
        late += [sweep.name] if seconds > GOAL * count / 1000 else []
        print(
            f"{sweep.name:42} {seconds:5.2f} s {seconds / count * 1e3:9.2f} ms "
            f"{each / len(some) * 1e3:6.2f} ms {each / len(some) / seconds * count:6.1f} "
            f"{distance:9.2f}"
        )
    if not options.quick:
        print(f"over {GOAL:g} s per 1,000: {', '.join(late) or 'none'}")


def survey(activations: Sequence[str], count: int) -> None:
    """Time sweeps of activations through the public function; print the slowest."""
    taken: list[tuple[float, str]] = []
    for name in activations:
        phi = as_activation(CALLABLES.get(name, name), name=name if name in CALLABLES else None)
        for size in SURVEY_SIZES:
            for title, sweep in surveyed(phi, size, count):
                try:
                    taken.append((timed(prediction_table, sweep)[1], title))
                except ValueError as refusal:
                    print(f"{title}: {refusal!s:.120}")
    late = sum(seconds > GOAL * count / 1000 for seconds, _ in taken)
    print(f"{len(taken)} sweeps, {late} over {GOAL:g} s per 1,000 settings. The slowest:")
    for seconds, title in sorted(taken, reverse=True)[:SLOWEST]:
        print(f"{seconds:6.2f} s  {title}")


def surveyed(
    phi: ActivationLike, batch_size: int, count: int
) -> Iterator[tuple[str, list[Setting]]]:
    """Sweeps around one batch size, each with what it is called."""
    at = np.linspace(0, 1, count).tolist()
    head = f"{as_activation(phi).name}, B = {batch_size}"
    yield f"{head}: ε", [Setting(phi, batch_size, eps=1e-5 * 5e4**x) for x in at]
    for eps in (0.0, 1e-5, 0.01):
        tail = f", ε = {eps:g}"
        yield f"{head}{tail}: β", [Setting(phi, batch_size, eps=eps, beta=4 * x - 1.5) for x in at]
        sweep = [Setting(phi, batch_size, eps=eps, gamma=0.1 * 30**x) for x in at]
        yield f"{head}{tail}: γ", sweep
        yield f"{head}{tail}: B", [Setting(phi, batch_size + i, eps=eps) for i in range(count)]


def attack(count: int, seed: int) -> None:
    """Compare random interpolated settings with themselves alone."""
    compared = outside = without = 0
    worst = 0.0
    for number in range(count):
        try:
            axis, settings = random_sweep(seed, number)
            found = interpolate(axis, settings)
        except ValueError:
            without += 1
            continue
        between = [i for i, one in found.items() if one.q.method.startswith("interpolated")]
        without += not between
        for i in between[::POINTS_PER_CHECK]:
            try:
                distance = apart(solve(settings[i]), found[i])
            except ValueError as refusal:
                distance = float("inf")
                print(f"refused alone: {refusal}")
            compared += 1
            worst = max(worst, distance)
            if distance > 1:
                outside += 1
                print(f"sweep {number}: {settings[i]} is {distance:.1f} errors away")
    print(
        f"{count} sweeps, {without} without interpolation; {compared} settings compared, "
        f"{outside} outside the stated errors, the worst at {worst:.2f} of them"
    )


def random_sweep(seed: int, number: int) -> tuple[Axis, list[Setting]]:
    """Settings around one of ``stated_errors.py``."""
    middle = stated_errors.case(seed, number).setting()
    axis = AXES[number % len(AXES)]
    g = np.random.default_rng([seed, number, 1])
    # A narrow sweep or a wide one, at even distances or at random.
    factor, count = 10 ** g.uniform(0.05, 3), int(g.integers(30, 300))
    at = np.linspace(-1, 1, count) if g.random() < 0.5 else np.sort(g.uniform(-1, 1, count))
    eps = middle.eps or 0.01
    values = {
        "eps": eps * factor**at,
        "gamma": middle.gamma * factor**at,
        "beta": middle.beta + factor * middle.gamma * at,
        "batch_size": np.unique(np.clip(np.rint(middle.batch_size * factor**at), 4, 1e12)),
    }[axis.name]
    return axis, [replace(middle, **{axis.name: value}) for value in values.tolist()]


def timed(
    solver: Callable[[Sequence[Setting]], list[T]], settings: Sequence[Setting]
) -> tuple[list[T], float]:
    start = time.process_time()
    return solver(settings), time.process_time() - start


def apart(one: Solution, other: Solution) -> float:
    """The largest distance of two numbers, in units of the sum of their errors."""
    return max(
        abs(a.value - b.value) / max(a.error + b.error, 5e-324)
        for a, b in zip(one.numbers, other.numbers, strict=True)
    )


if __name__ == "__main__":
    main()
