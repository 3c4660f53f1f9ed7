"""An experiment of trials that scatter, and of predictions, with code that can be changed."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import ClassVar

from equipoise_papers.experiments.experiment import Experiment
from equipoise_papers.experiments.verdict import Verdict
from equipoise_papers.sweeps.cell import Cell

SETTINGS, SEEDS = 20, 3


class Code:
    """What trials are computed by.

    Args:
        rounding: Another one gives other trials of the same distribution.
        shift: Added to every loss.
        scatter: Of losses.
        offset: Added to every prediction.
        trouble: Settings whose trials fail.
        diverges: Whether every trial diverges.
    """

    def __init__(self):
        self.rounding, self.shift, self.scatter, self.offset = 0, 0.0, 0.1, 0.0
        self.trouble, self.diverges = (), False
        self.calls = []


@dataclass(frozen=True, slots=True)
class Outcome:
    loss: float
    curve: tuple[float, ...]
    diverged_at: int | None
    step_seconds: float


@dataclass(frozen=True)
class Trial(Cell[Outcome]):
    setting: int
    seed: int

    code: ClassVar[Code] = Code()

    def run(self):
        code = type(self).code
        code.calls.append(self)
        if self.setting in code.trouble:
            raise FloatingPointError("no convergence")
        chance = random.Random(f"{self} {code.rounding}")
        loss = self.setting + code.shift + code.scatter * chance.gauss()
        if code.diverges:
            return Outcome(float("nan"), (self.setting,), 3, random.random())
        return Outcome(loss, (self.setting, loss), None, random.random())


@dataclass(frozen=True, slots=True)
class Depth:
    depth: float


@dataclass(frozen=True)
class Prediction(Cell[Depth]):
    setting: int

    def run(self):
        Trial.code.calls.append(self)
        return Depth(10.0 + self.setting + Trial.code.offset)


def trials(revision=1):
    cells = (
        *(Trial(setting, seed) for setting in range(SETTINGS) for seed in range(SEEDS)),
        *map(Prediction, range(4)),
    )
    return Experiment(
        name="toy.trials",
        title="Trials",
        claim="",
        choices=(),
        cells=lambda scale: cells,
        draw=lambda figure, results: None,
        judge=lambda results: Verdict(()),
        revision=revision,
    )
