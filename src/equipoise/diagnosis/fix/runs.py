"""Runs of a race: one training each, kept as soon as it is finished."""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from equipoise.diagnosis.fix.applied import apply
from equipoise.diagnosis.fix.division import Division
from equipoise.diagnosis.fix.remedy import Remedy
from equipoise.diagnosis.inputs.objectives import shape_without
from equipoise.diagnosis.problem import Problem
from equipoise.diagnosis.short_training import LAST, MakeOptimizer
from equipoise.instrument.batches import samples, tensors
from equipoise.instrument.kept_batches import copied
from equipoise.instrument.random_states import seeded
from equipoise.records.codec import from_plain, write_json
from equipoise.training.loop import loss_of, train
from equipoise.training.losses import IGNORED
from equipoise.training.record import History

# Share of the loss that is worth a change: less is none.
WORTHWHILE = 0.01
# By then running statistics with PyTorch's momentum of 0.1 have forgotten their start: 0.9^50 is
# half a per cent. Earlier, losses in evaluation mode tell more of that start than of training.
_SETTLED = 50
# Part of the steps after which the learning rate falls, linearly to zero. At a constant rate the
# last loss is noise: a small CNN on digits at batches of two has 70 ± 5.5 % of the classes right
# after 200 steps at 0.03 (mean and standard deviation over seeds), and 84 ± 4.7 % with the fall.
_FALLS = 0.5


@dataclass(frozen=True, slots=True)
class Run:
    """One training.

    Args:
        arm: Name of what was changed.
        rate: Learning rate.
        seed: Of weights, batches and noise.
        steps: How many were asked for.
        history: Losses and seconds.
        held_out: Loss on held-out data in evaluation mode; nan without such data.
        accuracy: Likewise; nan where targets are no classes.
    """

    arm: str
    rate: float
    seed: int
    steps: int
    history: History
    held_out: float
    accuracy: float

    @property
    def loss(self) -> float:
        """Mean training loss over the last quarter of the steps."""
        return self.history.mean_loss(LAST)

    @property
    def has_learned(self) -> bool:
        """Whether the training loss of the last quarter of the steps is below the first one's."""
        losses = self.history.losses
        first = losses[: max(1, round(LAST * len(losses)))]
        start = math.fsum(first) / max(1, len(first))
        return self.loss < start and not alike(self.loss, start)

    @property
    def judged_by(self) -> str:
        """Which loss ranks."""
        settled = self.steps >= _SETTLED and not math.isnan(self.held_out)
        return "held-out" if settled else "training"

    @property
    def score(self) -> float:
        """What ranks, the lower the better; infinite if training diverged."""
        if self.history.diverged_at is not None:
            return math.inf
        score = self.held_out if self.judged_by == "held-out" else self.loss
        return score if math.isfinite(score) else math.inf

    @property
    def step_seconds(self) -> float:
        """Time of a step."""
        return self.history.seconds / max(1, len(self.history.losses))


def alike(loss: float, other: float) -> bool:
    """Whether losses differ by less than is worth a change."""
    return abs(loss - other) < WORTHWHILE * abs(other)


@dataclass(frozen=True, slots=True)
class _Kept:
    """What is written to a file."""

    fingerprint: str
    steps: int
    arms: int
    runs: tuple[Run, ...]
    probabilities: dict[str, float]


class Runs:
    """Finished runs and judgements, in memory and in a file if there is one.

    Args:
        path: A file from which runs of the same model, data and settings are taken over, and to
            which every finished one is added, with how probably theory says that each arm trains.
        fingerprint: Tells whether they are the same.
    """

    def __init__(self, path: Path | None, fingerprint: str) -> None:
        self._path, self._fingerprint = path, fingerprint
        self._runs: dict[tuple[str, float, int, int], Run] = {}
        self._probabilities: dict[str, float] = {}
        self.plan: tuple[int, int] | None = None
        self.taken_over = 0
        kept = _read(path)
        if kept is not None and kept.fingerprint == fingerprint:
            self.plan = kept.steps, kept.arms
            self._runs = {(r.arm, r.rate, r.seed, r.steps): r for r in kept.runs}
            self._probabilities = kept.probabilities
            self.taken_over = len(self._runs)

    def of(self, arm: str, rate: float, seed: int, steps: int, train: Callable[[], Run]) -> Run:
        """A finished run, or one that is trained now and kept."""
        key = arm, rate, seed, steps
        if key not in self._runs:
            self._runs[key] = train()
            self._write()
        return self._runs[key]

    def probability(self, arm: str, judge: Callable[[], float | None]) -> float | None:
        """What theory says of an arm, by an earlier call or now; a ``None`` is asked again."""
        if arm not in self._probabilities:
            found = judge()
            if found is None:
                return None
            self._probabilities[arm] = found
        return self._probabilities[arm]

    def finished(self, arm: str) -> list[Run]:
        """All runs of an arm."""
        return [run for run in self._runs.values() if run.arm == arm]

    def _write(self) -> None:
        if self._path is not None:
            steps, arms = self.plan or (0, 0)
            runs = tuple(self._runs.values())
            kept = _Kept(self._fingerprint, steps, arms, runs, self._probabilities)
            write_json(self._path, kept)


