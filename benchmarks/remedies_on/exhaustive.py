"""Race remedies in many cells, and train every arm of each exhaustively on a test of its own.

Each cell's race sees only the data to develop on. Every arm is then trained with all rates in
full, its rate chosen on the data that the race held out, and judged on other seeds by test data
that no race saw. Results are kept one file an arm; what is there is not trained again.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import math
import multiprocessing
import statistics
import sys
import tempfile
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import torch
from scipy.special import stdtrit
from torch import nn

from equipoise.data.source import Samples
from equipoise.diagnosis.fix.division import Division, divide
from equipoise.diagnosis.fix.measure import run_fix
from equipoise.diagnosis.fix.options import OPTIMIZERS, FixOptions
from equipoise.diagnosis.fix.remedy import Remedy
from equipoise.diagnosis.fix.runs import train_once
from equipoise.diagnosis.fix.words import in_words
from equipoise.diagnosis.problem import Problem
from equipoise.files import write_text
from equipoise.records.codec import from_plain, to_plain
from equipoise.training.rates import tune_rate
from remedies_on.tasks import Task

# First seed of the test, apart from those of the race.
_FIRST_SEED = 101
_RACE = "race"


@dataclass(frozen=True)
class Cell:
    """One network on one task.

    Args:
        name: What the tables call it.
        task: Makes the data.
        build: Makes the network.
        batch_size: Samples of a step.
        steps: Of a judged training.
        optimizer: Of all arms.
        family: Which remedies are tried.
        seeds: Trainings that judge an arm.
    """

    name: str
    task: Callable[[], Task]
    build: Callable[[], nn.Module]
    batch_size: int
    steps: int
    optimizer: str = "sgd"
    family: str = "all"
    seeds: int = 4


@dataclass(frozen=True)
class Outcome:
    """Test results of one arm.

    Args:
        name: The arm in words.
        losses: Test loss of every seed; infinite if it diverged.
        points: Per cent of classes that are right, or of the variance that is explained.
    """

    name: str
    losses: tuple[float, ...]
    points: tuple[float, ...]


@dataclass(frozen=True)
class Finished:
    """A cell whose race, and perhaps every arm, is finished.

    Args:
        cell: Which.
        guess: Test loss of the best constant.
        plain: The network as it is, with every rate.
        chosen: The race's choice, at the race's rate; ``None`` if no remedy helps.
        is_sure: Whether the choice is better beyond chance.
        arms: Every arm with every rate; none that is missing if ``whole``.
        whole: Whether all were trained.
        remarks: What the race said.
    """

    cell: str
    guess: float
    plain: Outcome | None
    chosen: Outcome | None
    is_sure: bool
    arms: tuple[Outcome, ...]
    whole: bool
    remarks: tuple[str, ...]


@cache
def _prepared(cell: Cell) -> tuple[Problem, Division, Task]:
    torch.manual_seed(0)
    task = cell.task()
    classes = None if task.targets.is_floating_point() else int(task.targets.max()) + 1
    source = Samples(cell.name, task.inputs, task.targets, classes)
    problem = Problem.prepare(cell.build, source, batch_size=cell.batch_size)
    division = divide(problem.source, problem.batch_size, cell.steps, problem.seed)
    return problem, division, task


def _test(cell: Cell, remedy: Remedy | None, rate: float) -> dict[str, Any]:
    problem, division, task = _prepared(cell)
    tests = tuple(zip(task.test_inputs.split(128), task.test_targets.split(128), strict=True))
    judged = Division(division.train, tests)
    make, _ = OPTIMIZERS[cell.optimizer]
    runs = [
        train_once(problem, judged, remedy, make, arm="", rate=rate, seed=seed, steps=cell.steps)
        for seed in range(_FIRST_SEED, _FIRST_SEED + cell.seeds)
    ]
    losses = [r.held_out if r.history.diverged_at is None else math.inf for r in runs]
    points = [
        100 * r.accuracy if not math.isnan(r.accuracy) else 100 * (1 - loss / task.guess)
        for r, loss in zip(runs, losses, strict=True)
    ]
    return {
        "name": in_words(remedy),
        "rate": rate,
        "losses": losses,
        # Guessing is always there.
        "points": [max(p, 0.0) if math.isfinite(p) else 0.0 for p in points],
        "step_seconds": min(r.step_seconds for r in runs),
    }


def _race(cell: Cell) -> dict[str, Any]:
    problem, _, task = _prepared(cell)
    options = FixOptions(cell.family, cell.optimizer, steps=cell.steps)
    found = run_fix(problem, options)
    winner = found.winner
    return {
        "guess": task.guess,
        "chosen": None if winner is None else _test(cell, winner.remedy, winner.rate),
        "remedies": [one.remedy for one in found.proposals if "batch" not in one.remedy.kinds],
        "refused": [arm.name for arm in found.arms if arm.reason and not arm.rounds],
        "fix": found,
    }


def _exhaust(cell: Cell, remedy: Remedy | None) -> dict[str, Any]:
    problem, division, _ = _prepared(cell)
    make, rates = OPTIMIZERS[cell.optimizer]

    def score(rate: float) -> float:
        return train_once(
            problem, division, remedy, make, arm="", rate=rate, seed=problem.seed, steps=cell.steps
        ).score

    tuned = tune_rate(score, rates, extensions=1)
    return _test(cell, remedy, tuned.safest)


def _work(cell: Cell, remedy: Remedy | str | None, path: Path) -> dict[str, Any]:
    """One job of a process; what goes wrong is kept beside the results."""
    torch.set_num_threads(1)
    try:
        found = _race(cell) if remedy == _RACE else _exhaust(cell, remedy)  # type: ignore[arg-type]
    except Exception as error:
        found = {"error": f"{type(error).__name__}: {error}"}
    plain: dict[str, Any] = to_plain(found)
    write_text(path, json.dumps(plain, allow_nan=False))
    return plain


def _path(out: Path, cell: Cell, remedy: Remedy | str | None) -> Path:
    if remedy == _RACE:
        word = _RACE
    else:
        text = json.dumps(to_plain(remedy), sort_keys=True)
        word = hashlib.sha256(text.encode()).hexdigest()[:16]
    return out / cell.name.replace(" ", "-").replace("/", "-") / f"{word}.json"


def run(cells: Sequence[Cell], out: Path, jobs: int, minutes: float) -> list[Finished]:
    """Race and train until all is done or the time is up, every arm of a cell before the next.

    Args:
        cells: What to race.
        out: Folder of the records.
        jobs: Processes; 1 works in this one.
        minutes: Time for all of it; work that was begun then is lost, with one process finished.
    """
    ends = time.monotonic() + 60 * minutes
    waiting: deque[tuple[Cell, Remedy | str | None]] = deque()
    waiting.extend((cell, work) for cell in cells for work in (_RACE, None))
    left: dict[Future[dict[str, Any]], tuple[Cell, Remedy | str | None]] = {}
    pool = None
    if jobs > 1:
        pool = ProcessPoolExecutor(jobs, mp_context=multiprocessing.get_context("spawn"))

    def finish(cell: Cell, work: Remedy | str | None, found: dict[str, Any]) -> None:
        if "error" in found:
            print(f"{cell.name}: {_said(work)}: {found['error']}", file=sys.stderr)
        elif work == _RACE:
            remedies = [from_plain(Remedy, plain) for plain in found["remedies"]]
            waiting.extendleft((cell, remedy) for remedy in reversed(remedies))

    try:
        while (waiting or left) and (rest := ends - time.monotonic()) > 0:
            if waiting and len(left) < jobs:
                cell, work = waiting.popleft()
                path = _path(out, cell, work)
                known = _read(path)
                if known is not None:
                    finish(cell, work, known)
                elif pool is None:
                    finish(cell, work, _work(cell, work, path))
                else:
                    left[pool.submit(_work, cell, work, path)] = cell, work
                continue
            done, _ = wait(left, timeout=min(rest, 5.0), return_when=FIRST_COMPLETED)
            for future in done:
                finish(*left.pop(future), future.result())
    except KeyboardInterrupt:
        pass  # what is finished is shown
    if pool is not None:
        for process in list((pool._processes or {}).values()):
            process.terminate()
        pool.shutdown(wait=False, cancel_futures=True)
    return [found for cell in cells if (found := _finished(cell, out)) is not None]


def _said(remedy: Remedy | str | None) -> str:
    return remedy if isinstance(remedy, str) else in_words(remedy)


def _finished(cell: Cell, out: Path) -> Finished | None:
    race = _read(_path(out, cell, _RACE))
    if race is None or "error" in race:
        return None
    remedies = [from_plain(Remedy, plain) for plain in race["remedies"]]
    found = [_read(_path(out, cell, remedy)) for remedy in (None, *remedies)]
    plain = _outcome(found[0])
    arms = [one for one in map(_outcome, found) if one is not None]
    return Finished(
        cell=cell.name,
        guess=race["guess"],
        plain=plain,
        chosen=_outcome(race["chosen"]),
        is_sure=any(
            gain["helps"]
            for gain in race["fix"]["gains"]
            if race["chosen"] is not None and gain["name"] == race["chosen"]["name"]
        ),
        arms=tuple(arms),
        whole=plain is not None and all(one is not None for one in found),
        remarks=tuple(race["fix"]["remarks"]),
    )


def _read(path: Path) -> dict[str, Any] | None:
    if not path.is_file():
        return None
    found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return found


def _outcome(found: dict[str, Any] | None) -> Outcome | None:
    if found is None or "error" in found:
        return None
    return Outcome(found["name"], tuple(map(float, found["losses"])), tuple(found["points"]))


def mean_loss(one: Outcome, guess: float) -> float:
    """Mean test loss; no seed is worse than guessing."""
    return statistics.fmean(min(loss, guess) for loss in one.losses)


def is_better(changed: Outcome, plain: Outcome, guess: float) -> bool:
    """Whether it is better beyond chance: the t-interval of 9 in 10 cases is below zero."""
    pairs = zip(changed.losses, plain.losses, strict=True)
    return is_negative([min(a, guess) - min(b, guess) for a, b in pairs])


def is_negative(differences: Sequence[float]) -> bool:
    """Whether the t-interval that holds the mean in 9 of 10 cases is below zero."""
    spread = statistics.stdev(differences) / math.sqrt(len(differences))
    return statistics.fmean(differences) + float(stdtrit(len(differences) - 1, 0.95)) * spread < 0


def shown(cells: Sequence[Cell], quick: Sequence[Cell], description: str | None) -> list[Finished]:
    """Run what the command line asks for; a quick look keeps no records."""
    args = arguments(description)
    if args.quick:
        with tempfile.TemporaryDirectory() as folder:
            return run(quick, Path(folder), args.jobs, args.minutes)
    return run(cells, args.out, args.jobs, args.minutes)


def arguments(description: str | None) -> argparse.Namespace:
    """The options of both benchmarks."""
    parser = argparse.ArgumentParser(description=(description or "").splitlines()[0])
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    parser.add_argument("--minutes", type=float, default=10.0, help="stop cleanly after these")
    parser.add_argument("--out", type=Path, default=Path("build"), help="folder for the records")
    parser.add_argument("--quick", action="store_true", help="one cell, with few steps and arms")
    return parser.parse_args()
