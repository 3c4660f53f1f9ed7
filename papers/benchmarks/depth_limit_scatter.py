"""How far the depth at which a design stops to train moves with its weights and batches alone.

Run ``python papers/benchmarks/depth_limit_scatter.py [--out DIR] [--replicas 2] [--jobs N]
[--designs N]``. Designs of the benchmark whose limit was seen are trained again, at all depths,
with other weights and batches. Limits of single trainings are compared with each other, and the
verdict's with their geometric mean: what does not repeat, no prediction need know. Trainings are
resumed. ``--quick`` compares the kept records with themselves.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import combinations
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np

from equipoise_papers.reproduction.archive import packed_records
from equipoise_papers.sweeps.backends import Engine
from equipoise_papers.sweeps.grid import sweep
from equipoise_papers.sweeps.store import CellStore
from equipoise_papers.trainability import fitting
from equipoise_papers.trainability.calibrate import table
from equipoise_papers.trainability.evaluation import DepthLimit, depth_limits
from equipoise_papers.trainability.experiment import EXPERIMENT
from equipoise_papers.trainability.outcome import TRAINED, Outcome, designs, outcomes
from equipoise_papers.trainability.space import Network
from equipoise_papers.trainability.training import Training

KEPT = Path(__file__).parents[1] / "docs" / "reproduction" / "records"
# Numbers of designs are smaller.
APART = 10_000
FACTORS = (1.2, 1.5, 2.0)

Results = Mapping[Any, Any]


def main() -> None:
    """Train again, and print the tables."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--out", type=Path, metavar="DIR", default=Path("depth-limit-scatter"))
    parser.add_argument("--replicas", type=int, default=2)
    parser.add_argument("--designs", type=int, metavar="N", help="only the first N of them")
    parser.add_argument("--jobs", type=int)
    parser.add_argument("--quick", action="store_true")
    args = parser.parse_args()
    kept = packed_records(KEPT, EXPERIMENT, "small")
    first = outcomes(kept)
    seen = [(number, one) for number, one in limits(first).items() if is_seen(one.observed)]
    predicted = dict(sorted(seen, key=lambda item: item[0])[: args.designs])
    wanted = {one.network for one in first if one.network.seed in predicted}
    others = [kept] if args.quick else again(kept, wanted, args.out, args.replicas, args.jobs)
    everyone = [first, *map(outcomes, others)]
    print_limits(predicted, [observed(found, predicted) for found in everyone])
    print_labels(first, everyone, wanted)


def limits(found: Sequence[Outcome]) -> dict[int, DepthLimit]:
    """Every design's limit, by its number."""
    numbers = [number for number, own in designs(found).items() if len(own) > 1]
    return dict(zip(numbers, depth_limits(found), strict=True))


def is_seen(limit: float) -> bool:
    """Whether a design trains at some of its depths, and not at others."""
    return 0 < limit < math.inf


def again(
    kept: Results, wanted: set[Network], out: Path, replicas: int, jobs: int | None
) -> list[Results]:
    """The records with wanted networks trained again, once for each replica."""
    cells = [cell for cell in kept if isinstance(cell, Training) and cell.network in wanted]

    def other(cell: Training, number: int) -> Training:
        seed = cell.network.seed + number * APART
        return replace(cell, network=replace(cell.network, seed=seed))

    def report(_: str, done: int, total: int) -> None:
        print(f"\r{done} of {total} trainings at all rates", end="", file=sys.stderr, flush=True)

    numbers = range(1, 1 + replicas)
    store = CellStore(out, "depth-limit-scatter")
    todo = [other(cell, number) for number in numbers for cell in cells]
    results = sweep(store, todo, engine=Engine(jobs=jobs), progress=report)
    print(file=sys.stderr)
    failed = [result.failure for result in results.values() if result.record is None]
    if failed:
        raise SystemExit(f"{len(failed)} trainings failed, the first with: {failed[0]}")
    return [
        {**kept, **{cell: results[other(cell, number)].record for cell in cells}}
        for number in numbers
    ]


def observed(found: Sequence[Outcome], wanted: Mapping[int, DepthLimit]) -> dict[int, float]:
    """Limits of one training of every wanted design."""
    return {number: one.observed for number, one in limits(found).items() if number in wanted}


def print_limits(predicted: Mapping[int, DepthLimit], trained: Sequence[dict[int, float]]) -> None:
    """How near limits are: one training's to another's, and the verdict's to their mean."""
    pairs = [
        (one[number], other[number])
        for one, other in combinations(trained, 2)
        for number in predicted
    ]
    means = {
        number: math.exp(fmean(math.log(one[number]) for one in trained))
        for number in predicted
        if all(is_seen(one[number]) for one in trained)
    }
    print("| limits | number | " + " | ".join(f"within {f - 1:.0%}" for f in FACTORS) + " |")
    print("|---|---|" + "---|" * len(FACTORS))
    _print_row("another training", pairs)
    _print_row(
        "the verdict, one training", [(d.observed, d.predicted) for d in predicted.values()]
    )
    _print_row("the verdict, mean", [(mean, predicted[n].predicted) for n, mean in means.items()])
    print()


def _print_row(name: str, pairs: Sequence[tuple[float, float]]) -> None:
    logs = [
        abs(math.log(a / b)) if is_seen(a) and is_seen(b) else (0.0 if a == b else math.inf)
        for a, b in pairs
    ]
    shares = [sum(log <= math.log(factor) for log in logs) / len(logs) for factor in FACTORS]
    print(f"| {name} | {len(logs)} | " + " | ".join(f"{share:.0%}" for share in shares) + " |")


def print_labels(
    first: Sequence[Outcome], everyone: Sequence[Sequence[Outcome]], wanted: set[Network]
) -> None:
    """How often networks of such designs train in one training and not in another."""
    progress = [{one.network: one.progress for one in found} for found in everyone]
    flips = [
        (one[network] >= TRAINED) != (other[network] >= TRAINED)
        for one, other in combinations(progress, 2)
        for network in wanted
    ]
    data, chosen = table(first), np.array([one.network in wanted for one in first])
    print(f"Of the {len(wanted)} networks of these designs:\n")
    if flips:
        print(f"- {fmean(flips):.1%} of pairs of trainings disagree about whether one trains;")
    scores = {"the verdict": data.held_out("both")}
    for number, other in enumerate(progress[1:], 1):
        scores[f"training {number + 1}"] = np.array([other[one.network] for one in first])
    for name, score in scores.items():
        area = fitting.area_under_curve(score[chosen], data.trained[chosen])
        print(f"- ROC AUC of {name} for the first training: {area:.3f}.")


if __name__ == "__main__":
    main()
