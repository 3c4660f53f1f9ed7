"""One check-up of one model with nothing but a batch, and what it cost."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

import equipoise as eq
from equipoise.diagnosis.price import SECONDS, STEPS
from equipoise.diagnosis.problem import Problem
from equipoise.diagnosis.record import Checkup

TURNS = 3


@dataclass(frozen=True, slots=True)
class Checked:
    """What ``eq.checkup(model, batch)`` gave.

    Args:
        found: The check-up; None if it raised.
        error: What it raised, in one line.
        step: Processor seconds of a forward and a backward pass.
        seconds: Processor seconds of the check-up.
    """

    found: Checkup | None
    error: str
    step: float
    seconds: float

    @property
    def is_cheap(self) -> bool:
        """Whether it kept to its price."""
        return self.found is not None and self.seconds <= STEPS * self.step + SECONDS

    @property
    def loss(self) -> str:
        """The loss that was found, without the call of the model."""
        words = () if self.found is None else self.found.assumptions
        named = next((word for word in words if word.startswith("loss: ")), "–")
        return named.removeprefix("loss: ").partition(" between ")[0].partition(", from ")[0]

    @property
    def cost(self) -> str:
        """The check-up in seconds and in steps, and whether that is within its price."""
        if self.found is None:
            return "– | –"
        steps = f" = {self.seconds / self.step:,.0f} steps" if self.step else ""
        return f"{self.seconds:.1f} s{steps} | {'yes' if self.is_cheap else 'no'}"


def checked(model: Any, batch: Any) -> Checked:
    """Check a model up as its user would, and time a step of it before."""
    try:
        step = step_seconds(model, batch)
        begin = time.process_time()
        found = eq.checkup(model, batch)
    except Exception as error:  # the table tells which models fail, and how
        return Checked(None, f"{type(error).__name__}: {str(error).splitlines()[0]}", 0.0, 0.0)
    return Checked(found, "", step, time.process_time() - begin)


def step_seconds(model: Any, batch: Any, clock: Callable[[], float] = time.process_time) -> float:
    """Median of several steps after one that warms up, with the loss that was found."""
    problem = Problem.prepare(model, batch, batch_size=2**30)
    fresh, times = problem.fresh(0), []
    for _ in range(1 + TURNS):
        begin = clock()
        problem.loss_fn(fresh, problem.first).backward()
        times.append(clock() - begin)
        fresh.zero_grad()
    return statistics.median(times[1:])


def summary(rows: list[Checked]) -> str:
    """How many work, and how many of them for their price."""
    works = sum(row.found is not None for row in rows)
    cheap = sum(row.is_cheap for row in rows)
    return f"{works} of {len(rows)} work, {cheap} of them within {STEPS} steps and {SECONDS:g} s."


def on_one_thread() -> None:
    """What is timed runs on one thread, and nothing has to be imported while it does."""
    torch.set_num_threads(1)
    assert eq.checkup is not None