def _read(path: Path | None) -> _Kept | None:
    if path is None or not path.is_file():
        return None
    try:
        return from_plain(_Kept, json.loads(path.read_text(encoding="utf-8")))
    except ValueError:  # of another version: it is written anew
        return None


def train_once(
    problem: Problem,
    division: Division,
    remedy: Remedy | None,
    make: MakeOptimizer,
    *,
    arm: str,
    rate: float,
    seed: int,
    steps: int,
) -> Run:
    """Train a new model, changed by a remedy, and judge it.

    Weights, batches, their order and noise depend on the seed alone, so that arms differ in
    nothing but the remedy. The rate is constant for the first half of the steps and falls linearly
    to zero in the second, as it does at the end of the trainings that people keep.
    """
    model = problem.fresh(seed)
    applied = None if remedy is None else apply(model, remedy)
    optimizer = make([p for p in model.parameters() if p.requires_grad], lr=rate)
    generator = torch.Generator().manual_seed(seed)
    drawn = division.train.batches(problem.batch_size, steps, generator)
    batches = map(problem.placed, drawn)
    attached = contextlib.nullcontext() if applied is None else applied.attach(optimizer)
    falling = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: min(1.0, (1 - step / steps) / (1 - _FALLS))
    )
    with seeded(seed), attached:
        history = train(model, batches, problem.loss_fn, optimizer, scheduler=falling)
        held_out, accuracy = _judged(problem, division, model, history)
    return Run(arm, rate, seed, steps, history, held_out, accuracy)


def _judged(
    problem: Problem, division: Division, model: nn.Module, history: History
) -> tuple[float, float]:
    """Loss and accuracy on held-out data, in evaluation mode."""
    if not division.held_out or history.diverged_at is not None:
        return math.nan, math.nan
    model.eval()
    loss, right, targets, judged = 0.0, 0, 0, 0
    with torch.no_grad():
        for batch in map(problem.placed, division.held_out):
            loss += float(loss_of(model, batch, problem.loss_fn)) * samples(batch)
            judged += samples(batch)
            found = _right(problem, model, batch)
            right, targets = right + found[0], targets + found[1]
    value = loss / judged
    accuracy = right / targets if targets else math.nan
    return (value if math.isfinite(value) else math.inf), accuracy


def _right(problem: Problem, model: nn.Module, batch: Any) -> tuple[int, int]:
    """How many classes are right, and how many there are; none of what is no classification."""
    loss, batch = problem.adapted_loss, copied(batch)
    if loss is None or loss.inputs_as_target:
        return 0, 0
    target = loss.call.target_of(batch)
    if not isinstance(target, Tensor) or target.is_floating_point() or target.dtype == torch.bool:
        return 0, 0
    output = loss.call.run(model, batch)
    if not isinstance(output, Tensor) or output.ndim != target.ndim + 1:
        return 0, 0
    axes = (i for i in (1, output.ndim - 1) if shape_without(output, i) == target.shape)
    axis = next(axes, None)
    if axis is None:
        return 0, 0
    return int((output.argmax(axis) == target).sum()), int((target != IGNORED).sum())


def fingerprint(problem: Problem, *settings: object) -> str:
    """Tell a model, its data and settings from others by their content, and recipes by version.

    A run of another version of this library may have been trained in another way.
    """
    digest = hashlib.sha256()
    model = problem.fresh(problem.seed)
    for name, value in model.state_dict().items():
        digest.update(name.encode())
        digest.update(_bytes(value))
    for value in tensors(problem.first):
        digest.update(_bytes(value))
    with seeded(problem.seed), torch.no_grad():
        loss = float(problem.loss_fn(model, problem.first))
    versions = torch.__version__, version("equipoise")
    digest.update(repr((loss, str(model), versions, *settings)).encode())
    return digest.hexdigest()


def _bytes(tensor: object) -> bytes:
    if not isinstance(tensor, torch.Tensor):
        return repr(tensor).encode()
    return tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes()
